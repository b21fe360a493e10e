"""Does compensating the descent gradient, instead of the perturbation, beat plain SAM? Five forms, at SAM's own cost.

    python experiments/descent.py runs/descent --cifar cifar10_subset.npz

At w the network says how likely each label is to be wrong: with z the logits, y the observed label and r its strongest
rival, pi = sigmoid(z_r - z_y), the share of r among the two. At w + eps the loss of a sample is then

    damp      (1 - s pi) loss(y)
    relabel   (1 - s pi) loss(y) + s pi loss(r)
    soften    (1 - s / 2) loss(y) + (s / 2) loss(p), p the probabilities at w

with s = min(1, 2 (3 - 2t) t^2), the paper's ramp. A network that has memorized a label doubts it no more; what it said
before may. So with q the average of a sample's probabilities at w over the epochs, q <- .7 q + .3 p, and the doubt
d = s (1 - q_y / max q):

    recall-damp      (1 - d) loss(y)
    recall-relabel   (1 - d) loss(y) + d loss(q)

`none` is SAM, the control. All have the automatic radius, which
follows the plain losses, and the same warm-up."""

from __future__ import annotations

import statistics

import torch
import torch.nn.functional as F
from torch import Tensor

from common import main
from ncsam import SAM
from ncsam.optim.ramps import smooth
from problems import CIFAR
from small_problems import Problem, table

FORMS = ("none", "damp", "relabel", "soften", "recall-damp", "recall-relabel")


def compensated(form: str, logits: Tensor, labels: Tensor, at_w: Tensor, recalled: Tensor, strength: float) -> Tensor:
    """The loss at w + eps, given the logits at w and the average of past probabilities."""
    if form == "none":
        return F.cross_entropy(logits, labels)
    if form.startswith("recall"):
        own = recalled.gather(1, labels[:, None]).squeeze(1)
        wrong = strength * (1 - own / recalled.amax(1))
        other = recalled
    else:
        own = at_w.gather(1, labels[:, None]).squeeze(1)
        others = at_w.scatter(1, labels[:, None], -torch.inf)
        wrong = strength * torch.sigmoid(others.amax(1) - own)
        other = F.one_hot(others.argmax(1), logits.shape[1]).to(logits)
    if form.endswith("damp"):
        return ((1 - wrong) * F.cross_entropy(logits, labels, reduction="none")).mean()
    observed = F.one_hot(labels, logits.shape[1]).to(logits)
    if form.endswith("relabel"):
        return F.cross_entropy(logits, torch.lerp(observed, other, wrong[:, None]))
    return F.cross_entropy(logits, torch.lerp(observed, at_w.softmax(1), strength / 2))


def accuracy(problem: Problem, form: str, seed: int) -> float:
    torch.manual_seed(seed)
    model = problem.model()
    base = torch.optim.SGD(model.parameters(), lr=problem.lr, momentum=0.9, weight_decay=1e-3)
    optimizer = SAM(base, rho="auto", warmup_steps=problem.warmup * problem.batches, model=model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, problem.epochs * problem.batches)
    recalled = torch.full((len(problem.x), 10), 0.1)
    found = []
    for epoch in range(1, problem.epochs + 1):
        model.train()
        for index in problem.order():
            x, y = problem.x[index], problem.labels[index]
            optimizer.zero_grad()
            logits = model(x)
            optimizer.backward(F.cross_entropy(logits, y), logits, y)
            now = logits.detach()
            recalled[index] = torch.lerp(recalled[index], now.softmax(1), 0.3)
            for perturbed in optimizer.perturbations():
                with perturbed:
                    moved = model(x)
                    loss = compensated(form, moved, y, now, recalled[index], smooth(epoch / problem.epochs))
                    # the radius follows the plain loss; the difference of the two has no value, only a gradient
                    optimizer.backward(F.cross_entropy(moved, y).detach() + loss - loss.detach())
            optimizer.step()
            scheduler.step()
        if epoch > problem.epochs - 5:
            found.append(problem.accuracy(model))
    return statistics.mean(found)


if __name__ == "__main__":
    main(__doc__, lambda given: [table("descent", FORMS, accuracy, given.cifar)], **CIFAR)
