"""Which way to NCSAM's gradient works at the price of SGD? Several, in plain PyTorch.

    python experiments/cheap_ascents.py runs/ascents --cifar cifar10_subset.npz

MLP with two layers of 256, batch 128, 60 epochs, 15 of them SGD; lr .05 with cosine, momentum .9, weight decay 1e-3;
40 % wrong labels; mean accuracy of the last five epochs over three seeds. Choices are made here, on data that
`estimator_quality.py` does not report on: other splits and wrong labels of digits, and other images of CIFAR-10
(3,000 to 5,699 to learn from, the rest of the archive to test, averaged to 16 x 16; `y_worst` for human labels).
Measurements are fused (one backward of L_B + beta L*), but for every `anew`-th.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from common import Table, main
from problems import CIFAR

EPOCHS, BATCH, FLIPPED, FEWER = 60, 128, 0.4, 37
DATA = ("digits_symmetric", "digits_pair", "cifar_symmetric", "cifar_human")


@dataclass(frozen=True)
class Way:
    """How the gradient to step on is computed; every `every`-th step is a whole one, of 2 forwards and 2 backwards."""

    kind: str
    every: int = 5
    alpha: float = 0.7  # of the kept part, in units of ||g_B||
    memory: float = 0.0  # of the kept part, over measurements
    part: float = 1.0  # of the batch
    epochs: int = EPOCHS
    kappa: float = 0.1  # 0 is SAM
    anew: int = 4  # every so many measurements, an exact one


#: By name, in the order of their price: from 2 or more times SGD's step, to 1.2 and less.
WAYS = {
    "exact": Way("whole", every=1),
    "exact, kappa 0": Way("whole", every=1, kappa=0.0),
    "fused": Way("whole", every=20),
    "sgd": Way("sgd"),
    "look, k 10": Way("look", every=10, anew=1),
    "look": Way("look"),
    "look .5": Way("look", alpha=0.5),
    "look .85": Way("look", alpha=0.85),
    "look 1.0": Way("look", alpha=1.0),
    "look 1.4": Way("look", alpha=1.4),
    "look .85, k 10": Way("look", every=10, alpha=0.85, anew=2),
    "look 1.0, k 10": Way("look", every=10, alpha=1.0, anew=2),
    "average": Way("look", memory=0.5),  # of g_v over measurements
    "ratio": Way("ratio"),  # g_v as long as it was measured, in units of ||g_B||
    "both parts": Way("both parts"),  # and the part along g_B, too
    "difference": Way("difference"),  # all of g' - g_B
    "stale": Way("stale"),  # one pass, at the last measurement's w + eps
    "momentum": Way("momentum"),  # one pass, at w + eps along SGD's buffer
    "against momentum": Way("against momentum"),
    "last": Way("last"),  # one pass, along the last step's gradient
    "random": Way("random"),
    "skip": Way("skip"),  # SGD in between
    "quarter": Way("part", every=1, part=0.25),  # eps from a quarter of the batch
    "fewer samples": Way("fewer samples", every=20, part=0.62),  # fused, on so much of each batch
    "fewer epochs": Way("whole", every=20, epochs=FEWER),  # fused
}


class Network:
    """An MLP whose weights are one vector."""

    def __init__(self, inputs: int, seed: int) -> None:
        torch.manual_seed(seed)
        parameters = [p for a, b in pairwise((inputs, 256, 256, 10)) for p in nn.Linear(a, b).parameters()]
        self.weights = torch.cat([p.detach().flatten() for p in parameters])
        cut = self.weights.split([p.numel() for p in parameters])
        self.leaves = [v.view(p.shape).detach().requires_grad_() for v, p in zip(cut, parameters, strict=True)]

    def logits(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f = self.leaves
        return F.linear(F.relu(F.linear(F.relu(F.linear(x, a, b)), c, d)), e, f)

    def backward(self, loss: Tensor, retain_graph: bool = False) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self.leaves, retain_graph=retain_graph)])

    def gradient(self, x: Tensor, y: Tensor, eps: Tensor | None = None) -> Tensor:
        """The gradient at w, or at w + eps."""
        saved = self.weights.clone()
        if eps is not None:
            self.weights.add_(eps)
        gradient = self.backward(F.cross_entropy(self.logits(x), y))
        self.weights.copy_(saved)
        return gradient


class Step:
    """One way to the gradient to step on, with what it remembers."""

    def __init__(self, way: Way, rho: float, random: torch.Generator) -> None:
        self.way, self.rho, self.random = way, rho, random
        self.done = 0
        self.norm: Tensor | None = None  # of g_B, smoothed over exact measurements
        self.kept = self.eps = torch.empty(0)

    def __call__(self, network: Network, x: Tensor, y: Tensor, ramp: float, past: dict[str, Tensor]) -> Tensor:
        way, number = self.way, self.done
        self.done += 1
        if way.kind == "sgd":
            return network.gradient(x, y)
        if way.kind == "part":
            rows = int(way.part * len(x))
            return network.gradient(x, y, self._ascend(network, x[:rows], y[:rows], ramp, exact=False)[1])
        if way.kind in ("whole", "fewer samples"):
            rows = int(way.part * len(x))
            x, y = x[:rows], y[:rows]
            return network.gradient(x, y, self._ascend(network, x, y, ramp, number % way.every == 0)[1])
        if number % way.every == 0:
            return self._measure(network, x, y, ramp, exact=number // way.every % way.anew == 0)
        if way.kind == "stale":
            return network.gradient(x, y, self.eps)
        if way.kind in ("momentum", "against momentum", "last", "random"):
            drawn = torch.randn(len(network.weights), generator=self.random)
            ascent = {"against momentum": -past["momentum"], "random": drawn, **past}[way.kind]
            return network.gradient(x, y, self.rho * ascent / ascent.norm())
        g = network.gradient(x, y)
        return g if way.kind == "skip" else self._reuse(g)

    def _ascend(self, network: Network, x: Tensor, y: Tensor, ramp: float, exact: bool) -> tuple[Tensor, Tensor]:
        """The gradient at w (fused: with beta g* in it), and NCSAM's perturbation."""
        z, s = network.logits(x), ramp * self.way.kappa
        loss = F.cross_entropy(z, y)
        if s == 0:
            g = network.backward(loss)
            return g, self.rho * g / g.norm()
        flipped = F.cross_entropy(*self._flips(z, y))
        if exact or self.norm is None:
            g = network.backward(loss, retain_graph=True)
            self.norm = g.norm() if self.norm is None else 0.5 * self.norm + 0.5 * g.norm()
            v = self.rho * g / g.norm() + s * network.backward(flipped)
        else:
            g = network.backward(loss + s * self.norm / self.rho * flipped)
            v = self.rho / self.norm * g
        return g, v * (self.rho / v.norm()).clamp(max=1.0)

    def _flips(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and labels of the flipped samples."""
        seen = z.detach()
        top = seen.topk(2, dim=1).values
        draws = torch.empty(len(z), dtype=torch.float64).exponential_(generator=self.random)
        rows = (1 / ((1 + top[:, 0] - top[:, 1]) * draws)).topk(int(FLIPPED * len(z))).indices
        return z[rows], seen[rows].scatter(1, y[rows, None], -math.inf).argmax(1)

    def _measure(self, network: Network, x: Tensor, y: Tensor, ramp: float, exact: bool) -> Tensor:
        """A whole step, and what later ones reuse of it."""
        g, self.eps = self._ascend(network, x, y, ramp, exact)
        descent = network.gradient(x, y, self.eps)
        self.along = (descent @ g) / g.norm() ** 2
        added = descent - (1.0 if self.way.kind == "difference" else self.along) * g
        self.ratio = added.norm() / g.norm()
        unit = added / added.norm()
        self.mean = unit if not len(self.kept) else self.way.memory * self.mean + (1 - self.way.memory) * unit
        self.kept = self.mean / self.mean.norm()
        return descent

    def _reuse(self, g: Tensor) -> Tensor:
        if self.way.kind == "look":
            return g + self.way.alpha * g.norm() * self.kept
        along = self.along if self.way.kind == "both parts" else 1.0
        return along * g + self.ratio * g.norm() * self.kept


def load(data: str, seed: int, cifar: Path | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and observed labels to learn from; images and true labels to test on."""
    random = np.random.default_rng(5000 + seed)
    if data.startswith("digits"):
        images, labels = load_digits(return_X_y=True)
        order = random.permutation(len(images))
        x, y, human, size = torch.tensor(images[order], dtype=torch.float32), torch.tensor(labels[order]), None, 1300
    else:
        with np.load(cifar) as archive:
            images, labels, worst = (archive[name][3000:] for name in ("x_train", "y_train", "y_worst"))
        x = F.avg_pool2d(torch.from_numpy(images).permute(0, 3, 1, 2).float(), 2).flatten(1)
        y, human, size = torch.from_numpy(labels), torch.from_numpy(worst), 2700
    x = (x - x[:size].mean()) / x[:size].std()
    if data.endswith("human") and human is not None:
        return x[:size], human[:size], x[size:], y[size:]
    wrong = torch.tensor(random.random(size) < 0.4)
    other = torch.tensor(random.integers(1, 10, size)) if data.endswith("symmetric") else 1
    return x[:size], torch.where(wrong, (y[:size] + other) % 10, y[:size]), x[size:], y[size:]


def accuracy(problem: Mapping[str, Any], way: Way, seed: int) -> float:
    """After training by one way: test accuracy, mean of the last five epochs."""
    way = replace(way, epochs=min(way.epochs, problem.get("epochs", way.epochs)))
    x, y, test_x, test_y = load(problem["data"], seed, problem["cifar"])
    network, order = Network(x.shape[1], 100 + seed), torch.Generator().manual_seed(seed)
    step: Callable[..., Tensor] = Step(way, problem["rho"], torch.Generator().manual_seed(seed + 1))
    plain: Callable[..., Tensor] = Step(Way("sgd"), problem["rho"], order)
    past = {"momentum": torch.zeros_like(network.weights)}
    last5, done, total = [], 0, way.epochs * math.ceil(len(x) / BATCH)
    for epoch in range(way.epochs):
        for rows in torch.randperm(len(x), generator=order).split(BATCH):
            t = (done + 1) / total
            ramp = min(1.0, 2 * (3 - 2 * t) * t * t)
            past["last"] = (plain if epoch < 0.25 * way.epochs else step)(network, x[rows], y[rows], ramp, past)
            past["momentum"].mul_(0.9).add_(past["last"]).add_(network.weights, alpha=1e-3)
            network.weights.sub_(0.025 * (1 + math.cos(math.pi * done / total)) * past["momentum"])
            done += 1
        if epoch >= way.epochs - 5:
            with torch.no_grad():
                last5.append(float((network.logits(test_x).argmax(1) == test_y).float().mean()))
    return 100 * statistics.mean(last5)


def tables(given: argparse.Namespace) -> list[Table]:
    names = [name for name in DATA if name.startswith("digits") or given.cifar is not None]
    problems = {name: {"data": name, "cifar": given.cifar, "rho": 0.5} for name in names}
    return [Table("ascents", problems, WAYS, metrics=("test accuracy",), measure=accuracy)]


if __name__ == "__main__":
    main(__doc__, tables, **CIFAR)
