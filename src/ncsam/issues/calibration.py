"""Class probabilities made to fit given labels, each sample's by a map that was fitted without its label.

    q = softmax(a log p + D log p + b),  fitted by  max of mean log (q T)[s] - |b|^2 / 1000 - c / N |D|^2

p is a prediction, s the given label of its sample, N the number of samples, T the transition matrix that makes
labels of true classes, the identity where q is to predict the labels themselves. A stiffness c of infinity is D = 0: a
scale and a shift for each class. A matrix D fixes classes that are taken for one another, which a scale cannot.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def stratified_folds(labels: npt.ArrayLike, folds: int, seed: int = 0) -> Labels:
    """The part, 0 to `folds` - 1, of every sample.

    Each class is shuffled and dealt out in turn, each class continuing where the one before it stopped: the parts
    differ by at most one sample in every class, and by at most one in total.

    Args:
        labels: (N,) class numbers or names.
        folds: number of parts, 2 to N.
        seed: of the shuffling.

    Returns:
        (N,) part numbers.
    """
    given = np.asarray(labels)
    if given.ndim != 1:
        raise bad_value("labels.shape", given.shape, "one label per sample")
    if isinstance(folds, bool) or not 2 <= folds <= len(given):
        raise bad_value("folds", folds, f"a whole number from 2 to the number of samples, {len(given):,}")
    generator = np.random.default_rng(seed)
    order = np.concatenate([generator.permutation(np.flatnonzero(given == c)) for c in np.unique(given)])
    parts = np.empty(len(given), dtype=np.int64)
    parts[order] = np.arange(len(given)) % folds
    return parts


def parse_fold(text: str) -> tuple[int, int]:
    """`"2/5"`, the second part of five, as (2, 5).

    Args:
        text: `PART/PARTS`; the part counts from 1, and there are at least two.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) or int(found[2]) < 2:
        raise bad_value("fold", text, "PART/PARTS such as 2/5: the part that is held out, and the number of parts")
    return int(found[1]), int(found[2])


def labels_sha256(labels: Labels) -> str:
    """SHA-256 of labels as little-endian 64-bit integers in order; tells whether predictions belong to them.

    Args:
        labels: (N,) class numbers.
    """
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


#: What is tried; the labels of samples that were not fitted decide.
STIFFNESS = (math.inf, 10.0, 1.0)
_PARTS = 3
_MOST_SAMPLES = 3000  # that a map is fitted to
_MOST_CLASSES = 30  # for which a matrix is tried
_SMALLEST = 1e-6
_MOST_LOG_SCALE = 20.0


def calibrated(
    probabilities: Floats, labels: Labels, transition: Floats | None = None, stiffness: float = math.inf
) -> tuple[Floats, float]:
    """q of every sample, and the mean scale a. The samples are cut into three parts, each mapped as fits the others.

    Args:
        probabilities: (N, K) predictions.
        labels: (N,) given labels.
        transition: T, (K, K) with rows of sum 1, from true classes to given labels; `None` is the identity.
        stiffness: c, above 0; infinity leaves D out.

    Returns:
        q (N, K), and the mean of a over the parts.
    """
    logs = np.log(np.clip(probabilities, _SMALLEST, 1.0)).astype(np.float64)
    parts = stratified_folds(labels, min(_PARTS, len(labels)))
    generator = np.random.default_rng(0)
    fitted = np.empty_like(logs)
    scales = []
    for part in np.unique(parts):
        others = generator.permutation(np.flatnonzero(parts != part))[:_MOST_SAMPLES]
        scale, mapped = _fit(logs[others], labels[others], transition, stiffness)
        fitted[parts == part] = mapped(logs[parts == part])
        scales.append(scale)
    return fitted, float(np.mean(scales))


def best_stiffness(probabilities: Floats, labels: Labels) -> tuple[float, Floats, float]:
    """That of `STIFFNESS` whose maps give the given labels the largest likelihood, its q, and the scale at D = 0.

    Args:
        probabilities: (N, K) predictions; above 30 classes, infinity alone is tried.
        labels: (N,) given labels.
    """
    tried = STIFFNESS if probabilities.shape[1] <= _MOST_CLASSES else STIFFNESS[:1]
    found = {stiffness: calibrated(probabilities, labels, stiffness=stiffness) for stiffness in tried}
    every = np.arange(len(labels))

    def loss(stiffness: float) -> float:
        return float(-np.log(np.maximum(found[stiffness][0][every, labels], _SMALLEST)).mean())

    best = min(tried, key=loss)
    return best, found[best][0], found[math.inf][1]


