"""Rules for the radius of SAM, and steps to go with them, in a plain loop on small problems.

    python experiments/radius_rules.py runs/rules --labelme labelme.npz --features cifar10_features.npz --fashion FOLDER

An MLP 256-256 by SGD with momentum .9, cosine to 0, in equal batches of 128; a tenth is held out with its noisy labels.
Test accuracy, mean of the last three epochs. One seed a cell: it changes the split, the generated noise, the
initialization and the order, and is the same in a column. Rows:

- `sgd`, `auto T B`: the automatic radius with target T, never longer than B ||w|| (`-`: at most 5).
- `layers T B`: the same, but no layer's part of the perturbation is longer than B times the norm of that layer.
- `cosine`: rho grows while g_v points along g(w + eps) - g(w), g_v the gradient of held-out samples, every fifth step.
- `validation`: as `ncsam.ValidationRadius`, full target .4. `.5`: full target; `.65`: falls to that; `soon`, `half`:
  begins there.
- `gap C`: the target is .5 min(1, max(.1, q / C)), q = (L_v - L) / (L_0 - L), L_v the loss of held-out samples at every
  tenth step. `gap C from .5` starts at the full target and follows in 100 steps.

Columns `700 x 60` and `2,500 x 256` are standardized principal components of the first CIFAR-10 features.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from common import Table, main
from ncsam import noise
from ncsam.data import load
from problems import FASHION

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class Fixed:
    """A radius that does not move, and what a rule is told: a step's losses, ||w||, and held-out samples at times."""

    every = 0  # steps between looks at held-out samples; 0 for none
    gradients = False  # whether those looks need gradients

    def __init__(self, rho: float = 0.0) -> None:
        self.rho = rho

    def update(self, here: float, there: float, guess: float, norm: float, held_out: float | None) -> None: ...


class Auto(Fixed):
    """log rho += .1 (target - share), share smoothed over two steps."""

    def __init__(self, target: float, bound: float) -> None:
        super().__init__(0.05)
        self.target, self.bound = target, bound
        self.share: float | None = None

    def update(self, here: float, there: float, guess: float, norm: float, held_out: float | None) -> None:
        share = max(-5.0, min(5.0, (there - here) / max(0.05, guess - here)))
        self.share = share if self.share is None else (self.share + share) / 2
        longest = self.bound * norm if self.bound else 5.0
        self.rho = min(max(self.rho * math.exp(0.1 * (self.target - self.share)), 1e-4), longest)


class Layered(Auto):
    """No layer is moved by more than `share` of its own norm; the whole by at most 5."""

    def __init__(self, target: float, share: float) -> None:
        super().__init__(target, 0.0)
        self.of_layer = share

    def shorten(self, perturbation: Tensor, weights: Tensor, sizes: Sequence[int]) -> None:
        for moved, layer in zip(perturbation.split(sizes), weights.split(sizes), strict=True):
            moved.mul_(min(1.0, self.of_layer * float(layer.norm()) / (float(moved.norm()) + 1e-12)))


class Gap(Auto):
    """A target that follows the gap between held-out and training loss; `lag` steps behind it, from `start`."""

    every = 10

    def __init__(self, full: float, start: float, lag: int, memories: tuple[float, float]) -> None:
        super().__init__(start, 0.1)
        self.full, self.lag, self.memories = full, lag, memories
        self.loss: float | None = None
        self.held: float | None = None

    def update(self, here: float, there: float, guess: float, norm: float, held_out: float | None) -> None:
        self.loss = here if self.loss is None else self.loss + self.memories[0] * (here - self.loss)
        if held_out is not None:
            self.held = held_out if self.held is None else self.held + self.memories[1] * (held_out - self.held)
            gap = (self.held - self.loss) / max(0.05, guess - self.loss)
            wanted = 0.5 * min(1.0, max(0.1, gap / self.full))
            self.target += (wanted - self.target) * min(1.0, self.every / self.lag)
        super().update(here, there, guess, norm, None)


