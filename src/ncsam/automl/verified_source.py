"""Verified labels from a mapping, a sequence or a CSV file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ncsam._errors import bad_value
from ncsam.automl.problem import Problem
from ncsam.automl.verified import Verified
from ncsam.data.labels import is_missing
from ncsam.data.tables.columns import read_columns

_COLUMNS = "a CSV file with columns index and label, and optionally probability"


def read_verified(source: Any, classes: Sequence[str], samples: int) -> Verified:
    """Verified labels of training samples; `rows` are positions in the training split.

    Args:
        source: `{index: class}`; a sequence with a class or `None` for every sample; or the path of a CSV file with the
            columns `index`, `label` and, for samples that were not drawn evenly, `probability`.
        classes: class names; a class is given by its name or its number.
        samples: number of training samples.

    Raises:
        UsageError: for an index or class that does not exist.
    """
    if isinstance(source, Verified):
        found = source
    elif isinstance(source, str | os.PathLike):
        found = _read_file(Path(source), classes)
    elif isinstance(source, Mapping):
        found = _of(list(source), list(source.values()), classes)
    elif isinstance(source, Iterable):
        listed = list(source)
        if len(listed) != samples:
            raise bad_value(
                "verified", f"{len(listed)} entries", f"one for each of the {samples:,} samples, None if not known"
            )
        known = [i for i, label in enumerate(listed) if not is_missing(label)]
        found = _of(known, [listed[i] for i in known], classes)
    else:
        raise bad_value("verified", source, f"{{index: class}}, a class for every sample, or {_COLUMNS}")
    if found.rows.min() < 0 or found.rows.max() >= samples:
        raise bad_value("verified", int(found.rows.max()), f"indices from 0 to {samples - 1}")
    return found


def _of(rows: Sequence[Any], labels: Sequence[Any], classes: Sequence[str]) -> Verified:
    known = {name: number for number, name in enumerate(classes)}
    found, indices = [], []
    for row, label in zip(rows, labels, strict=True):
        index = _whole(row)
        number = known.get(str(label))
        if number is None and not isinstance(label, str):
            number = _whole(label)
        if index is None or abs(index) >= 2**63:
            raise bad_value("verified", row, "the index of a sample")
        if number is None or not 0 <= number < len(classes):
            raise bad_value("verified", label, f"one of the classes {', '.join(map(str, classes[:10]))}")
        indices.append(index)
        found.append(number)
    return Verified(np.array(indices, dtype=np.int64), np.array(found, dtype=np.int64))


def _whole(value: Any) -> int | None:
    """A whole number, also written as 3.0, as tables with missing values do; `None` for anything else."""
    try:
        return int(value) if not isinstance(value, bool) and int(value) == float(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _read_file(path: Path, classes: Sequence[str]) -> Verified:
    if not path.is_file():
        raise bad_value("verified", str(path), _COLUMNS)
    table = read_columns(path)
    if not {"index", "label"} <= table.keys():
        raise bad_value("verified", str(path), _COLUMNS)
    found = _of(table["index"], table["label"], classes)
    if "probability" not in table:
        return found
    try:
        return replace(found, probabilities=np.array([float(value) for value in table["probability"]]))
    except (TypeError, ValueError) as error:
        raise bad_value("verified", str(path), f"{_COLUMNS} above 0 and at most 1") from error


def in_fold_order(verified: Verified, problem: Problem) -> Verified:
    """The same answers with rows counted fold after fold, without samples that are in no fold."""
    order = np.concatenate(problem.held_out)
    places = np.full(len(problem.labels), -1, dtype=np.int64)
    places[order] = np.arange(len(order))
    inside = places[verified.rows] >= 0
    chances = None if verified.probabilities is None else verified.probabilities[inside]
    return Verified(places[verified.rows][inside], verified.labels[inside], chances)
