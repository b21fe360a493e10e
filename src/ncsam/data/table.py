"""A CSV, TSV or Parquet table with one row for each image: its path, its label and, where known, its clean label."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, need
from ncsam._files import read_text
from ncsam.data.check import check
from ncsam.data.files import IMAGENET_MEAN, IMAGENET_STD, listed_files
from ncsam.data.folder import held
from ncsam.data.labels import encode_labels
from ncsam.data.types import DataSet, Split
from ncsam.data.upright import usual_size

#: The column names that are looked for, whatever their case, when none is given.
COLUMN_NAMES = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img"),
    "label": ("label", "noisy_label", "observed_label", "given_label", "class", "target", "y"),
    "clean_label": ("clean_label", "true_label", "clean", "y_clean", "ground_truth"),
    "split": ("split", "subset", "partition", "fold"),
    "verified": ("verified",),
}
#: What a column `verified` may say: that people found the label right, found it wrong, or did not look.
VERDICTS = dict.fromkeys(("1", "true", "yes", "right"), 1) | dict.fromkeys(("0", "false", "no", "wrong"), 0) | {"": -1}
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)


def from_table(
    path: str | Path,
    *,
    images: str | Path | None = None,
    path_column: str | None = None,
    label_column: str | None = None,
    clean_column: str | None = None,
    split_column: str | None = None,
    classes: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    in_memory: bool | None = None,
    allow_empty: bool = False,
) -> DataSet:
    """A data set from a table whose first row names the columns.

    Args:
        images: The folder that relative paths start from. Default: the table's own.
        path_column, label_column, clean_column, split_column: Names of the columns; see `COLUMN_NAMES` for those found
            by themselves. Clean label and split may be absent. A split is `train`, `test` or `val` (aliases known);
            where no row is `test` and some are `val`, the latter are the test split.
        A column `verified` (1 where people found the label right, 0 where wrong, empty where they did not look) serves
        methods that know some verified labels.
        classes: Class names in order. Default: the labels found, sorted; labels that are whole numbers are taken as
            class numbers.
        size, mean, std, in_memory, allow_empty: As for `from_folder`.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such file")
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _text(path)
    asked = {"path": path_column, "label": label_column, "clean_label": clean_column, "split": split_column}
    found = {kind: _column(columns, kind, name, path) for kind, name in asked.items()}
    names, labels, clean_labels, splits = found["path"], found["label"], found["clean_label"], found["split"]
    assert names is not None
    assert labels is not None
    (observed, clean), class_names = encode_labels([labels, clean_labels], classes, where=str(path))
    assert observed is not None
    everything = Split(
        listed_files(Path(images or path.parent), [str(name) for name in names], str(path)),
        observed,
        clean,
        verified=_verdicts(columns, path),
    )
    parts = {"train": everything}
    if splits is not None:
        parts = _parted(everything, splits, path)
    notes: tuple[str, ...] = ()
    if "test" not in parts and "val" in parts:
        parts["test"] = parts.pop("val")
        notes = ("the validation rows serve as the test split",)
    dataset = DataSet(
        name=path.stem,
        classes=class_names,
        train=parts["train"],
        test=parts.get("test"),
        val=parts.get("val"),
        mean=tuple(mean),
        std=tuple(std),
        size=size or usual_size(parts["train"].inputs),
        source=str(path),
        notes=notes,
    )
    return held(check(dataset, allow_empty=allow_empty), in_memory)


def _text(path: Path) -> dict[str, list[Any]]:
    with io.StringIO(read_text(path), newline="") as file:
        rows = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        try:
            lines = [(rows.line_num, row) for row in rows if row]
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num}, is not a row of a table: {error}") from error
    header = [name.strip() for name in lines[0][1]] if lines else []
    body = [row for _, row in lines[1:]]
    for number, row in lines:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {number}: {len(row)} fields, but the header has {len(header)}")
    if not body:
        raise ValueError(f"{path} has no rows under its header")
    return {name: list(column) for name, column in zip(header, zip(*body, strict=True), strict=True)}


def _parquet(path: Path) -> dict[str, list[Any]]:
    parquet = need("pyarrow.parquet", "parquet", "reading Parquet files")
    arrow = need("pyarrow", "parquet", "reading Parquet files")
    try:
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {error}") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _column(columns: dict[str, list[Any]], kind: str, name: str | None, path: Path) -> list[Any] | None:
    """The column of that kind; `None` where an optional one is neither asked for nor there."""
    argument = {"clean_label": "clean_column"}.get(kind, f"{kind}_column")
    if name is not None:
        if name not in columns:
            raise bad_value(argument, name, f"{path} has the columns {', '.join(columns)}")
        column = columns[name]
    else:
        lower = {column.lower(): column for column in columns}
        known = next((lower[alias] for alias in COLUMN_NAMES[kind] if alias in lower), None)
        if known is None and kind in ("path", "label"):
            raise ValueError(
                f"{path} has no column {kind!r} (nor {', '.join(COLUMN_NAMES[kind][1:])}); it has "
                f"{', '.join(columns)}. "
                f"Name it by {argument}="
            )
        if known is None:
            return None
        column = columns[known]
    missing = next((row for row, value in enumerate(column) if value is None), None)
    if missing is not None:
        raise ValueError(f"{path}: row {missing:,} has no {kind}")
    return column


def _verdicts(columns: dict[str, list[Any]], path: Path) -> npt.NDArray[np.int8] | None:
    name = next((column for column in columns if column.lower() in COLUMN_NAMES["verified"]), None)
    if name is None:
        return None
    found = np.empty(len(columns[name]), dtype=np.int8)
    for row, value in enumerate(columns[name]):
        word = "" if value is None else str(value).strip().lower()
        if word not in VERDICTS:
            raise ValueError(f"{path}: row {row:,} has verified {value!r}; allowed are 1, 0 and nothing")
        found[row] = VERDICTS[word]
    return found


def _parted(everything: Split, splits: list[Any], path: Path) -> dict[str, Split]:
    kinds = []
    for row, value in enumerate(splits):
        kind = SPLIT_NAMES.get(str(value).strip().lower())
        if kind is None:
            raise ValueError(f"{path}: row {row:,} has split {value!r}; allowed are {', '.join(SPLIT_NAMES)}")
        kinds.append(kind)
    of = np.array(kinds)
    parts = {kind: everything.take(np.flatnonzero(of == kind)) for kind in sorted(set(kinds))}
    if "train" not in parts:
        raise ValueError(f"{path}: no row belongs to the split 'train'")
    return parts