class Validation(Auto):
    """A target that falls to `fall` of itself where the held-out loss fell since the last look, else doubles."""

    every = -1  # at the end of every epoch, on all held-out samples

    def __init__(
        self, full: float = 0.4, fall: float = 0.8, begin: float = 1 / 3, looks: int = 25, least: float = 0.01
    ) -> None:
        super().__init__(full, 0.1)
        self.full, self.fall, self.begin, self.looks, self.least = full, fall, begin, looks, least
        self.losses: list[float] = []
        self.before: float | None = None
        self.looked = 0.0

    def note(self, loss: float, progress: float) -> None:
        self.losses.append(loss)
        if progress - self.looked < (1 - self.begin) / self.looks:
            return
        now = math.fsum(self.losses) / len(self.losses)
        if self.before is not None and progress >= self.begin:
            self.target = self.target * self.fall if now < self.before else self.target * 2
            self.target = min(self.full, max(self.target, self.full * self.least))
        self.before, self.losses, self.looked = now, [], progress


class Cosine(Fixed):
    """log rho += .05 clip(5 h) for each step since the last look, h = cos(g_v, g(w + eps) - g(w)) smoothed."""

    every, gradients = 5, True

    def __init__(self) -> None:
        super().__init__(0.05)
        self.h = 0.0

    def look(self, held_out: Tensor, here: Tensor, there: Tensor, norm: float) -> None:
        difference = there - here
        h = float(held_out @ difference / (held_out.norm() * difference.norm() + 1e-12))
        self.h = 0.75 * self.h + 0.25 * h
        change = self.every * 0.05 * max(-1.0, min(1.0, 5 * self.h))
        self.rho = min(max(self.rho * math.exp(change), 1e-3), 0.1 * norm)


RULES: dict[str, Callable[[], Fixed]] = {
    "sgd": Fixed,
    **{f"auto {t} {b or '-'}": lambda t=t, b=b: Auto(t, b) for t, b in ((0.5, 0.1), (0.3, 0.1), (0.7, 0.14))},
    **{f"auto 0.5 {b or '-'}": lambda b=b: Auto(0.5, b) for b in (0.07, 0.14, 0)},
    "auto 0.4 0.1": lambda: Auto(0.4, 0.1),
    **{f"auto 0.4 {b or '-'}": lambda b=b: Auto(0.4, b) for b in (0.05, 0.2, 0)},
    **{f"layers 0.4 {b}": lambda b=b: Layered(0.4, b) for b in (0.1, 0.2)},
    "validation": Validation,
    "validation .5": lambda: Validation(full=0.5),
    "validation .65": lambda: Validation(fall=0.65),
    "validation soon": lambda: Validation(begin=0.1),
    "validation half": lambda: Validation(begin=0.5),
    "cosine": Cosine,
    "gap 0.15": lambda: Gap(0.15, 0.05, 1, (0.05, 0.3)),
    "gap 0.3": lambda: Gap(0.3, 0.05, 1, (0.05, 0.3)),
    "gap 0.15 from .5": lambda: Gap(0.15, 0.5, 100, (0.1, 0.5)),
}


# --- data: inputs and labels to train on, inputs and labels to test with


def labelme(file: Path, labels: str) -> Arrays:
    with np.load(file) as whole:
        return tuple(whole[n] for n in ("x_train", f"y_{labels}", "x_test", "y_test"))  # type: ignore[return-value]


def features(file: Path, labels: str, samples: int, components: int = 0) -> Arrays:
    """The first samples of an archive, or their standardized principal components."""
    with np.load(file) as whole:
        x, x_test = (whole[n][:count].astype(np.float32) for n, count in (("x_train", samples), ("x_test", 2500)))
        y, y_test = whole[f"y_{labels}"][:samples], whole["y_test"][:2500]
    if components:
        mean = x.mean(0)
        axes = np.linalg.svd(x - mean, full_matrices=False)[2][:components].T
        x, x_test = (x - mean) @ axes, (x_test - mean) @ axes
        mean, deviation = x.mean(0), x.std(0) + 1e-6
        x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    return x, y, x_test, y_test


