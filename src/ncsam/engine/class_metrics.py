"""Metrics that count every class the same: balanced accuracy, F1 and the area under the ROC curve."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


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
