"""Labels by several annotators: read from a table, joined by majority, or by Dawid and Skene's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, unknown_name
from ncsam.data.tables.columns import COLUMN_NAMES, Columns, read_columns
from ncsam.data.types import encode_labels

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

METHODS = ("majority", "dawid_skene")
ABSENT = -1
_ITERATIONS, _TOLERANCE = 200, 1e-8
_SMOOTHING = 0.01  # votes added to every cell of an annotator's confusion matrix
ITEM_NAMES = (*COLUMN_NAMES["path"], *COLUMN_NAMES["text"], "item", "index", "id", "task")
ANNOTATOR_NAMES = ("annotator", "worker", "rater")


@dataclass(frozen=True)
class Annotations:
    """Answers (items, annotators) as class numbers, `ABSENT` where an annotator gave none.

    `column` is what the table calls the items.

    Attributes:
        items: What was labeled, in the order of the table.
        annotators: Names, in the order of their first answers.
        classes: Names, in the order of the class numbers.
        answers: (items, annotators) int64.
        column: Name of the column of items.
    """

    items: tuple[str, ...]
    annotators: tuple[str, ...]
    classes: tuple[str, ...]
    answers: Labels
    column: str = "path"


@dataclass(frozen=True)
class Joined:
    """The annotators' answers as one.

    Attributes:
        labels: (items,) the most probable class; of equal ones the first.
        soft: (items, classes) its distribution: shares of the votes, or Dawid and Skene's posterior.
        accuracy: (annotators,) the estimated share of an annotator's answers that are right.
        agreement: (items,) the largest entry of `soft`.
    """

    labels: Labels
    soft: Floats
    accuracy: Floats

    @property
    def agreement(self) -> Floats:
        return np.asarray(self.soft.max(axis=1))


def read_annotations(path: str | Path) -> Annotations:
    """A table with one column per annotator beside the item's, or with one row per answer (item, annotator, label).

    The item's column is `path`, `text`, `item`, `index` or the like, else the first. Empty cells are answers that were
    not given.

    Args:
        path: A `.csv`, `.tsv` or `.parquet` file.

    Raises:
        ValueError: There is no answer, or an annotator gave two different ones for one item.
    """
    path = Path(path)
    table = read_columns(path)
    item = _named(table, ITEM_NAMES) or next(iter(table))
    found = one_row_each(table, str(path), item)
    return found or one_column_each(table, str(path), item, [name for name in table if name != item])


def one_row_each(table: Columns, where: str, item: str) -> Annotations | None:
    """The answers of a table with a row for each of them; `None` if it has no columns `annotator` and `label`.

    Args:
        table: Columns by name.
        where: What error messages call the table.
        item: Name of the column of items.
    """
    who, what = _named(table, ANNOTATOR_NAMES), _named(table, (*COLUMN_NAMES["label"], "answer"))
    if who is None or what is None:
        return None
    return _numbered(item, list(zip(table[item], table[who], table[what], strict=True)), where)


def one_column_each(table: Columns, where: str, item: str, columns: Sequence[str]) -> Annotations:
    """The answers of a table with a column for each annotator.

    Args:
        table: Columns by name.
        where: What error messages call the table.
        item: Name of the column of items.
        columns: Names of the annotators' columns.

    Raises:
        UsageError: A column is missing.
        ValueError: There is no answer.
    """
    missing = [name for name in columns if name not in table]
    if missing:
        raise bad_value("annotators", missing, f"columns of {where}: {', '.join(table)}")
    names = table[item]
    return _numbered(
        item, [(names[row], name, table[name][row]) for row in range(len(names)) for name in columns], where
    )


def _named(table: Columns, names: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in table}
    return next((lower[name] for name in names if name in lower), None)


def _numbered(column: str, given: Sequence[tuple[Any, Any, Any]], where: str) -> Annotations:
    cells = [tuple("" if cell is None else str(cell).strip() for cell in answer) for answer in given]
    answers = [(item, who, label) for item, who, label in cells if label]
    if not answers:
        raise ValueError(f"{where} holds no answer")
    items = {name: i for i, name in enumerate(dict.fromkeys(item for item, _, _ in answers))}
    annotators = {name: i for i, name in enumerate(dict.fromkeys(who for _, who, _ in answers))}
    (labels,), classes = encode_labels([[label for _, _, label in answers]], where=where)
    assert labels is not None
    if labels.min() < 0:
        raise ValueError(f"{where}: label {labels.min()} is no class number")
    table = np.full((len(items), len(annotators)), ABSENT, dtype=np.int64)
    for (item, who, _), value in zip(answers, labels.tolist(), strict=True):
        if table[items[item], annotators[who]] not in (ABSENT, value):
            raise ValueError(f"{where}: annotator {who!r} gave two answers for {item!r}")
        table[items[item], annotators[who]] = value
    return Annotations(tuple(items), tuple(annotators), classes, table, column)


def join(answers: npt.ArrayLike, num_classes: int | None = None, method: str = "majority") -> Joined:
    """Join answers (items, annotators), -1 where there is none.

    `majority`: `soft` is the share of votes. `dawid_skene`: annotators err by a confusion matrix each, and the true
    classes are hidden (Dawid and Skene 1979); expectation-maximization from the shares of votes,

        prior[k] = mean over items of soft[i, k];  confusion[a, k, j] ~ sum over i of soft[i, k] [answer of a to i is j]
        soft[i, k] ~ prior[k] * product over a of confusion[a, k, answer of a to i].

    Args:
        answers: Class numbers; every item has at least one answer.
        num_classes: By default one more than the largest answer.
        method: "majority" or "dawid_skene".

    Raises:
        UsageError: The answers are of another form, or the method is not known.
    """
    given = np.asarray(answers)
    if given.ndim != 2 or given.dtype.kind not in "iu":
        raise bad_value("answers", f"{given.dtype} {given.shape}", "integers of shape (items, annotators)")
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    size = int(given.max()) + 1 if num_classes is None else num_classes
    if given.min() < ABSENT or given.max() >= size or (given == ABSENT).all(axis=1).any():
        raise bad_value("answers", "entries", f"numbers from -1 to {size - 1}, and at least one answer for every item")
    votes = np.stack([(given == k).sum(axis=1) for k in range(size)], axis=1).astype(np.float64)
    soft = votes / votes.sum(axis=1, keepdims=True)
    if method == "dawid_skene":
        soft = _dawid_skene(given, soft)
    labels = soft.argmax(axis=1).astype(np.int64)
    there = given != ABSENT
    right = soft[np.arange(len(given))[:, None], np.maximum(given, 0)] * there
    accuracy = right.sum(axis=0) / np.maximum(1, there.sum(axis=0))
    return Joined(labels, soft, accuracy)


def _dawid_skene(given: Labels, soft: Floats) -> Floats:
    said = np.stack([given == j for j in range(soft.shape[1])], axis=2).astype(np.float64)  # items, annotators, classes
    for _ in range(_ITERATIONS):
        confusion = np.einsum("ik,iaj->akj", soft, said) + _SMOOTHING
        confusion /= confusion.sum(axis=2, keepdims=True)
        logs = np.log(soft.mean(axis=0) + 1e-300) + np.einsum("iaj,akj->ik", said, np.log(confusion))
        new = np.exp(logs - logs.max(axis=1, keepdims=True))
        new /= new.sum(axis=1, keepdims=True)
        moved = float(np.abs(new - soft).max())
        soft = new
        if moved < _TOLERANCE:
            break
    return soft