def digits(kind: str, rate: float, seed: int) -> Arrays:
    whole = load_digits()
    order = np.random.default_rng(0).permutation(1797)
    x, y = whole.data[order].astype(np.float32), whole.target[order].astype(np.int64)
    mean, deviation = x[:1437].mean(), x[:1437].std()
    x = (x - mean) / deviation
    return x[:1437], corrupted(y[:1437], kind, rate, seed, x[:1437]), x[1437:], y[1437:]


def fashion(folder: Path, kind: str, rate: float, seed: int) -> Arrays:
    whole = load("fashion_mnist", root=folder)
    assert whole.test is not None
    x, x_test = (
        np.asarray(split.inputs)[:count].reshape(count, -1).astype(np.float32)
        for split, count in ((whole.train, 1500), (whole.test, 2500))
    )
    mean, deviation = x.mean(), x.std()
    x, x_test = (x - mean) / deviation, (x_test - mean) / deviation
    return x, corrupted(whole.train.labels[:1500], kind, rate, seed, x), x_test, whole.test.labels[:2500]


def corrupted(labels: np.ndarray, kind: str, rate: float, seed: int, x: np.ndarray) -> np.ndarray:
    """Labels drawn anew with a probability (symmetric: any of the ten, the true one too)."""
    if kind == "instance":
        inputs = ((x - x.min()) / (x.max() - x.min()) * 255).astype(np.uint8)
        return np.array(noise.instance(labels, rate, inputs=inputs, num_classes=10, seed=seed).noisy)
    rng = np.random.default_rng(seed)
    flipped, noisy = rng.random(len(labels)) < rate, labels.copy()
    if kind == "symmetric":
        noisy[flipped] = rng.integers(0, 10, flipped.sum())
    elif kind == "pair":
        noisy[flipped] = (labels[flipped] + 1) % 10
    return noisy


# --- one cell


def measure(options: Mapping[str, Any], row: str, seed: int) -> float:
    """Test accuracy of the rule `row` after training on a problem, mean of the last three epochs."""
    seed += options["first_seed"] - 1
    arrays = options["arrays"](seed)
    shuffled = np.random.default_rng(seed + 100).permutation(len(arrays[0]))
    held = round(0.1 * len(shuffled))
    x, x_test = (torch.from_numpy(np.asarray(a, dtype=np.float32)) for a in (arrays[0], arrays[2]))
    y, y_test = (torch.from_numpy(np.asarray(a, dtype=np.int64)) for a in (arrays[1], arrays[3]))
    x_held, y_held, x, y = x[shuffled[:held]], y[shuffled[:held]], x[shuffled[held:]], y[shuffled[held:]]
    classes = int(max(arrays[1].max(), arrays[3].max())) + 1
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    widths = (x.shape[1], 256, 256)
    body = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*body, nn.Linear(256, classes))
    weights, grads = flattened(model)
    sizes = [p.numel() for p in model.parameters()]
    momentum = torch.zeros_like(weights)
    frequencies = np.bincount(y.numpy(), minlength=classes) / len(y)
    guess = float(-(frequencies * np.log(frequencies + 1e-9)).sum())

    def loss(inputs: Tensor, labels: Tensor) -> float:
        grads.zero_()
        value = F.cross_entropy(model(inputs), labels)
        value.backward()
        return value.item()

    batches = math.ceil(len(x) / 128)
    epochs = max(options["epochs"], math.ceil(options["steps"] / batches))
    rule, norm, accuracies = RULES[row](), 0.0, []
    for step in range(epochs * batches):
        if step % batches == 0:
            parts = torch.tensor_split(torch.randperm(len(x), generator=generator), batches)
        rows = parts[step % batches]
        rate = options["lr"] * 0.5 * (1 + math.cos(math.pi * step / (epochs * batches)))
        held_loss, held_grad = None, None
        if rule.every > 0 and step % rule.every == 0:
            some = torch.randint(0, held, (128,), generator=generator) if held > 128 else torch.arange(held)
            if rule.gradients:
                held_loss, held_grad = loss(x_held[some], y_held[some]), grads.clone()
            else:
                with torch.no_grad():
                    held_loss = F.cross_entropy(model(x_held[some]), y_held[some]).item()
        here, length = loss(x[rows], y[rows]), float(grads.norm())
        norm = float(weights.norm()) if step % 10 == 0 else norm
        if rule.rho > 0 and length > 0:
            first = grads.clone() if held_grad is not None else grads
            perturbation = grads * (rule.rho / length)
            if isinstance(rule, Layered):
                rule.shorten(perturbation, weights, sizes)
            weights.add_(perturbation)
            there = loss(x[rows], y[rows])
            weights.sub_(perturbation)
            if isinstance(rule, Cosine) and held_grad is not None:
                rule.look(held_grad, first, grads, norm)
            rule.update(here, there, guess, norm, held_loss)
        momentum.mul_(0.9).add_(grads).add_(weights, alpha=options["weight_decay"])
        weights.add_(momentum, alpha=-rate)
        if isinstance(rule, Validation) and (step + 1) % batches == 0:
            with torch.no_grad():
                rule.note(F.cross_entropy(model(x_held), y_held).item(), (step + 1) / (epochs * batches))
        if (step + 1) % batches == 0 and (step + 1) // batches > epochs - 3:
            with torch.no_grad():
                accuracies.append(float((model(x_test).argmax(1) == y_test).float().mean()))
    return 100 * math.fsum(accuracies) / len(accuracies)


