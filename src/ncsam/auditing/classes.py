"""Rare, overlapping and heterogeneous classes, and annotators who disagree."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam.auditing.duplicates import groups
from ncsam.auditing.findings import CHECKS, Finding, finding, reached
from ncsam.auditing.neighbors import nearest
from ncsam.issues.find import auroc

Labels = npt.NDArray[np.int64]
_NEIGHBORS = 5
_LEAST = 20  # samples of a class or pair for which a statement is made
_MOST_ROWS = 20_000  # of a class whose graph is built
ABSENT = -1  # in place of an annotator's answer


def find_rare(labels: Labels, classes: Sequence[str]) -> list[Finding]:
    """Find classes with less than a tenth of the mean number of samples.

    Args:
        labels: given labels (n,).
        classes: class names.

    Returns:
        A finding per class, rarest first. Classes without any sample are not reported.
    """
    counts = np.bincount(labels, minlength=len(classes))
    mean = len(labels) / len(classes)
    scores = np.where(counts, mean / np.maximum(counts, 1), 0)
    said = f"{{:,}} samples; the mean is {mean:,.1f}"
    return [
        finding("rare_class", scores[c], index=c, name=classes[c], evidence=said.format(counts[c]))
        for c in reached("rare_class", scores)
    ]


def overlap(labels: Labels, probabilities: npt.NDArray[np.floating], one: int, other: int) -> float:
    """Return 2 (1 - AUC) of :math:`p_b / (p_a + p_b)` for samples labeled a or b.

    Args:
        labels: given labels (n,).
        probabilities: out-of-fold class probabilities (n, K).
        one: number of class a.
        other: number of class b.

    Returns:
        0 for classes that are well separated, 1 for classes that cannot be told apart.
    """
    rows = (labels == one) | (labels == other)
    a, b = (probabilities[rows, c].astype(np.float64) for c in (one, other))
    area = auroc(b / np.maximum(a + b, 1e-12), labels[rows] == other)
    return float(np.clip(2 * (1 - area), 0, 1)) if area is not None else 0.0


def find_overlapping(labels: Labels, probabilities: npt.NDArray[np.floating], classes: Sequence[str]) -> list[Finding]:
    """Find pairs of classes that out-of-fold predictions cannot tell apart. `clean` merges the rarer into the other.

    Args:
        labels: given labels (n,).
        probabilities: out-of-fold class probabilities (n, K).
        classes: class names.

    Returns:
        A finding per pair, worst first. Classes with fewer than 20 samples are not judged.
    """
    counts = np.bincount(labels, minlength=len(classes))
    confused = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confused, (labels, probabilities.argmax(axis=1)), 1)
    found = []
    for one, other in combinations(np.flatnonzero(counts >= _LEAST).tolist(), 2):
        if not confused[one, other] + confused[other, one]:
            continue  # of many classes few pairs are ever confused
        score = overlap(labels, probabilities, one, other)
        if score >= CHECKS["overlapping_classes"].threshold:
            rare, common = sorted((one, other), key=lambda c: (counts[c], -c))
            mixed = confused[one, other] + confused[other, one]
            said = f"AUC {1 - score / 2:.2f}; {mixed:,} of {counts[one] + counts[other]:,} predicted as the other class"
            name = f"{classes[rare]} / {classes[common]}"
            found.append(finding("overlapping_classes", score, name=name, evidence=said, target=common, index=rare))
    return sorted(found, key=lambda each: -each.score)


def component_share(rows: npt.ArrayLike) -> tuple[float, Labels]:
    """Measure how far rows fall into separate groups, by the graph of 5 nearest neighbors.

    Components of fewer than 5 rows are considered outliers rather than groups and are not counted.

    Args:
        rows: embeddings (n, d).

    Returns:
        The share of rows outside the largest component, and each row's component.
    """
    near = nearest(rows, _NEIGHBORS)
    pairs = [(i, j, 0.0) for i, others in enumerate(near.index.tolist()) for j in others]
    component = groups(pairs, len(near.index))
    _, inverse, counts = np.unique(component, return_inverse=True, return_counts=True)
    sizes = counts[inverse]
    counted = sizes >= _NEIGHBORS
    if not counted.any():
        return 0.0, component
    return float(1 - counts.max() / counted.sum()), component


def find_heterogeneous(
    labels: Labels, features: npt.NDArray[np.float32], classes: Sequence[str], without: Labels | None = None
) -> list[Finding]:
    """Find classes whose samples form separate groups, and the samples of all groups but the largest.

    Args:
        labels: given labels (n,).
        features: embeddings (n, d).
        classes: class names.
        without: positions of samples to leave out, such as label issues, which form separate groups. `None`: none.

    Returns:
        A finding per class, to be reviewed, and one per sample, to be dropped.
    """
    kept = np.ones(len(labels), dtype=bool)
    kept[[] if without is None else without] = False
    found = []
    for c, name in enumerate(classes):
        members = np.flatnonzero(kept & (labels == c))[:_MOST_ROWS]
        if len(members) < _LEAST:
            continue
        score, component = component_share(features[members])
        if score < CHECKS["heterogeneous_class"].threshold:
            continue
        parts = [members[component == part] for part in np.unique(component)]
        parts = sorted((part for part in parts if len(part) >= _NEIGHBORS), key=len, reverse=True)
        about: dict[str, Any] = {"evidence": f"groups of {', '.join(f'{len(part):,}' for part in parts[:5])} samples"}
        about["related"] = tuple(f"train {part[0]}" for part in parts[:5])
        found.append(finding("heterogeneous_class", score, name=name, index=c, decision="review", **about))
        for part in parts[1:]:
            about = {"split": "train", "evidence": f"one of {len(part):,} samples apart from the rest of class {name}"}
            found += [finding("heterogeneous_class", score, index=i, **about) for i in part.tolist()]
    return sorted(found, key=lambda each: -each.score)


# --- annotators


def find_annotators(names: Sequence[str], accuracy: npt.ArrayLike, num_classes: int) -> list[Finding]:
    """Find annotators whose estimated accuracy is closer to chance, 1 / K, than to the median annotator's.

    Args:
        names: names of the annotators.
        accuracy: estimated accuracy of each, as a fraction.
        num_classes: number of classes K.
    """
    given = np.asarray(accuracy, dtype=np.float64)
    chance, median = 1 / num_classes, float(np.median(given)) if len(given) else 0.0
    scores = (median - given) / (median - chance) if median > chance else np.zeros(len(given))
    said = f"estimated accuracy {{:.0f}} %; the median is {100 * median:.0f} %"
    return [
        finding("annotator", scores[i], name=names[i], evidence=said.format(100 * given[i]), decision="review")
        for i in reached("annotator", scores)
    ]


def find_disagreement(answers: Labels, classes: Sequence[str]) -> list[Finding]:
    """Find samples whose most frequent answer has no majority.

    Args:
        answers: class numbers (samples, annotators), -1 where an annotator gave no answer.
        classes: class names.

    Returns:
        A finding per sample with at least two answers, worst first.
    """
    votes = np.stack([(answers == c).sum(axis=1) for c in range(len(classes))], axis=1)
    total = votes.sum(axis=1)
    scores, found = np.where(total >= 2, 1 - votes.max(axis=1) / np.maximum(total, 1), 0), []
    for i in reached("disagreement", scores):
        said = ", ".join(f"{classes[c]} {votes[i, c]}" for c in np.argsort(-votes[i], kind="stable") if votes[i, c])
        found.append(finding("disagreement", scores[i], split="train", index=i, evidence=f"answers: {said}"))
    return found


def without_annotators(
    answers: Labels, names: Sequence[str], bad: Sequence[Finding], labels: Labels, classes: Sequence[str]
) -> list[Finding]:
    """Find samples that change if the reported annotators are left out.

    Args:
        answers: class numbers (samples, annotators), -1 where an annotator gave no answer.
        names: names of the annotators, in the order of the columns.
        bad: findings of `find_annotators`.
        labels: given labels (samples,).
        classes: class names.

    Returns:
        A finding per sample with another majority ("relabel"), or that only these annotators answered ("drop").
    """
    left_out = {each.name for each in bad}
    if not left_out:
        return []
    kept = answers[:, [name not in left_out for name in names]]
    votes = np.stack([(kept == c).sum(axis=1) for c in range(len(classes))], axis=1)
    moved = votes[np.arange(len(labels)), labels] < votes.max(axis=1)
    who, worst, found = ", ".join(sorted(left_out)), max(each.score for each in bad), []
    for i in np.flatnonzero(moved | ~votes.any(axis=1)).tolist():
        about: dict[str, Any] = {"evidence": f"only {who} answered", "decision": "drop"}
        if moved[i]:
            new = int(votes[i].argmax())
            about = {"evidence": f"without {who} the majority is {classes[new]}", "target": new}
        found.append(finding("annotator", worst, split="train", index=i, **about))
    return found
