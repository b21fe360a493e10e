"""A table in which several people labeled the same samples, as a table with one label for each sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ncsam.data.tables.annotators import (
    ABSENT,
    ANNOTATOR_NAMES,
    ITEM_NAMES,
    Annotations,
    join,
    one_column_each,
    one_row_each,
)
from ncsam.data.tables.columns import COLUMN_NAMES, ROW_NUMBERS, Columns
from ncsam.data.types import Annotator

_ROW = "row of the table"
_OTHER = (
    *ANNOTATOR_NAMES,
    *ITEM_NAMES,
    *(n for kind in ("clean_label", "split", "verified") for n in COLUMN_NAMES[kind]),
)


def aggregate_annotations(
    table: Columns, where: str, annotators: Sequence[str] | None, method: str
) -> tuple[Columns, tuple[Annotator, ...]]:
    """The table with its answers joined into a column `label`, and its annotators; as it is, if it has none.

    A table has several annotators if they are named; if it has a column `annotator` (`worker`, `rater`) beside `label`
    and a row for each answer; or if it has no label but, beside its paths or texts, columns alone that hold few
    different answers.

    Args:
        table: Columns by name.
        where: What error messages call the table.
        annotators: Names of the annotators' columns; `None` to find out.
        method: "majority" or "dawid_skene"; see `ncsam.data.tables.annotators.join`.
    """
    lower = {name.lower(): name for name in table}
    item = next((lower[name] for name in ITEM_NAMES if name in lower), None)
    found: Annotations | None = None
    if annotators is None and item is not None:
        found = one_row_each(table, where, item)
    if found is not None and (found.answers != ABSENT).sum(axis=1).max() == 1:
        return table, ()  # it is said who labeled each sample, and nobody labeled one twice
    if found is not None and item is not None:
        rows = _first_rows(table[item], found.items)
        used: Sequence[str] = [name for name in table if name.lower() in (*ANNOTATOR_NAMES, *COLUMN_NAMES["label"])]
    else:
        used = annotators or _guessed(table, item)
        if not used:
            return table, ()
        numbered = {**table, _ROW: [str(row) for row in range(len(next(iter(table.values()))))]}
        found = one_column_each(numbered, where, _ROW, used)
        rows = [int(row) for row in found.items]
    joined = join(found.answers, len(found.classes), method)
    counts = (found.answers != ABSENT).sum(axis=0).tolist()
    people = tuple(map(Annotator, found.annotators, counts, joined.accuracy.tolist()))
    kept = {name: [column[row] for row in rows] for name, column in table.items() if name not in used}
    return {**kept, "label": [found.classes[label] for label in joined.labels]}, people


def _first_rows(names: Sequence[object], items: Sequence[str]) -> list[int]:
    """The first row of each item."""
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        first.setdefault("" if name is None else str(name).strip(), row)
    return [first[item] for item in items]


def _guessed(table: Columns, item: str | None) -> list[str]:
    """The columns of a table without labels that look like annotators'; none if they might be something else."""
    if item is None or {name.lower() for name in table} & set(COLUMN_NAMES["label"]):
        return []
    rest = [name for name in table if name.lower() not in (*_OTHER, *ROW_NUMBERS)]
    answers = [str(cell).strip() for name in rest for cell in table[name] if cell is not None and str(cell).strip()]
    return rest if len(rest) > 1 and len(np.unique(answers)) <= len(answers) / 2 else []
