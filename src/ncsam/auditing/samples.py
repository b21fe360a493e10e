"""Outliers, by distances between embeddings, and label issues."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ncsam.auditing.findings import Finding, finding, reached
from ncsam.auditing.neighbors import Neighbors
from ncsam.issues.table import LabelIssues

Floats = npt.NDArray[np.float64]


def beyond_quartile(values: npt.ArrayLike) -> Floats:
    """Return (value - Q3) / (Q3 - Q1). Tukey's outer fence is at 3.

    Args:
        values: numbers (n,).

    Returns:
        Scores (n,); all 0 if the quartiles are equal.

    Examples:
        >>> beyond_quartile([0.0, 1.0, 2.0, 3.0, 12.0]).tolist()
        [-1.5, -1.0, -0.5, 0.0, 4.5]
    """
    given = np.asarray(values, dtype=np.float64)
    low, high = np.quantile(given, [0.25, 0.75]) if len(given) else (0.0, 0.0)
    return (given - high) / (high - low) if high > low else np.zeros(len(given))


def outlier_scores(distance: npt.NDArray[np.float32]) -> Floats:
    """Return `beyond_quartile` of the log mean distance to the nearest neighbors.

    Args:
        distance: distances to the nearest neighbors (N, k).

    Returns:
        Scores (N,); -inf for rows whose neighbors are all identical to them.
    """
    mean = distance.astype(np.float64).mean(axis=1) if distance.shape[1] else np.zeros(len(distance))
    positive = mean > 0
    scores = np.full(len(mean), -np.inf)
    scores[positive] = beyond_quartile(np.log(mean[positive]))
    return scores


def find_outliers(near: Neighbors) -> list[Finding]:
    """Find samples far from all others, with their nearest neighbors as evidence.

    Args:
        near: nearest neighbors of the training samples among themselves.

    Returns:
        A finding per outlier, worst first.
    """
    scores, found = outlier_scores(near.distance), []
    for i in reached("outlier", scores):
        said = f"{scores[i]:.1f} interquartile ranges beyond the third quartile of distances"
        related = tuple(f"train {other}" for other in near.index[i, :3].tolist())
        found.append(finding("outlier", scores[i], split="train", index=i, evidence=said, related=related))
    return found


def find_label_issues(issues: LabelIssues) -> list[Finding]:
    """Convert the flagged labels of a table of label issues to findings.

    Args:
        issues: the table, with class numbers.

    Returns:
        A finding per flagged label, in the order of the table.
    """
    wrong, quality = issues.numbers("p_wrong"), issues.numbers("label_quality")
    given, suggested = issues.numbers("given_label"), issues.numbers("suggested_label")
    names, index = issues.classes, issues.numbers("index")
    found = []
    for row in np.flatnonzero(issues.numbers("is_label_issue")).tolist():
        score = 1 - quality[row] if np.isnan(wrong[row]) else wrong[row]
        told = [str(each) if names is None else names[each] for each in (int(given[row]), int(suggested[row]))]
        evidence = f"given label {told[0]}, suggested label {told[1]}"
        place = {"split": "train", "index": int(index[row]), "target": int(suggested[row])}
        found.append(finding("label_issue", score, evidence=evidence, **place))
    return found
