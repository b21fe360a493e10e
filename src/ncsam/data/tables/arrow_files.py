"""Tables in Parquet and Arrow files: one, or a folder of them as Hugging Face's `datasets` keeps a dataset.

Such a folder holds `train-00000-of-00004.parquet` and the like, itself or in `data/`; or what `save_to_disk` writes,
`data-00000-of-00004.arrow`, in a folder for each split. Files are taken in the order of their names, so that a row has
the same number ever after.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ncsam._errors import need

_SPLITS = "dataset_dict.json"  # beside a folder for each split
_SPLIT = "state.json"  # beside the Arrow files of one


def is_table_folder(folder: Path) -> bool:
    """Whether a folder holds a table in several files.

    Args:
        folder: One that `datasets` saved, or one with Parquet files in it or in its subfolder `data`.
    """
    return (folder / _SPLITS).is_file() or (folder / _SPLIT).is_file() or bool(_parquet_files(folder))


def read_arrow_table(path: Path) -> tuple[dict[str, list[Any]], dict[str, list[str]]]:
    """The columns of a file, or of a folder of files, which then may tell the split; and the names of classes.

    The latter, {column: names}, are those that `datasets` notes beside a column of class numbers.

    Args:
        path: A Parquet or Arrow file, or a folder as `is_table_folder` knows it.

    Raises:
        FileNotFoundError: The folder holds no such file.
        ValueError: Files of a folder have different columns.
    """
    files = [(path, None)] if path.is_file() else _files(path)
    if not files:
        raise FileNotFoundError(f"path={str(path)!r}: there is no Parquet or Arrow file in it")
    tables = [_read(file) for file, _ in files]
    first = tables[0]
    columns: dict[str, list[Any]] = {name: [] for name in first.column_names}
    for (file, _), table in zip(files, tables, strict=True):
        if set(table.column_names) != columns.keys():
            said = ", ".join(table.column_names)
            raise ValueError(f"{file} has the columns {said}; those of {files[0][0].name} are {', '.join(columns)}")
        for name, values in columns.items():
            values += _values(table.column(name), f"{file}, column {name!r}")
    if "split" not in columns and any(split for _, split in files):
        columns["split"] = [
            split or "train" for (_, split), table in zip(files, tables, strict=True) for _ in range(table.num_rows)
        ]
    return columns, _class_names(first)


def _files(folder: Path) -> list[tuple[Path, str | None]]:
    if (folder / _SPLITS).is_file():
        inside = sorted(file.parent for file in folder.glob(f"*/{_SPLIT}"))
        return [(file, each.name) for each in inside for file in sorted(each.glob("data-*.arrow"))]
    if (folder / _SPLIT).is_file():
        return [(file, None) for file in sorted(folder.glob("data-*.arrow"))]
    return [(file, _split(file)) for file in _parquet_files(folder)]


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted(folder.glob("data/*.parquet"))


def _split(file: Path) -> str | None:
    """`train`, `test` or `validation`, which the name of a file begins with."""
    found = re.match(r"(train|test|validation|val|dev)(?=[-_.\d])", file.name)
    return None if found is None else found[1]


def _read(path: Path) -> Any:
    arrow = need("pyarrow", "parquet", "reading Parquet files")
    parquet = need("pyarrow.parquet", "parquet", "reading Parquet files")
    try:
        if not path.is_file():
            raise OSError("a pipe or a folder")
        if path.suffix != ".arrow":
            table = parquet.read_table(path)
        else:
            with arrow.OSFile(str(path)) as source, arrow.ipc.open_stream(source) as stream:
                table = stream.read_all()
        table.validate(full=True)  # a damaged offset would lead out of memory, and end the process
    except (arrow.ArrowException, OSError) as error:
        kind = "Arrow" if path.suffix == ".arrow" else "Parquet"
        raise ValueError(f"{path} is not a readable {kind} file: it is cut off, damaged or of another kind") from error
    if len(set(table.column_names)) < len(table.column_names):
        raise ValueError(f"{path} has two columns of one name: {', '.join(table.column_names)}")
    return table


def _values(column: Any, where: str) -> list[Any]:
    try:
        return list(column.to_pylist())
    except Exception as error:  # a time beyond the calendar, or of a zone that nobody knows
        raise ValueError(
            f"{where}, has values of type {column.type} that cannot be read, perhaps out of range"
        ) from error


def _class_names(table: Any) -> dict[str, list[str]]:
    """{column: names} from the note that `datasets` leaves in a file; a note of another form says nothing."""
    try:
        features = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
        named = {name: about["names"] for name, about in features.items() if about.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: names
        for name, names in named.items()
        if isinstance(names, list) and names and all(isinstance(each, str) for each in names)
    }