def flattened(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Two vectors whose parts the parameters and their gradients are."""
    params = list(model.parameters())
    weights = torch.cat([p.detach().flatten() for p in params])
    grads, start = torch.zeros_like(weights), 0
    for p in params:
        stop = start + p.numel()
        p.data, p.grad = weights[start:stop].view_as(p), grads[start:stop].view_as(p)
        start = stop
    return weights, grads


def tables(files: argparse.Namespace) -> Sequence[Table]:
    gentle = {"lr": 0.0125, "weight_decay": 0.005, "epochs": 10, "steps": 800, "first_seed": 3}
    sets: dict[str, Callable[[int], Arrays]] = {}
    if files.labelme is not None:
        sets["LabelMe"] = lambda _: labelme(files.labelme, "one")
    if files.features is not None:
        sets["700 x 60"] = lambda _: features(files.features, "worst", 700, 60)
        sets["2,500 x 256"] = lambda _: features(files.features, "worst", 2500, 256)
    sets["digits pair 40"] = lambda seed: digits("pair", 0.4, seed)
    if files.fashion is not None:
        for name, kind, rate in (
            ("symmetric 20", "symmetric", 0.2),
            ("instance 40", "instance", 0.4),
            ("clean", "clean", 0.0),
        ):
            sets[f"Fashion {name}"] = lambda seed, kind=kind, rate=rate: fashion(files.fashion, kind, rate, seed)
    rules = Table(
        "rules",
        {name: {**gentle, "arrays": arrays} for name, arrays in sets.items()},
        {row: row for row in RULES},
        seeds=1,
        metrics=("accuracy",),
        measure=measure,
    )
    changes = {
        "lr .0125, decay .001, 1,000 steps": {"weight_decay": 0.001, "steps": 1000},
        "lr .0125, decay .01, 1,000 steps": {"weight_decay": 0.01, "steps": 1000},
        "lr .0125, decay .03, 1,000 steps": {"weight_decay": 0.03, "steps": 1000},
        "lr .05, decay .01, 1,000 steps": {"lr": 0.05, "weight_decay": 0.01, "steps": 1000},
        "lr .0125, decay .005, 300 steps": {"steps": 300},
        "lr .0125, decay .005, 600 steps": {"steps": 600},
    }
    columns = {
        f"{name}: {change}": {**gentle, "first_seed": 1, "arrays": sets[name], **options}
        for name in ("LabelMe", "700 x 60")
        if name in sets
        for change, options in changes.items()
    }
    steps = Table("steps", columns, {row: row for row in RULES}, seeds=1, metrics=("accuracy",), measure=measure)
    return [rules, steps]


if __name__ == "__main__":
    main(
        __doc__,
        tables,
        labelme="archive of LabelMe's features with y_one",
        features="archive of CIFAR-10's features with y_worst",
        **FASHION,
    )
