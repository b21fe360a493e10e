"""The columns of a CSV, TSV or Parquet table: read, found by their usual names, and turned into numbers."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import read_text
from ncsam.data.tables.arrow_files import read_arrow_table

Columns = dict[str, list[Any]]

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
#: The column names that are looked for, whatever their case, when none is given.
COLUMN_NAMES = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"),
    "text": ("text", "sentence", "review", "comment", "content", "document", "message", "body", "tweet", "utterance"),
    "label": ("label", "noisy_label", "observed_label", "given_label", "class", "target", "y", "weak_label", "weak"),
    "clean_label": ("clean_label", "true_label", "clean", "y_clean", "ground_truth"),
    "split": ("split", "subset", "partition", "fold"),
    "verified": ("verified",),
}
#: A name of labels that beside another one is a feature, such as a coordinate.
_NO_RIVALS = ("y",)
_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
#: The first bytes of a workbook: one of Excel before 2007, or a zip archive.
_WORKBOOK_MARKS = (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"PK\x03\x04")
_DECIMAL_COMMA = re.compile(r"^(\s*[+-]?\d*),(\d+\s*)$")
#: What `ncsam clean` writes beside the samples; no features where all of them are there.
CLEANED = ("label", "given_label", "source", "probability")
#: Columns that number the rows; they are no features unless named.
ROW_NUMBERS = ("", "id", "index", "row", "unnamed: 0")


def read_columns(path: Path) -> Columns:
    """A table whose first row names the columns; text from CSV and TSV files, values of any type from the others.

    Args:
        path: A `.csv`, `.tsv` or `.parquet` file, or a folder of Parquet or Arrow files.

    Raises:
        FileNotFoundError: It does not exist.
        ValueError: A row has another number of fields than the header, two columns have one name, or there are no rows.
    """
    return read_named_columns(path)[0]


def read_named_columns(path: Path) -> tuple[Columns, dict[str, list[str]]]:
    """A table as `read_columns` has it, and the names of classes that a Parquet file may note beside a column.

    Args:
        path: As for `read_columns`.

    Returns:
        The columns, and class names by column.
    """
    if not path.exists():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such file")
    if path.is_dir() or path.suffix.lower() == ".parquet":
        return read_arrow_table(path)
    return _text(path), {}


class FileColumns(Mapping[str, Sequence[Any]]):
    """Columns of a table that are read again when they are first used, so that until then they take no memory.

    Args:
        path: The file, or a folder of Parquet or Arrow files.
        names: The columns.
        rows: How many rows the table has.
    """

    def __init__(self, path: Path, names: Sequence[str], rows: int) -> None:
        self.path, self.names, self.rows = path, tuple(names), rows

    @cached_property
    def _columns(self) -> Columns:
        table = read_columns(self.path)
        if not set(self.names) <= table.keys() or len(next(iter(table.values()))) != self.rows:
            raise ValueError(f"{self.path} has changed since it was read")
        return {name: table[name] for name in self.names}

    def __getitem__(self, name: str) -> Sequence[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _text(path: Path) -> Columns:
    refuse_workbook(path)
    text = read_text(path)
    separator = _separator(text.partition("\n")[0], path.suffix.lower())
    with io.StringIO(text, newline="") as file:
        rows = csv.reader(file, delimiter=separator)
        try:
            lines = [(rows.line_num, row) for row in rows if row]
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}, is not a row of a table: {error}") from error
    header = [name.strip() for name in lines[0][1]] if lines else []
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise ValueError(f"{path} has two columns of one name: {', '.join(repeated)}")
    body = [row for _, row in lines[1:]]
    for number, row in lines:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {number}: {len(row)} fields, but the header has {len(header)}")
    if not body:
        raise ValueError(f"{path} has no rows under its header")
    if separator == ";":
        body = [[_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row] for row in body]
    return {name: list(column) for name, column in zip(header, zip(*body, strict=True), strict=True)}


def _separator(header: str, suffix: str) -> str:
    """What separates fields. Spreadsheets with decimal commas write CSV files with semicolons, others with tabs."""
    if suffix == ".tsv":
        return "\t"
    return "," if "," in header else next((mark for mark in ";\t" if mark in header), ",")


def refuse_workbook(path: Path) -> None:
    """Raise an error for an Excel or OpenDocument workbook, whatever its name.

    Args:
        path: A file.

    Raises:
        ValueError: It is a workbook.
    """
    with path.open("rb") as file:
        start = file.read(8)
    suffix = path.suffix.lower()
    if suffix in _WORKBOOKS or (suffix in TABLE_SUFFIXES and start.startswith(_WORKBOOK_MARKS)):
        raise ValueError(f"{path} is a spreadsheet workbook: save its sheet as CSV (UTF-8)")


def found_name(
    columns: Mapping[str, Any], kind: str, asked: str | None, where: str | Path, needed: bool = False
) -> str | None:
    """The name of the column of that kind: the one asked for, else one of the usual names.

    Args:
        columns: The table.
        kind: A key of `COLUMN_NAMES`.
        asked: The name that the user gave, if any.
        where: What error messages call the table.
        needed: Whether it is an error if there is none.

    Raises:
        UsageError: The column asked for does not exist.
        ValueError: A needed column was not found, or several may hold the labels.
    """
    argument = {"clean_label": "clean_column"}.get(kind, f"{kind}_column")
    if asked is not None:
        if asked not in columns:
            raise bad_value(argument, asked, f"a column of {where}: {', '.join(columns)}")
        return asked
    lower = {column.lower(): column for column in columns}
    there = [lower[alias] for alias in COLUMN_NAMES[kind] if alias in lower]
    known = next(iter(there), None)
    rivals = [name for name in there if name.lower() not in _NO_RIVALS]
    if kind == "label" and len(rivals) > 1 and not set(CLEANED) <= columns.keys():
        raise ValueError(
            f"{where} has several columns that may hold the labels ({', '.join(rivals)}): pass {argument}=NAME"
        )
    if known is None and needed:
        raise ValueError(
            f"{where} has no column {kind!r} (nor {', '.join(COLUMN_NAMES[kind][1:])}): "
            f"pass {argument}=NAME; columns: {', '.join(columns)}"
        )
    return known


def without_cleaned(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the columns, but for what `ncsam clean` wrote beside the samples.

    Args:
        columns: The table.
    """
    about = CLEANED if set(CLEANED[1:]) <= columns.keys() else ()
    return tuple(name for name in columns if name not in about)


