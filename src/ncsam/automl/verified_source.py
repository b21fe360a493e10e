"""Read verified labels from a mapping, a sequence, a CSV file, a column of the data, or reviewers' decisions."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ncsam._errors import bad_value
from ncsam._files import open_arrays
from ncsam.automl.problem import Problem
from ncsam.automl.questions import read_rounds, verified_decisions
from ncsam.automl.verified import Verified
from ncsam.data.tables.columns import TABLE_SUFFIXES, read_columns
from ncsam.data.tables.table import training_values
from ncsam.data.types import DataSet, is_missing
from ncsam.engine.config import RunConfig
from ncsam.runs import layout
from ncsam.runs.decisions import Decisions
from ncsam.runs.writer import NOT_DRAWN

_FILES = (
    "a CSV file with columns index and label, and optionally probability; a run folder with review decisions; or a "
    "column of the data"
)


def without_column(verified: Any, config: RunConfig) -> tuple[Any, RunConfig]:
    """If the verified labels are a column of `config.data`, read it and exclude it from the features.

    Args:
        verified: a source as in `read_verified`, or the name of a column.
        config: the configuration of the search.

    Returns:
        The values of the column and a configuration that ignores it; anything but a column name is returned unchanged.

    Raises:
        UsageError: if there is neither a file nor a column of that name.
    """
    if not isinstance(verified, str) or Path(verified).exists():
        return verified, config
    data = Path(config.data)
    if data.suffix.lower() == ".npz" and data.is_file():
        with open_arrays(data) as arrays:
            if verified not in arrays:
                raise bad_value("verified", verified, _FILES)
            return list(arrays[verified].tolist()), config
    if data.suffix.lower() not in TABLE_SUFFIXES or not data.is_file():
        raise bad_value("verified", verified, _FILES)
    options = dict(config.data_options)
    values = training_values(data, verified, options.get("split_column"))
    options["ignore"] = [*options.get("ignore", ()), verified]
    return values, config.replace(data_options=options)


def read_verified(source: Any, dataset: DataSet) -> Verified:
    """Read verified labels of training samples.

    Args:
        source: `{index: class}`; a sequence with a class or `None` for every sample; the path of a CSV file with the
            columns `index`, `label` and, for samples that were not drawn uniformly, `probability`; or a run folder, or
            its `review.jsonl`, with reviewers' decisions. A class is given by name or number.
        dataset: the data.

    Returns:
        Verified labels; `rows` are positions in the training split.

    Raises:
        UsageError: if an index or class does not exist, or the source is of another kind.
    """
    classes, samples = dataset.classes, len(dataset.train)
    if isinstance(source, Verified):
        found = source
    elif isinstance(source, str | os.PathLike):
        path = Path(source)
        reviewed = path.is_dir() or path.name == layout.DECISIONS
        found = _reviewed(path, dataset) if reviewed else _read_file(path, classes)
    elif isinstance(source, Mapping):
        found = _of(list(source), list(source.values()), classes)
    elif isinstance(source, Iterable) and getattr(source, "ndim", 1) != 0:  # one number as an array has no entries
        listed = list(source)
        if len(listed) != samples:
            raise bad_value(
                "verified", f"{len(listed)} entries", f"one for each of the {samples:,} samples, None if not known"
            )
        known = [i for i, label in enumerate(listed) if not is_missing(label) and label != -1]
        found = _of(known, [listed[i] for i in known], classes)
    else:
        raise bad_value("verified", source, f"{{index: class}}, a class for every sample, or {_FILES}")
    if found.rows.min() < 0 or found.rows.max() >= samples:
        raise bad_value("verified", int(found.rows.max()), f"indices from 0 to {samples - 1}")
    return found


def _reviewed(path: Path, dataset: DataSet) -> Verified:
    folder = path if path.is_dir() else path.parent
    decisions = Decisions(folder)
    decisions.check(len(dataset.train), dataset.num_classes)
    for index in decisions.decided():
        said = decisions.of(index)[0]
        if dataset.train.labels[index] not in (said.given_label, said.label):
            raise bad_value("verified", str(path), f"decisions about this data: sample {index} has another label")
    found = verified_decisions(decisions, list(read_rounds(folder / layout.QUESTIONS)))
    if found is None:
        raise bad_value("verified", str(path), f"a run folder in which {layout.DECISIONS} holds a decision")
    return found


def _of(rows: Sequence[Any], labels: Sequence[Any], classes: Sequence[str]) -> Verified:
    known = {name: number for number, name in enumerate(classes)}
    found, indices = [], []
    for row, label in zip(rows, labels, strict=True):
        index = _whole(row)
        printable = not isinstance(label, int) or abs(label) < 2**63  # Python prints no number of 4,300 digits
        number = known.get(str(label)) if printable else None
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
        raise bad_value("verified", str(path), _FILES)
    table = read_columns(path)
    if not {"index", "label"} <= table.keys():
        raise bad_value("verified", str(path), _FILES)
    found = _of(table["index"], table["label"], classes)
    if "probability" not in table:
        return found
    try:
        chances = np.array([math.nan if value == NOT_DRAWN else float(value) for value in table["probability"]])
    except (TypeError, ValueError) as error:
        raise bad_value("verified", str(path), f"{_FILES}; probabilities above 0 and at most 1") from error
    if any(value != NOT_DRAWN and math.isnan(p) for value, p in zip(table["probability"], chances, strict=True)):
        raise bad_value("verified", str(path), f"{_FILES}; probabilities above 0 and at most 1")
    return replace(found, probabilities=chances)


def in_fold_order(verified: Verified, problem: Problem) -> Verified:
    """Renumber rows in fold order and drop samples that are in no fold.

    Args:
        verified: verified labels, with rows as positions in the training split.
        problem: data and folds.
    """
    order = np.concatenate(problem.held_out)
    places = np.full(len(problem.labels), -1, dtype=np.int64)
    places[order] = np.arange(len(order))
    inside = places[verified.rows] >= 0
    chances = None if verified.probabilities is None else verified.probabilities[inside]
    return Verified(places[verified.rows][inside], verified.labels[inside], chances)
