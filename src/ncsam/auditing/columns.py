"""Columns of a table that identify the rows or reveal the label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam.auditing.findings import CHECKS, Finding, finding
from ncsam.issues.calibration import stratified_folds
from ncsam.issues.find import auroc

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
_BINS = 64  # of a column of numbers
_FOLDS = 5
LEAST = 20  # rows


def as_numbers(values: Sequence[Any]) -> Floats | None:
    """Convert a column to floats.

    Args:
        values: the column; `None` and "" are missing values.

    Returns:
        Floats, NaN for missing values; `None` if some value is not a number.
    """
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
    """Return the share of distinct values among those that are not missing.

    Args:
        values: the column; `None` and "" are missing values.
    """
    known = [str(value) for value in values if value is not None and value != ""]
    return len(set(known)) / len(known) if known else 0.0


def is_id(values: Sequence[Any]) -> bool:
    """Return whether distinct values look like row IDs: single words, or integers in ascending or descending order.

    Measurements and free text are distinct, too. Numbers with a fraction, unordered integers and texts of several words
    are therefore not IDs.

    Args:
        values: the column, in row order; `None` and "" are missing values.
    """
    known = [value for value in values if value is not None and value != ""]
    if len(known) < LEAST or distinct_share(values) < CHECKS["id_column"].threshold:
        return False
    numbers = as_numbers(known)
    if numbers is None:
        return float(np.mean([" " in str(value).strip() for value in known])) < 0.1
    steps = np.diff(numbers)
    whole = bool(np.isfinite(numbers).all()) and bool((numbers == np.round(numbers)).all())
    return whole and max(float((steps > 0).mean()), float((steps < 0).mean())) >= 0.95


def codes(values: Sequence[Any], numbers: Floats | None) -> Labels:
    """Convert a column to category numbers. Missing values are a category.

    Args:
        values: the column.
        numbers: the same as floats, from `as_numbers`, to be binned by quantiles. `None`: every distinct value is a
            category.

    Returns:
        Category numbers from 0.
    """
    if numbers is None:
        order = {value: i for i, value in enumerate(sorted({str(v) for v in values}))}
        return np.array([order[str(v)] for v in values], dtype=np.int64)
    known = np.isfinite(numbers)
    found = np.zeros(len(numbers), dtype=np.int64)
    distinct = np.unique(numbers[known])
    if len(distinct) > _BINS:
        distinct = np.unique(np.quantile(numbers[known], np.linspace(0, 1, _BINS + 1)[1:]))
    found[known] = 1 + np.searchsorted(distinct, numbers[known])
    return found


def label_auc(values: Sequence[Any], labels: Labels) -> float:
    """Return how well one column alone predicts the labels: mean one-vs-rest AUC, weighted by class frequency.

    A sample's class probabilities are the smoothed class frequencies of its category in the other four folds. A column
    of distinct values cannot be learned that way and has an AUC of about 0.5.

    Args:
        values: the column.
        labels: given labels (n,).
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
    """Find ID-like and label-leaking columns.

    Args:
        table: columns of the training rows by name, without the label.
        labels: given labels (n,).

    Returns:
        A finding per column and check, worst first. Columns with fewer than 20 rows are not judged.
    """
    found = []
    for name, values in table.items():
        if len(values) < LEAST:
            continue
        if is_id(values):
            share = distinct_share(values)
            found.append(finding("id_column", share, name=name, evidence=f"{100 * share:.0f} % of the values differ"))
        area = label_auc(values, labels)
        if area >= CHECKS["leaking_column"].threshold:
            said = f"AUC {area:.3f} without any other column"
            found.append(finding("leaking_column", area, name=name, evidence=said))
    return sorted(found, key=lambda each: -each.score)
