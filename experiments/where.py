"""Does it matter where SAM perturbs: which layers, how far in each, and how many samples share a perturbation?

    python experiments/where.py runs/where --cifar cifar10_subset.npz

    all       eps = rho g / |g|, SAM, the control
    norm      the same in the parameters of normalization layers alone (a network without them is left out)
    not-norm  the same in all other parameters
    layers    every tensor moves in proportion to its own size: eps_l = rho (|w_l| / |w|) g_l / |g_l|
    parts     each quarter of the batch has its own eps, from its own gradient
    samples   each sample has its own eps, in the last layer alone: with h its features, d = softmax(z) - onehot(y),
              its logits move by rho d (<h, h> + 1) / (|d| sqrt(|h|^2 + 1)), so this costs one forward and one backward

All have the automatic radius at target .5, no warm-up, batches of 128, and all but `samples` cost what SAM costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import main
from ncsam.optim.radius import AutoRadius
from problems import CIFAR
from small_problems import Problem, table

FORMS = ("all", "norm", "not-norm", "layers", "parts", "samples")


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._BatchNorm)


def perturbation(form: str, model: nn.Module, rho: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter that moves, and by how much, from the gradients that are there."""
    norms = {id(p) for module in model.modules() if is_norm(module) for p in module.parameters()}
    moving = {"norm": lambda p: id(p) in norms, "not-norm": lambda p: id(p) not in norms}.get(form, lambda p: True)
    parameters = [(p, p.grad) for p in model.parameters() if p.grad is not None and moving(p)]
    if form == "layers":
        whole = torch.stack([p.detach().norm() for p, _ in parameters]).norm()
        yield from ((p, g * (rho * p.detach().norm() / whole / (g.norm() + 1e-12))) for p, g in parameters)
    else:
        length = torch.stack([g.norm() for _, g in parameters]).norm() + 1e-12
        yield from ((p, g * (rho / length)) for p, g in parameters)


def descent_gradient(
    form: str, model: nn.Module, x: Tensor, y: Tensor, radius: AutoRadius, share: float
) -> list[Tensor]:
    """SAM's gradient on these samples, which are `share` of a batch; the radius takes note of both losses."""
    model.zero_grad()
    logits = model(x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    radius.note_batch(share * loss, logits, y, F.cross_entropy)
    moves = list(perturbation(form, model, radius.rho))
    model.zero_grad()
    buffers = [buffer.clone() for buffer in model.buffers()]
    with torch.no_grad():
        for p, move in moves:
            p.add_(move)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    radius.note_perturbed(share * loss)
    with torch.no_grad():
        for p, move in moves:
            p.sub_(move)
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
    return [share * p.grad for p in model.parameters() if p.grad is not None]


def samples_gradient(model: nn.Module, features: list[Tensor], x: Tensor, y: Tensor, radius: AutoRadius) -> None:
    """Leave the gradient at each sample's own last layer."""
    model.zero_grad()
    logits = model(x)
    h = features.pop()
    with torch.no_grad():
        d = logits.softmax(1) - F.one_hot(y, logits.shape[1])
        eps = radius.rho * d / (d.norm(dim=1, keepdim=True) + 1e-12) / (h.square().sum(1, keepdim=True) + 1).sqrt()
    loss = F.cross_entropy(logits + eps * ((h.detach() * h).sum(1, keepdim=True) + 1), y)
    loss.backward()
    radius.note_batch(F.cross_entropy(logits.detach(), y), logits, y, F.cross_entropy)
    radius.note_perturbed(loss)


def accuracy(problem: Problem, form: str, seed: int) -> float | None:
    torch.manual_seed(seed)
    model = problem.model()
    if "norm" in form and not any(is_norm(module) for module in model.modules()):
        return None
    features: list[Tensor] = []
    if form == "samples":
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=problem.lr, momentum=0.9, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, problem.epochs * problem.batches)
    radius = AutoRadius(0.5)
    found = []
    for epoch in range(1, problem.epochs + 1):
        model.train()
        for index in problem.order():
            x, y = problem.x[index], problem.labels[index]
            if form == "samples":
                samples_gradient(model, features, x, y, radius)
            else:
                parts = list(zip(x.chunk(4), y.chunk(4), strict=True)) if form == "parts" else [(x, y)]
                found_there = [descent_gradient(form, model, a, b, radius, 1 / len(parts)) for a, b in parts]
                for p, *gradients in zip(model.parameters(), *found_there, strict=True):
                    p.grad = torch.stack(gradients).sum(0)
            radius.end(perturbed=True, params=list(model.parameters()), group=None)
            optimizer.step()
            scheduler.step()
        if epoch > problem.epochs - 5:
            found.append(problem.accuracy(model))
            features.clear()  # of the test images
    return statistics.mean(found)


if __name__ == "__main__":
    main(__doc__, lambda given: [table("where", FORMS, accuracy, given.cifar)], **CIFAR)
