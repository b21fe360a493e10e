"""Exact and near duplicates: within the training split, with different labels, and across splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam.auditing.findings import CHECKS, Finding, finding
from ncsam.auditing.neighbors import Neighbors, nearest

Labels = npt.NDArray[np.int64]
Pair = tuple[int, int, float]  # (first, second, score)


def exact_pairs(keys: Sequence[str]) -> list[Pair]:
    """Pair every repeated key with its first occurrence.

    Args:
        keys: a key per sample, equal for samples with the same content.

    Returns:
        (first, later, 1.0) for every repetition.

    Examples:
        >>> exact_pairs(["a", "b", "a", "a"])
        [(0, 2, 1.0), (0, 3, 1.0)]
    """
    first: dict[str, int] = {}
    return [(first[key], i, 1.0) for i, key in enumerate(keys) if first.setdefault(key, i) != i]


def near_pairs(near: Neighbors, threshold: float = CHECKS["near_duplicate"].threshold) -> list[Pair]:
    """Find pairs i < j with a score :math:`1 - d_{ij} / m` of at least `threshold`.

    m is the median distance of a row to its nearest neighbor that is not identical. If more than half of the rows have
    a near duplicate, m is small and few pairs are found.

    Args:
        near: the nearest neighbors of all rows among themselves.
        threshold: the smallest score.

    Returns:
        (i, j, score), sorted by i and j.
    """
    if not near.distance.size:
        return []
    typical = typical_distance(near.distance)
    score = 1 - near.distance.astype(np.float64) / typical if typical > 0 else (near.distance == 0).astype(np.float64)
    rows, places = np.nonzero(score >= threshold)
    others = near.index[rows, places]
    found = {
        (min(i, j), max(i, j)): float(score[i, p])
        for i, j, p in zip(rows.tolist(), others.tolist(), places, strict=True)
    }
    return [(i, j, found[i, j]) for i, j in sorted(found)]


def typical_distance(distance: npt.NDArray[np.float32]) -> float:
    """Return the median distance to the nearest neighbor that is not identical.

    Args:
        distance: distances to the nearest neighbors (N, k).

    Returns:
        The distance; 0 if all neighbors are identical.
    """
    positive = np.where(distance > 0, distance, np.inf).min(axis=1)
    return float(np.median(positive[np.isfinite(positive)])) if np.isfinite(positive).any() else 0.0


def groups(pairs: Sequence[Pair], size: int) -> Labels:
    """Join samples that are connected by pairs.

    Args:
        pairs: (first, second, score); the score is not used.
        size: number of samples.

    Returns:
        The smallest member of each sample's group (size,).
    """
    root = np.arange(size)

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = int(root[i])
        return i

    for one, other, _ in pairs:
        a, b = find(one), find(other)
        root[max(a, b)] = min(a, b)
    return np.array([find(i) for i in range(size)], dtype=np.int64)


def find_duplicates(
    labels: Labels,
    keys: Sequence[str],
    near: Neighbors | None = None,
    classes: Sequence[str] | None = None,
) -> list[Finding]:
    """Find duplicates within the training split. The first of each group is kept, unless their labels differ.

    Args:
        labels: given labels (n,).
        keys: a key per sample, equal for samples with the same content, such as a hash.
        near: nearest neighbors of the embeddings. `None`: only exact duplicates are found.
        classes: class names, for the evidence. `None` shows class numbers.

    Returns:
        At most one finding per sample, most similar first.
    """
    exact = exact_pairs(keys)
    near_ones = near_pairs(near) if near is not None else []
    every = {(i, j): (score, "near_duplicate") for i, j, score in near_ones if keys[i] != keys[j]}
    every |= {(i, j): (1.0, "exact_duplicate") for i, j, _ in exact}
    group = groups([(i, j, score) for (i, j), (score, _) in every.items()], len(labels))
    mixed = {int(g) for (i, j) in every for g in [group[i]] if labels[i] != labels[j]}
    found: dict[int, Finding] = {}
    for (i, j), (score, check) in sorted(every.items(), key=lambda each: -each[1][0]):
        conflict = int(group[i]) in mixed
        for one, other in ((j, i), (i, j)) if conflict else ((j, i),):
            if one in found:
                continue
            names = [_class(classes, labels[each]) for each in (one, other)]
            kind = "identical" if check == "exact_duplicate" else f"similarity {score:.2f}"
            said = f"labels {names[0]} and {names[1]}" if conflict else f"label {names[0]}"
            found[one] = finding(
                "conflicting_duplicate" if conflict else check,
                score,
                split="train",
                index=one,
                evidence=f"{kind} to training sample {other}, {said}",
                related=(f"train {other}",),
            )
    return sorted(found.values(), key=lambda each: (-each.score, each.index))


def find_leaks(
    keys: Sequence[str],
    others: Mapping[str, Sequence[str]],
    features: Any = None,
    other_features: Mapping[str, Any] | None = None,
    typical: float | None = None,
) -> list[Finding]:
    """Find training samples that also occur in another split, identically or almost.

    Args:
        keys: keys of the training samples, as for `find_duplicates`.
        others: keys of the other splits, by name of the split.
        features: embeddings of the training samples. `None`: only exact duplicates are found.
        other_features: embeddings of the other splits, by name of the split.
        typical: the `typical_distance` among the training samples. `None`: only exact duplicates are found.

    Returns:
        At most one finding per training sample, most similar first.
    """
    found: dict[int, Finding] = {}
    for split, theirs in others.items():
        for one, other, score in _across(keys, theirs, features, (other_features or {}).get(split), typical):
            if one not in found or found[one].score < score:
                kind = "identical" if score == 1 else f"similarity {score:.2f}"
                about = {"split": "train", "index": one, "evidence": f"{kind} to {split} sample {other}"}
                found[one] = finding("train_test_duplicate", score, **about, related=(f"{split} {other}",))
    return sorted(found.values(), key=lambda each: (-each.score, each.index))


def _across(
    keys: Sequence[str], theirs: Sequence[str], features: Any, other: Any, typical: float | None
) -> Iterator[Pair]:
    place = {key: i for i, key in reversed([*enumerate(theirs)])}
    for i, key in enumerate(keys):
        if key in place:
            yield i, place[key], 1.0
    if features is None or other is None or not typical or not len(other):
        return
    near = nearest(other, 10, among=features)
    score = 1 - near.distance.astype(np.float64) / typical
    for row, position in zip(*np.nonzero(score >= CHECKS["near_duplicate"].threshold), strict=True):
        one = int(near.index[row, position])
        if keys[one] not in place:
            yield one, int(row), float(min(score[row, position], np.nextafter(1.0, 0.0)))


def _class(classes: Sequence[str] | None, label: Any) -> str:
    return str(label) if classes is None else classes[int(label)]
