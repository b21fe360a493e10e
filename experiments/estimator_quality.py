"""How good NCSAM's estimators are: their perturbation beside the exact one, and the accuracy they end with.

    python experiments/estimator_quality.py runs/estimators --cifar cifar10_subset.npz

Cosines: one exact run on digits; at each of its steps every estimator answers for the same weights, batch and draw.
Accuracy: whole runs of the engine. `--cifar` names an archive of which the first 3,000 images are averaged to
16 x 16; `cifar-resnet8` is a network with BatchNorm, for 20 epochs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common import Table, main
from ncsam import NCSAM
from ncsam.engine import RunConfig
from ncsam.engine.task import load_task
from ncsam.models import create
from ncsam.vectors.arithmetic import cosine
from problems import CIFAR, HUMAN, NOISES, small_cifar

RHO, KAPPA, WARMUP, EPOCHS = 0.5, 0.1, 0.25, 60
FEWER = 37  # epochs for which fused NCSAM costs little more than SGD does for 60
ESTIMATORS = ("exact", "fused", "looksam")
NAMES = {
    "SGD": "sgd",
    "SAM (kappa = 0)": "ncsam:kappa=0",
    "SAM, look": "ncsam:kappa=0:estimator=looksam",
    **{f"NCSAM, {name}": f"ncsam:estimator={name}" for name in ESTIMATORS},
    "NCSAM, fused, fewer epochs": f"ncsam:estimator=fused:epochs={FEWER}:evaluate_train_every={FEWER}",
}


# --- accuracy


def accuracies(name: str, problems: dict[str, Any], epochs: int, **options: Any) -> Table:
    shared = {"rho": RHO, "kappa": KAPPA, "warmup": WARMUP, "batch_size": 128, "augment": "none", "telemetry_every": 0}
    return Table(name, problems, NAMES, shared={**shared, "epochs": epochs, "evaluate_train_every": epochs, **options})


# --- directions

ANOTHER = "exact, another draw"


def batches(epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Digits with 40 % symmetric noise, in shuffled batches of 128."""
    split = load_task(RunConfig(noise="symmetric", rate=0.4)).dataset.train
    x = torch.from_numpy(np.array(split.inputs)).float().flatten(1)
    x = (x - x.mean()) / x.std()
    y = torch.from_numpy(np.array(split.labels)).long()
    for _ in range(epochs):
        yield from ((x[rows], y[rows]) for rows in torch.randperm(len(x)).split(128)[:-1])


def answers(optimizer: NCSAM, model: nn.Module, x: Tensor, y: Tensor, draw: int) -> tuple[list[Tensor] | None, Any]:
    """The perturbation, if there is one, and the gradient to step on; the base optimizer is not asked to step."""
    optimizer.generator.manual_seed(draw)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    logits = model(x)
    optimizer.backward(F.cross_entropy(logits, y), logits, y)
    moved = None
    for perturbed in optimizer.perturbations():
        with perturbed:
            moved = [p.detach() - w for p, w in zip(model.parameters(), before, strict=True)]
            optimizer.backward(F.cross_entropy(model(x), y))
    return moved, [p.grad for p in model.parameters()]


@lru_cache(maxsize=1)
def directions(epochs: int) -> dict[str, dict[str, float | None]]:
    """Mean cosine with the exact step's perturbation, and with its final gradient, after warm-up."""
    torch.manual_seed(1)
    data = list(batches(epochs))
    model = create("mlp", num_classes=10, hidden=[256, 256], in_features=data[0][0].shape[1])
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, len(data))
    others = {name: name for name in ESTIMATORS[1:]} | {ANOTHER: "exact"}
    exact, *rest = (NCSAM(base, RHO, KAPPA, 0.4, estimator=name, model=model) for name in ("exact", *others.values()))
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in (*others, "g_B")}
    for number, (x, y) in enumerate(data):
        warm = number < WARMUP * len(data)
        for optimizer in (exact, *rest):
            optimizer.rho = 0.0 if warm else RHO
            optimizer.progress = (number + 1) / len(data)
        if not warm:
            plain = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            eps, gradient = answers(exact, model, x, y, number)
            for name, optimizer in zip(others, rest, strict=True):
                draw = number + len(data) if name.startswith("exact") else number
                moved, final = answers(optimizer, model, x, y, draw)
                if eps is not None and moved is not None:
                    found[name][0].append(cosine(moved, eps))
                found[name][1].append(cosine(final, gradient))
            if eps is not None:
                found["g_B"][0].append(cosine(plain, eps))
            found["g_B"][1].append(cosine(plain, gradient))
        answers(exact, model, x, y, number)
        base.step()
        schedule.step()
    return {
        name: {
            "perturbation": statistics.mean(eps) if len(eps) == len(final) else None,  # "looksam" has few
            "final gradient": statistics.mean(final),
        }
        for name, (eps, final) in found.items()
    }


COSINES = Table(
    "cosines",
    {what: {"what": what} for what in ("perturbation", "final gradient")},
    {name: name for name in (*ESTIMATORS[1:], ANOTHER, "g_B")},
    seeds=1,
    shared={"epochs": 40},
    metrics=("cosine with the exact step's, after warm-up",),
    digits=3,
    measure=lambda problem, name, _: directions(problem["epochs"])[name][problem["what"]],
)


def tables(given: argparse.Namespace) -> list[Table]:
    noises = {name: NOISES[name] for name in ("symmetric 40", "pair flip 40")}
    found = [COSINES, accuracies("digits", noises, EPOCHS)]
    if given.cifar is not None:
        data = small_cifar(given.cifar, given.out, train=3000)
        some = {"symmetric 40": NOISES["symmetric 40"], **HUMAN}
        found.append(accuracies("cifar", some, EPOCHS, data=data, model="mlp"))
        found.append(accuracies("cifar-resnet8", HUMAN, 20, data=data, model="resnet8"))
    return found


if __name__ == "__main__":
    main(__doc__, tables, **CIFAR)