def complete(columns: Columns, name: str, kind: str, where: str | Path) -> list[Any]:
    """A column that has a value in every row.

    Args:
        columns: The table.
        name: Name of the column.
        kind: What the message says is missing.
        where: What the message calls the table.

    Raises:
        ValueError: A value is missing.
    """
    missing = next((row for row, value in enumerate(columns[name]) if value is None), None)
    if missing is not None:
        raise ValueError(f"{where}: row {missing:,} has no {kind}")
    return columns[name]


def is_numeric(column: Sequence[Any], *, strict: bool = False) -> bool:
    """Whether the first value that is there, and the last one, are numbers; with `strict`, whether all values are.

    Args:
        column: Values of any type; text may spell a number, true or false.
        strict: Look at all values; a missing one is no number.
    """
    if strict:
        return all(_number(value) is not None for value in column)
    there = [value for value in column if value is not None and str(value).strip()]
    return bool(there) and _number(there[0]) is not None and _number(there[-1]) is not None


def numbers(columns: Columns, names: Sequence[str], where: str | Path) -> npt.NDArray[np.float32]:
    """Some columns as one float32 array (rows, columns); true and false are 1 and 0.

    Args:
        columns: The table.
        names: The columns wanted, in this order.
        where: What error messages call the table.

    Raises:
        UsageError: A column does not exist.
        ValueError: A value is missing or no finite number.
    """
    missing = [name for name in names if name not in columns]
    if missing:
        raise bad_value("columns", missing, f"columns of {where}: {', '.join(columns)}")
    rows = len(next(iter(columns.values())))
    found = np.empty((rows, len(names)), dtype=np.float32)
    for place, name in enumerate(names):
        for row, value in enumerate(columns[name]):
            number = _number(value)
            if number is None:
                shown = "is empty" if value is None or not str(value).strip() else f"is {value!r}, not a finite number"
                raise ValueError(f"{where}: column {name!r} of row {row:,} {shown}")
            found[row, place] = number
    return found


def _number(value: Any) -> float | None:
    """A finite number, `None` for anything else."""
    words = {"true": 1.0, "false": 0.0}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
