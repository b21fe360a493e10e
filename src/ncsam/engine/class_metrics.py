"""Metrics by class: confusion matrices, the noise rate on held-out samples, and averages over the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from ncsam.data.types import UNKNOWN, Labels
from ncsam.engine.evaluate import Evaluator
from ncsam.noise import estimate_noise

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
_DRAWS = 200  # of the bootstrap
_MOST_NUMBERS = 2_000_000  # samples times classes of a bootstrap draw; with more, only the first samples are used
_FEWEST_SAMPLES = 20


@dataclass(frozen=True)
class NoiseRate:
    """An estimated share of wrong labels, with the bounds of a 95 % interval of a bootstrap.

    The interval covers sampling alone: errors of the model make the estimate too high.
    """

    rate: float
    low: float
    high: float
    samples: int


@dataclass(frozen=True)
class ByClass:
    """Counts (classes, classes), each `None` where there are no such samples.

    test: true class against predicted class. held_out: given label against predicted class, for samples that the
    network was not trained on. transition: estimated P(given label | true class), rows may be NaN.
    """

    test: Counts | None
    held_out: Counts | None
    transition: npt.NDArray[np.float64] | None
    noise: NoiseRate | None

    def arrays(self) -> dict[str, npt.NDArray[Any] | None]:
        """What `by_class.npz` holds, by name."""
        return {"test": self.test, "held_out": self.held_out, "transition": self.transition}


def measure_by_class(evaluator: Evaluator, networks: Sequence[nn.Module]) -> ByClass:
    """Evaluate once more, on the test split and on the held-out samples. Every rank must call it."""
    classes = evaluator.task.dataset.num_classes
    test = held_out = transition = noise = None
    if evaluator.test is not None:
        test = confusion(evaluator.test.split.labels, evaluator.predict(networks, evaluator.test).predicted, classes)
    if evaluator.val is not None:
        labels, probabilities = evaluator.out_of_sample(networks)
        held_out = confusion(labels, probabilities.argmax(axis=1), classes)
        known = labels != UNKNOWN
        if known.sum() >= _FEWEST_SAMPLES:
            noise = noise_rate(labels[known], probabilities[known])
            transition = estimate_noise(labels[known], probabilities[known]).transition
    return ByClass(test, held_out, transition, noise)


def confusion(labels: Labels, predicted: Labels, classes: int) -> Counts:
    """How many samples of each label (rows) were predicted as each class (columns)."""
    known = labels != UNKNOWN
    counts = np.bincount(labels[known] * classes + predicted[known], minlength=classes * classes)
    return counts.astype(np.int64).reshape(classes, classes)


def noise_rate(labels: Labels, probabilities: npt.NDArray[Any], seed: int = 0) -> NoiseRate:
    """By confident-learning counts; the interval by 200 bootstrap draws."""
    enough = max(_FEWEST_SAMPLES, _MOST_NUMBERS // probabilities.shape[1])
    labels, probabilities = labels[:enough], probabilities[:enough]
    random = np.random.default_rng(seed)
    draws = (random.integers(len(labels), size=len(labels)) for _ in range(_DRAWS))
    rates = [estimate_noise(labels[rows], probabilities[rows]).rate for rows in draws]
    low, high = np.percentile(rates, (2.5, 97.5))
    return NoiseRate(estimate_noise(labels, probabilities).rate, float(low), float(high), len(labels))


def balanced_accuracy(predicted: Labels, labels: Labels) -> float:
    """Mean over the classes in `labels` of the share of their samples that is predicted as such (recall)."""
    return float(np.mean([(predicted[labels == c] == c).mean() for c in np.unique(labels)]))


def macro_f1(predicted: Labels, labels: Labels) -> float:
    """Mean over the classes of 2 TP / (2 TP + FP + FN); classes that are neither labeled nor predicted do not count."""
    scores = []
    for c in np.union1d(labels, predicted):
        hit = int(((predicted == c) & (labels == c)).sum())
        scores.append(2 * hit / (int((predicted == c).sum()) + int((labels == c).sum())))
    return float(np.mean(scores))


def macro_auc(probabilities: Floats, labels: Labels) -> float | None:
    """Mean over the classes of the area under the ROC curve of one class against the rest; `None` for one class only.

    With two classes both areas are the same.
    """
    areas = []
    for c in np.unique(labels):
        positive = labels == c
        count, rest = int(positive.sum()), int((~positive).sum())
        if rest:
            ranked = _ranks(probabilities[:, c])
            areas.append((ranked[positive].sum() - count * (count + 1) / 2) / (count * rest))
    return float(np.mean(areas)) if areas else None


def class_metrics(probabilities: Floats, labels: Labels) -> dict[str, float | None]:
    """Balanced accuracy, mean F1 and mean AUC of test predictions, in percent, as a record of metrics names them."""
    predicted = probabilities.argmax(axis=1)
    values = {"test_balanced_accuracy": balanced_accuracy(predicted, labels), "test_f1": macro_f1(predicted, labels)}
    found: dict[str, float | None] = {name: 100 * value for name, value in values.items()}
    area = macro_auc(probabilities, labels)
    return {**found, "test_auc": None if area is None else 100 * area}


def _ranks(scores: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(sizes) - (sizes - 1) / 2)[inverse]
    return found
