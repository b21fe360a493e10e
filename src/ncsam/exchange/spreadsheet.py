"""Spreadsheets: write a CSV with an empty column for decisions, and read it back."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ncsam._files import atomic_path
from ncsam._text import table_cell
from ncsam.data.tables.columns import read_columns
from ncsam.exchange.answers import DECISION, REVIEWER, Answer, answers_of_columns


def write(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write rows to a CSV file, with empty columns `decision` and `reviewer`. Formulas are escaped.

    Args:
        rows: rows with the same keys; `None` becomes an empty cell.
        path: the file to write.
    """
    names = list(rows[0]) if rows else ["index", "given_label", "suggested_label"]
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*map(table_cell, names), DECISION, REVIEWER])
        for row in rows:
            writer.writerow([*("" if row[name] is None else _cell(row[name]) for name in names), "", ""])


def read(path: str | os.PathLike[str]) -> list[Answer]:
    """Read answers from a table with the columns `index` and `decision`.

    Args:
        path: a CSV, TSV or Parquet file.

    Raises:
        UsageError: if a column is missing or an index is invalid.
    """
    return answers_of_columns(read_columns(Path(path)), str(path))


def _cell(value: Any) -> Any:
    """Escape each line of a text; other values as elsewhere."""
    if isinstance(value, str) and "\n" in value:
        return "\n".join(str(table_cell(line)) for line in value.split("\n"))
    return table_cell(value)
