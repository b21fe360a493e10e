"""Verified labels from a mapping, a sequence or a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ncsam._errors import bad_value
from ncsam.automl.problem import Problem
from ncsam.automl.verified import Verified

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
    else:
        listed = list(source)
        if len(listed) != samples:
            raise bad_value(
                "verified", f"{len(listed)} entries", f"one for each of the {samples:,} samples, None if not known"
            )
        known = [i for i, label in enumerate(listed) if label is not None and label == label and label != ""]
        found = _of(known, [listed[i] for i in known], classes)
    if found.rows.min() < 0 or found.rows.max() >= samples:
        raise bad_value("verified", int(found.rows.max()), f"indices from 0 to {samples - 1}")
    return found


def _of(rows: Sequence[Any], labels: Sequence[Any], classes: Sequence[str]) -> Verified:
    numbers = {name: number for number, name in enumerate(classes)}
    found = []
    for label in labels:
        number = numbers.get(str(label))
        if number is None and not isinstance(label, str):
            number = int(label)
        if number is None or not 0 <= number < len(classes):
            raise bad_value("verified", label, f"one of the classes {', '.join(map(str, classes[:10]))}")
        found.append(number)
    return Verified(np.asarray(rows, dtype=np.int64), np.asarray(found, dtype=np.int64))


def _read_file(path: Path, classes: Sequence[str]) -> Verified:
    if not path.is_file():
        raise bad_value("verified", str(path), _COLUMNS)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows or not {"index", "label"} <= set(rows[0]):
        raise bad_value("verified", str(path), _COLUMNS)
    try:
        indices = [int(row["index"]) for row in rows]
        given = [float(row["probability"]) for row in rows] if "probability" in rows[0] else None
    except ValueError as error:
        raise bad_value("verified", str(path), f"{_COLUMNS} ({error})") from error
    found = _of(indices, [row["label"] for row in rows], classes)
    return found if given is None else replace(found, probabilities=np.array(given))


def in_fold_order(verified: Verified, problem: Problem) -> Verified:
    """The same answers with rows counted fold after fold, without samples that are in no fold."""
    order = np.concatenate(problem.held_out)
    places = np.full(len(problem.labels), -1, dtype=np.int64)
    places[order] = np.arange(len(order))
    inside = places[verified.rows] >= 0
    chances = None if verified.probabilities is None else verified.probabilities[inside]
    return Verified(places[verified.rows][inside], verified.labels[inside], chances)
