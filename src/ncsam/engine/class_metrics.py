"""Metrics by class: confusion matrices, the noise rate on held-out samples, and averages over the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from ncsam.data.types import UNKNOWN, Labels
from ncsam.issues.noise_rate import noise_rate_of
from ncsam.noise import estimate_noise

if TYPE_CHECKING:
    from ncsam.engine.evaluate import Evaluator

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MOST_NUMBERS = 10_000_000  # samples times classes for which an AUC is computed after every epoch
_FEWEST_SAMPLES = 20


@dataclass(frozen=True)
class ByClass:
    """Counts (classes, classes), each `None` where there are no such samples.

    test: true class against predicted class. held_out: given label against predicted class, for samples that the
    network was not trained on. transition: estimated P(given label | true class), rows may be NaN. noise: see
    `noise_rate_of`.
    """

    test: Counts | None
    held_out: Counts | None
    transition: npt.NDArray[np.float64] | None
    noise: dict[str, Any] | None

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
            noise = noise_rate_of(labels[known], probabilities[known])
            transition = estimate_noise(labels[known], probabilities[known]).transition
    return ByClass(test, held_out, transition, noise)


def confusion(labels: Labels, predicted: Labels, classes: int) -> Counts:
    """How many samples of each label (rows) were predicted as each class (columns)."""
    known = labels != UNKNOWN
    counts = np.bincount(labels[known] * classes + predicted[known], minlength=classes * classes)
    return counts.astype(np.int64).reshape(classes, classes)


def balanced_accuracy(predicted: Labels, labels: Labels) -> float:
    """Mean over the classes in `labels` of the share of their samples that is predicted as such (recall)."""
    hits, given, _ = _counts(predicted, labels)
    return float((hits[given > 0] / given[given > 0]).mean())


def macro_f1(predicted: Labels, labels: Labels) -> float:
    """Mean over the classes of 2 TP / (2 TP + FP + FN); classes that are neither labeled nor predicted do not count."""
    hits, given, found = _counts(predicted, labels)
    there = given + found > 0
    return float((2 * hits[there] / (given + found)[there]).mean())


def macro_auc(probabilities: npt.NDArray[np.floating[Any]], labels: Labels) -> float | None:
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


def class_metrics(
    split: str, predicted: Labels, labels: Labels, probabilities: npt.NDArray[np.floating[Any]] | None
) -> dict[str, float | None]:
    """Balanced accuracy, mean F1 and mean AUC in percent, as a record of metrics names them.

    Args:
        split: "test" or "val", before the names.
        predicted: classes (n,).
        labels: (n,); samples whose label is not known do not count.
        probabilities: (n, K); without, and for more than ten million numbers, there is no AUC.
    """
    names = [f"{split}_{metric}" for metric in ("balanced_accuracy", "f1", "auc")]
    known = labels != UNKNOWN
    if not known.any():
        return dict.fromkeys(names)
    predicted, labels = predicted[known], labels[known]
    area = None
    if probabilities is not None and probabilities.size <= MOST_NUMBERS:
        area = macro_auc(probabilities[known], labels)
    values = (balanced_accuracy(predicted, labels), macro_f1(predicted, labels), area)
    return {name: None if value is None else 100 * value for name, value in zip(names, values, strict=True)}


def _counts(predicted: Labels, labels: Labels) -> tuple[Labels, Labels, Labels]:
    """Of every class: samples that are both, that are labeled so, and that are predicted so."""
    classes = int(max(predicted.max(), labels.max())) + 1
    hits, given, found = (
        np.bincount(each, minlength=classes) for each in (labels[predicted == labels], labels, predicted)
    )
    return hits, given, found


def _ranks(scores: npt.NDArray[np.floating[Any]]) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(sizes) - (sizes - 1) / 2)[inverse]
    return found
