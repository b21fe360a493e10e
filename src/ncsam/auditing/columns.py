"""Columns of a table that name the rows, give the label away, or differ between train and test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam.auditing.findings import CHECKS, Finding, finding
from ncsam.issues.find import auroc
from ncsam.issues.folds import stratified_folds

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
_BINS = 64  # of a column of numbers
_FOLDS = 5
_LEAST = 20  # rows
_P = 0.01  # of all columns together, below which a shift counts


def as_numbers(values: Sequence[Any]) -> Floats | None:
    """A column as floats, NaN where a value is missing; `None` where some value is no number."""
    found = np.full(len(values), np.nan)
    for i, value in enumerate(values):
        if value is None or value == "":
            continue
        try:
            found[i] = float(value)
        except (TypeError, ValueError):
            return None
    return found


def distinct_share(values: Sequence[Any]) -> float:
    """The share of distinct values among those that are not missing."""
    known = [str(value) for value in values if value is not None and value != ""]
    return len(set(known)) / len(known) if known else 0.0


def is_id(values: Sequence[Any]) -> bool:
    """Whether distinct values look like names of rows: single words, or whole numbers that count up or down.

    Measurements and free text are distinct, too: numbers with a fraction, whole numbers in no order and texts of
    several words are no IDs.
    """
    known = [value for value in values if value is not None and value != ""]
    if len(known) < _LEAST or distinct_share(values) < CHECKS["id_column"].threshold:
        return False
    numbers = as_numbers(known)
    if numbers is None:
        return float(np.mean([" " in str(value).strip() for value in known])) < 0.1
    steps = np.diff(numbers)
    whole = bool(np.isfinite(numbers).all()) and bool((numbers == np.round(numbers)).all())
    return whole and max(float((steps > 0).mean()), float((steps < 0).mean())) >= 0.95


def codes(values: Sequence[Any], numbers: Floats | None) -> Labels:
    """A column as category numbers: quantile bins of numbers, else distinct values; missing ones are a category."""
    if numbers is None:
        order = {value: i for i, value in enumerate(sorted({str(v) for v in values}))}
        return np.array([order[str(v)] for v in values], dtype=np.int64)
    known = np.isfinite(numbers)
    found = np.zeros(len(numbers), dtype=np.int64)
    distinct = np.unique(numbers[known])
    edges = (
        distinct if len(distinct) <= _BINS else np.unique(np.quantile(numbers[known], np.linspace(0, 1, _BINS + 1)[1:]))
    )
    found[known] = 1 + np.searchsorted(edges, numbers[known])
    return found


def label_auc(values: Sequence[Any], labels: Labels) -> float:
    """Mean one-vs-rest AUC of the labels, weighted by class, predicted from one column alone.

    A sample's class probabilities are the frequencies of its category in the other four folds (one added for every
    class), so that a column of distinct values, which cannot be learned, has an AUC of about 0.5.
    """
    category = codes(values, as_numbers(values))
    size, kinds = int(labels.max()) + 1, int(category.max()) + 1
    part = stratified_folds(labels, min(_FOLDS, len(labels)))
    share = np.bincount(labels, minlength=size) / len(labels)
    chances = np.empty((len(labels), size))
    for fold in range(int(part.max()) + 1):
        seen, held = part != fold, part == fold
        counts = np.zeros((kinds, size))
        np.add.at(counts, (category[seen], labels[seen]), 1)
        chances[held] = ((counts + share) / (counts.sum(axis=1, keepdims=True) + 1))[category[held]]
    areas = [(share[c], auroc(chances[:, c], labels == c)) for c in np.unique(labels)]
    known = [(weight, area) for weight, area in areas if area is not None]
    return float(sum(w * a for w, a in known) / sum(w for w, _ in known)) if known else 0.5


def find_columns(table: Mapping[str, Sequence[Any]], labels: Labels) -> list[Finding]:
    """ID-like and label-leaking columns of the training rows."""
    found = []
    for name, values in table.items():
        if len(values) < _LEAST:
            continue
        if is_id(values):
            share = distinct_share(values)
            found.append(finding("id_column", share, name=name, evidence=f"{100 * share:.0f} % of the values differ"))
        area = label_auc(values, labels)
        if area >= CHECKS["leaking_column"].threshold:
            found.append(
                finding("leaking_column", area, name=name, evidence=f"AUC {area:.3f} without any other column")
            )
    return sorted(found, key=lambda each: -each.score)


# --- train and test


def ks_statistic(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """The largest distance between two empirical distribution functions (two-sample Kolmogorov-Smirnov).

    >>> ks_statistic([1, 2, 3, 4], [3, 4, 5, 6])
    0.5
    """
    one, other = np.sort(np.asarray(a, dtype=np.float64)), np.sort(np.asarray(b, dtype=np.float64))
    both = np.concatenate([one, other])
    cdfs = [np.searchsorted(each, both, side="right") / len(each) for each in (one, other)]
    return float(np.abs(cdfs[0] - cdfs[1]).max())


def total_variation(a: Sequence[Any], b: Sequence[Any]) -> float:
    """Half the sum of the differences between the frequencies of values."""
    values = sorted({str(v) for v in a} | {str(v) for v in b})
    place = {value: i for i, value in enumerate(values)}
    shares = [np.bincount([place[str(v)] for v in each], minlength=len(values)) / len(each) for each in (a, b)]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def noise_level(n: int, m: int, kinds: int, tests: int) -> float:
    r"""The statistic that equal distributions exceed with a probability of at most 1 % over all tests.

    Kolmogorov-Smirnov, asymptotically :math:`\sqrt{\ln(2 t / .01) (n + m) / (2 n m)}` for t tests; for the total
    variation of c categories :math:`\sqrt{c (n + m) / (4 n m)}`, above its mean, is added.
    """
    spread = (n + m) / (n * m)
    return math.sqrt(math.log(2 * tests / _P) * spread / 2) + (math.sqrt(kinds * spread / 4) if kinds else 0.0)


def find_shifted(train: Mapping[str, Sequence[Any]], test: Mapping[str, Sequence[Any]]) -> list[Finding]:
    """Columns whose values are distributed differently in the test split, beyond chance and by at least 0.2."""
    found = []
    for name in train:
        a, b = train[name], test.get(name, ())
        if min(len(a), len(b)) < _LEAST:
            continue
        numbers = [as_numbers(a), as_numbers(b)]
        one, other = (None if each is None else each[np.isfinite(each)] for each in numbers)
        if one is not None and other is not None and len(one) and len(other):
            score, level, kind = (
                ks_statistic(one, other),
                noise_level(len(one), len(other), 0, len(train)),
                "KS statistic",
            )
        else:
            kinds = len({str(v) for v in a} | {str(v) for v in b})
            score, level, kind = (
                total_variation(a, b),
                noise_level(len(a), len(b), kinds, len(train)),
                "total variation",
            )
        if score >= max(CHECKS["shifted_column"].threshold, level):
            said = f"{kind} {score:.2f}; chance gives at most {level:.2f}"
            found.append(finding("shifted_column", score, name=name, evidence=said))
    return sorted(found, key=lambda each: -each.score)


def find_label_shift(train: Labels, test: Labels, classes: Sequence[str]) -> list[Finding]:
    """A finding if the frequencies of the classes differ between train and test: 0.5 + total variation / 2."""
    if not len(train) or not len(test):
        return []
    distance = total_variation(train.tolist(), test.tolist())
    score, level = 0.5 + distance / 2, noise_level(len(train), len(test), len(classes), 1)
    if score < CHECKS["distribution_shift"].threshold or distance < level:
        return []
    shares = [np.bincount(each, minlength=len(classes)) / len(each) for each in (train, test)]
    most = int(np.abs(shares[0] - shares[1]).argmax())
    said = f"class {classes[most]}: {100 * shares[0][most]:.0f} % of train, {100 * shares[1][most]:.0f} % of test"
    return [finding("distribution_shift", score, name="labels", evidence=said)]