def _fit(
    logs: Floats, labels: Labels, noise: Floats | None, stiffness: float
) -> tuple[float, Callable[[Floats], Floats]]:
    """The scale, and the map of further log probabilities to q."""
    count, size = logs.shape
    free = math.isfinite(stiffness)
    columns = (np.eye(size) if noise is None else noise)[:, labels]  # T[:, s] of every sample
    by_class = np.ascontiguousarray(logs.T)  # numpy is several times faster along the longer axis

    def unpacked(x: Floats) -> tuple[float, Floats, Floats]:
        return math.exp(x[0]), x[1 : 1 + size, None], x[1 + size :].reshape(-1, size)

    def mapped(given: Floats, x: Floats) -> Floats:
        scale, shift, matrix = unpacked(x)
        found: Floats = scale * given + shift
        if free:
            found += matrix.T @ given
        found -= found.max(axis=0)
        np.exp(found, out=found)
        found /= found.sum(axis=0)
        return found

    def objective(x: Floats) -> tuple[float, Floats]:
        if x[0] > _MOST_LOG_SCALE:  # a line search that went too far
            return math.inf, x
        scale, shift, matrix = unpacked(x)
        q = mapped(by_class, x)
        likelihood = np.maximum((q * columns).sum(axis=0), 1e-300)
        loss = -float(np.log(likelihood).mean()) + float((shift**2).sum()) / 1000
        by_score = columns / likelihood  # in place from here on: q (1 - columns / likelihood) / count
        np.subtract(1, by_score, out=by_score)
        by_score *= q
        by_score /= count
        parts = [np.array([scale * float(np.vdot(by_score, by_class))]), by_score.sum(axis=1) + shift[:, 0] / 500]
        if free:
            loss += stiffness / count * float((matrix**2).sum())
            parts.append((by_class @ by_score.T + 2 * stiffness / count * matrix).ravel())
        return loss, np.concatenate(parts)

    best = minimize(objective, np.zeros(1 + size + (size * size if free else 0)))
    return math.exp(best[0]), lambda given: mapped(given.T, best).T


def minimize(
    objective: Callable[[Floats], tuple[float, Floats]], start: Floats, most: int = 100, memory: int = 10
) -> Floats:
    """The minimum of a smooth function by L-BFGS with halved steps.

    Args:
        objective: gives value and gradient.
        start: where to begin.
        most: number of iterations.
        memory: number of pairs of steps and gradient differences that are kept.

    Returns:
        The point at which no component of the gradient exceeds 1e-6, or no further step helps.

    References:
        Nocedal and Wright, Numerical Optimization, 2006, algorithm 7.4.
    """
    x, (value, gradient) = start, objective(start)
    pairs: list[tuple[Floats, Floats, float]] = []
    for _ in range(most):
        if np.abs(gradient).max() <= 1e-6:
            break
        direction = -_two_loops(gradient, pairs)
        step = 1.0 if pairs else min(1.0, 1.0 / float(np.abs(gradient).sum()))
        slope = float(gradient @ direction)
        while True:
            ahead = x + step * direction
            found, slopes = objective(ahead)
            if found <= value + 1e-4 * step * slope:
                break
            step /= 2
            if step < 1e-10:
                return x
        moved, turned = ahead - x, slopes - gradient
        if (curvature := float(moved @ turned)) > 1e-12:
            pairs = [*pairs[1 - memory :], (moved, turned, curvature)]
        finished = value - found < 1e-10
        x, value, gradient = ahead, found, slopes
        if finished:
            break
    return x


def _two_loops(gradient: Floats, pairs: list[tuple[Floats, Floats, float]]) -> Floats:
    """The gradient times the estimate of the inverse Hessian."""
    rest, factors = gradient, []
    for moved, turned, curvature in reversed(pairs):
        factors.append(float(moved @ rest) / curvature)
        rest = rest - factors[-1] * turned
    if pairs:
        _, turned, curvature = pairs[-1]
        rest = rest * (curvature / float(turned @ turned))
    for (moved, turned, curvature), factor in zip(pairs, reversed(factors), strict=True):
        rest = rest + (factor - float(turned @ rest) / curvature) * moved
    return rest
