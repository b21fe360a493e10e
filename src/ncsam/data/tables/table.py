"""A table with one row for each sample: an image or its path, a text, or numbers; and its label.

It is a CSV, TSV or Parquet file, or a folder of Parquet or Arrow files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.data.images.encoded import InMemory, infer_image_size_of
from ncsam.data.images.exif import infer_image_size
from ncsam.data.images.files import IMAGENET_MEAN, IMAGENET_STD, listed_files
from ncsam.data.modalities.rows import TableRows
from ncsam.data.modalities.text import MAX_LENGTH, MAX_WORDS, TextList, tokenizer_for
from ncsam.data.readers.folder import apply_cache_policy
from ncsam.data.registry import check
from ncsam.data.tables.columns import (
    Columns,
    FileColumns,
    complete,
    found_name,
    is_numeric,
    read_named_columns,
    without_cleaned,
)
from ncsam.data.tables.features import table_features
from ncsam.data.tables.multiannotator import aggregate_annotations
from ncsam.data.tables.target import alike, check_target
from ncsam.data.types import Annotator, DataSet, Inputs, LazyImages, Split, encode_labels, test_from_val

#: What a column `verified` may say: that people found the label right, found it wrong, or did not look.
VERDICTS = dict.fromkeys(("1", "true", "yes", "right"), 1) | dict.fromkeys(("0", "false", "no", "wrong"), 0) | {"": -1}
SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)
Rows = npt.NDArray[np.int64]


def from_table(
    path: str | Path,
    *,
    label_column: str | None = None,
    clean_column: str | None = None,
    split_column: str | None = None,
    path_column: str | None = None,
    text_column: str | None = None,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    annotators: Sequence[str] | None = None,
    join: str = "majority",
    classes: Sequence[str] | None = None,
    images: str | Path | None = None,
    size: tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    in_memory: bool | None = None,
    tokenizer: str = "words",
    max_words: int = MAX_WORDS,
    max_length: int = MAX_LENGTH,
    allow_empty: bool = False,
) -> DataSet:
    """A dataset from a table whose first row names the columns.

    A column of paths, or of encoded images in Parquet, makes it a table of images; else a column of texts, of texts;
    else its columns are features, but for label, clean label, split and those that number the rows (`id`, `index`).
    Plain numbers are features as they are. Where a column has missing values, categories, dates or free text, all are
    encoded by a preprocessing that is fitted to the training rows and stored with the dataset and its runs (see
    `ncsam.data.tables.preprocess`); `notes` say what became of each column.

    Args:
        path: A `.csv`, `.tsv` or `.parquet` file, or a folder of Parquet or Arrow files.
        label_column, clean_column, split_column, path_column, text_column: Names of the columns; see `COLUMN_NAMES` for
            those found by themselves. Clean label and split may be absent. A split is `train`, `test` or `val` (aliases
            known); where no row is `test` and some are `val`, the latter are the test split. A column `verified` (1
            where people found the label right, 0 where wrong, empty where they did not look) serves methods that know
            some verified labels.
        columns: The columns that are features, in this order. Default: all, in the table's order.
        ignore: Columns that are left out.
        annotators: Columns of answers by several people, which `join` makes one label of: "majority" or "dawid_skene".
            A table with a row for each answer and a column `annotator`, or with no label but answers, is taken so too.
        classes: Class names in order. Default: those that a file of Hugging Face's `datasets` notes, else the labels
            found, sorted; labels that are whole numbers are taken as class numbers.
        images: The folder that relative paths of images start from. Default: the table's own, or the table itself
            where that is a folder of files.
        size, mean, std, in_memory, allow_empty: As for `from_folder`. Of plain numbers, mean and std are by default
            those of the training rows.
        tokenizer, max_words, max_length: Of texts; see `from_texts`.
    """
    path = Path(path)
    table, named = read_named_columns(path)
    return from_columns(
        table,
        where=str(path),
        name=path.stem,
        class_names=named,
        label_column=label_column,
        clean_column=clean_column,
        split_column=split_column,
        path_column=path_column,
        text_column=text_column,
        columns=columns,
        ignore=ignore,
        annotators=annotators,
        join=join,
        classes=classes,
        images=images or (path if path.is_dir() else path.parent),
        size=size,
        mean=mean,
        std=std,
        in_memory=in_memory,
        tokenizer=tokenizer,
        max_words=max_words,
        max_length=max_length,
        allow_empty=allow_empty,
        file=path,
    )


def from_columns(
    table: Columns,
    *,
    where: str = "table",
    name: str = "table",
    class_names: Mapping[str, Sequence[str]] | None = None,
    label_column: str | None = None,
    clean_column: str | None = None,
    split_column: str | None = None,
    path_column: str | None = None,
    text_column: str | None = None,
    columns: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    annotators: Sequence[str] | None = None,
    join: str = "majority",
    classes: Sequence[str] | None = None,
    images: str | Path = ".",
    size: tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    in_memory: bool | None = None,
    tokenizer: str = "words",
    max_words: int = MAX_WORDS,
    max_length: int = MAX_LENGTH,
    allow_empty: bool = False,
    file: Path | None = None,
) -> DataSet:
    """A dataset from columns in memory; the other options are those of `from_table`.

    Args:
        table: The values of each column, by its name.
        where: What error messages call the table.
        name: The dataset's name.
        class_names: Names of classes for columns of class numbers.
        file: What the columns were read from.
    """
    people: tuple[Annotator, ...] = ()
    table = {column: values for column, values in table.items() if column not in ignore}
    if label_column is None:
        table, people = aggregate_annotations(table, where, annotators, join)
    label_name = found_name(table, "label", label_column, where, needed=True)
    clean_name = found_name(table, "clean_label", clean_column, where)
    split_name = found_name(table, "split", split_column, where)
    verified_name = found_name(table, "verified", None, where)
    labels = [
        None if column is None else complete(table, column, kind, where)
        for column, kind in ((label_name, "label"), (clean_name, "clean_label"))
    ]
    known = classes or (class_names or {}).get(str(label_name))
    if known is None and labels[0] is not None:
        check_target(labels[0], str(label_name), where)
    (observed, clean), found_classes = encode_labels(labels, known, where=where)
    assert observed is not None
    rows = {"train": np.arange(len(observed))}
    if split_name is not None:
        rows = _parted(complete(table, split_name, "split", where), where)
    taken = (label_name, clean_name, split_name, verified_name)
    rest = {column: values for column, values in table.items() if column not in taken}

    paths = None if text_column or columns else found_name(rest, "path", path_column, where)
    texts = None if paths or columns else _text_name(rest, text_column, where)
    inputs: Inputs
    original: Inputs | None = None
    cells: Inputs | None = None
    notes: tuple[str, ...] = ()
    fields: dict[str, Any] = {}
    usual: tuple[tuple[float, ...], tuple[float, ...]] = (), ()
    if paths is not None:
        given = _located(complete(rest, paths, "path", where))
        if isinstance(given[0], (bytes, Mapping)):  # the images themselves, as `datasets` writes them
            encoded = LazyImages(InMemory(_contents(given, where), where), np.arange(len(given)))
            inputs, in_memory = encoded, False
            fields["size"] = size or infer_image_size_of(encoded)
        else:
            files = listed_files(Path(images), [str(file) for file in given], where)
            inputs = files
            fields["size"] = size or infer_image_size(files.take(rows["train"]))
        usual = IMAGENET_MEAN, IMAGENET_STD
    elif texts is not None:
        written = [str(text) for text in complete(rest, texts, "text", where)]
        empty = next((row for row, text in enumerate(written) if not text.strip()), None)
        if empty is not None:
            raise ValueError(f"{where}: row {empty:,} has an empty text; remove it, or write something in its place")
        chosen = tokenizer_for(tokenizer, [written[row] for row in rows["train"]], max_words)
        inputs = TextList(written, chosen, max_length, texts)
        notes = _unused(rest, texts)
    else:
        found = table_features(rest, columns, rows["train"], where)
        inputs, original, notes, usual = found.inputs, found.original, found.notes, (found.mean, found.std)
        fields |= {"columns": found.names, "encoding": found.encoding}
        if original is None and file is not None and not people:  # joined answers are not rows of the file
            every = np.arange(len(observed))
            cells = TableRows(FileColumns(file, columns or without_cleaned(rest), len(every)), every)
    fields["mean"], fields["std"] = (
        tuple(of_table) if asked is None else tuple(asked) for asked, of_table in zip((mean, std), usual, strict=True)
    )
    verified = _verdicts(table, verified_name, where)
    whole = Split(inputs, observed, clean, verified=verified, original=original, cells=cells)
    parts = {split: whole.take(index) for split, index in rows.items()} if split_name is not None else {"train": whole}
    if similar := alike(found_classes):
        notes += (f"classes that differ only in case, which may be one class: {', '.join(similar)}",)
    notes += test_from_val(parts, "the validation rows")
    if people:
        notes += (f"the labels are the answers of {len(people):,} annotators, joined by {join}",)
    dataset = DataSet(
        name=name,
        classes=found_classes,
        train=parts["train"],
        test=parts.get("test"),
        val=parts.get("val"),
        source=where,
        notes=notes,
        annotators=people,
        **fields,
    )
    check(dataset, allow_empty=allow_empty)
    return apply_cache_policy(dataset, in_memory) if paths is not None else dataset


def training_values(path: Path, column: str, split_column: str | None = None) -> list[Any]:
    """The values of a column in the training rows of a table.

    Args:
        path: The table.
        column: Name of the column.
        split_column: Name of the column of splits; by default one of the usual names, if there is one.

    Raises:
        UsageError: if there is no such column.
    """
    table, _ = read_named_columns(path)
    if column not in table:
        raise bad_value("verified", column, f"a file, or one of the columns {', '.join(table)}")
    split_name = found_name(table, "split", split_column, str(path))
    if split_name is None:
        return list(table[column])
    rows = _parted(complete(table, split_name, "split", str(path)), str(path))["train"]
    return [table[column][row] for row in rows]


def _located(values: Sequence[Any]) -> Sequence[Any]:
    """Paths in the place of dicts that hold a path and no bytes, as `datasets` has them before it saves images."""
    if all(isinstance(value, Mapping) and value.get("bytes") is None and value.get("path") for value in values):
        return [value["path"] for value in values]
    return values


def _contents(values: Sequence[Any], where: str) -> list[bytes]:
    """Encoded images: bytes, or dicts with `bytes`."""
    found: list[Any] = [value.get("bytes") if isinstance(value, Mapping) else value for value in values]
    missing = next((row for row, content in enumerate(found) if not isinstance(content, bytes)), None)
    if missing is not None:
        raise ValueError(f"{where}: row {missing:,} has no bytes of an image")
    return found


def _text_name(rest: Columns, asked: str | None, where: str) -> str | None:
    """The column of texts: by its name, or the only column there is, if it is not of numbers."""
    found = found_name(rest, "text", asked, where)
    if found is None and len(rest) == 1:
        (only,) = rest
        return None if is_numeric(rest[only]) else only
    return found if asked is not None or found is None or not is_numeric(rest[found]) else None


def _unused(rest: Columns, used: str) -> tuple[str, ...]:
    unused = [name for name in rest if name != used]
    return (f"columns that are not used: {', '.join(unused)}",) if unused else ()


def _verdicts(columns: Columns, name: str | None, where: str) -> npt.NDArray[np.int8] | None:
    if name is None:
        return None
    found = np.empty(len(columns[name]), dtype=np.int8)
    for row, value in enumerate(columns[name]):
        word = "" if value is None else str(value).strip().lower()
        if word not in VERDICTS:
            raise ValueError(f"{where}: row {row:,} has verified {value!r}; allowed are 1, 0 and nothing")
        found[row] = VERDICTS[word]
    return found


def _parted(splits: list[Any], where: str) -> dict[str, Rows]:
    """The rows of each split."""
    kinds = []
    for row, value in enumerate(splits):
        kind = SPLIT_NAMES.get(str(value).strip().lower())
        if kind is None:
            raise ValueError(f"{where}: row {row:,} has split {value!r}; allowed are {', '.join(SPLIT_NAMES)}")
        kinds.append(kind)
    of = np.array(kinds)
    parts = {kind: np.flatnonzero(of == kind) for kind in sorted(set(kinds))}
    if "train" not in parts:
        raise ValueError(f"{where}: no row belongs to the split 'train'")
    return parts
