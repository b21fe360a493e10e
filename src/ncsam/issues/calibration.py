"""Class probabilities made to fit given labels, each sample's by a map that was fitted without its label.

    q = softmax(a log p + D log p + b),  fitted by  max of mean log (q T)[s] - |b|^2 / 1000 - c / N |D|^2

p is a prediction, s the given label of its sample, N the number of samples, T the transition matrix that makes
labels of true classes, the identity where q is to predict the labels themselves. A stiffness c of infinity is D = 0: a
scale and a shift for each class. A matrix D fixes classes that are taken for one another, which a scale cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._guards import without_guards
from ncsam.issues.folds import stratified_folds

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

#: What is tried; the labels of samples that were not fitted decide.
STIFFNESS = (math.inf, 10.0, 1.0)
_PARTS = 3
_MOST_SAMPLES = 3000  # that a map is fitted to
_MOST_CLASSES = 30  # for which a matrix is tried
_SMALLEST = 1e-6


def calibrated(
    probabilities: Floats, labels: Labels, transition: Floats | None = None, stiffness: float = math.inf
) -> tuple[Floats, float]:
    """q of every sample, and the mean scale a. The samples are cut into three parts, each mapped as fits the others."""
    logs = torch.from_numpy(np.log(np.clip(probabilities, _SMALLEST, 1.0)))
    given = torch.from_numpy(labels.copy())
    noise = None if transition is None else torch.from_numpy(transition)
    parts = stratified_folds(labels, min(_PARTS, len(labels)))
    generator = np.random.default_rng(0)
    fitted = torch.empty_like(logs)
    scales = []
    for part in np.unique(parts):
        others = generator.permutation(np.flatnonzero(parts != part))[:_MOST_SAMPLES]
        scale, mapped = _fit(logs[others], given[others], noise, stiffness)
        here = torch.from_numpy(parts == part)
        fitted[here] = mapped(logs[here])
        scales.append(scale)
    return fitted.numpy(), float(np.mean(scales))


def best_stiffness(probabilities: Floats, labels: Labels) -> tuple[float, Floats, float]:
    """That of `STIFFNESS` whose maps give the given labels the largest likelihood, its q, and the scale at D = 0."""
    tried = STIFFNESS if probabilities.shape[1] <= _MOST_CLASSES else STIFFNESS[:1]
    found = {stiffness: calibrated(probabilities, labels, stiffness=stiffness) for stiffness in tried}
    every = np.arange(len(labels))

    def loss(stiffness: float) -> float:
        return float(-np.log(np.maximum(found[stiffness][0][every, labels], _SMALLEST)).mean())

    best = min(tried, key=loss)
    return best, found[best][0], found[math.inf][1]


def _fit(
    logs: Tensor, labels: Tensor, noise: Tensor | None, stiffness: float
) -> tuple[float, Callable[[Tensor], Tensor]]:
    """The scale, and the map of further log probabilities to q."""
    size = logs.shape[1]
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    shift = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    matrix = torch.zeros(size, size, dtype=torch.float64, requires_grad=math.isfinite(stiffness))
    free = [log_scale, shift, *([matrix] if matrix.requires_grad else [])]
    optimizer = without_guards(torch.optim.LBFGS)(free, max_iter=100, line_search_fn="strong_wolfe")

    def scores(given: Tensor) -> Tensor:
        linear = log_scale.exp() * given + shift
        return linear + given @ matrix if matrix.requires_grad else linear

    def objective() -> Tensor:
        optimizer.zero_grad()
        found = scores(logs)
        log_p = found.log_softmax(dim=1) if noise is None else (found.softmax(dim=1) @ noise).log()
        loss = torch.nn.functional.nll_loss(log_p, labels) + (shift**2).sum() / 1000
        if matrix.requires_grad:
            loss = loss + stiffness / len(labels) * (matrix**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(objective)

    @torch.no_grad()
    def mapped(given: Tensor) -> Tensor:
        return scores(given).softmax(dim=1)

    return float(log_scale.detach().exp()), mapped
