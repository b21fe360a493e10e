"""Datasets by name: one file and one `@register` line add one."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncsam._errors import bad_value, refuse_unknown, unknown_name
from ncsam._named import find_named, is_reference
from ncsam._options import coerce_options
from ncsam.data.readers.download import data_root
from ncsam.data.types import DataSet

Reader = Callable[..., DataSet]


@dataclass(frozen=True)
class Entry:
    """A registered dataset: its reader, what it holds, how one gets it, and under which terms."""

    name: str
    read: Reader
    about: str
    obtain: str
    license: str


_entries: dict[str, Entry] = {}


def register(name: str, *, about: str, obtain: str, license: str) -> Callable[[Reader], Reader]:
    """Make a reader known to `load` as `name`. The reader takes the root folder first and options by keyword."""

    def add(read: Reader) -> Reader:
        if name in _entries:
            raise bad_value("name", name, "a name that is not registered yet")
        _entries[name] = Entry(name, read, about, obtain, license)
        return read

    return add


def names() -> list[str]:
    """The names that `load` knows."""
    return sorted(_entries)


def entry(name: str) -> Entry:
    """What is registered under `name`."""
    if name not in _entries:
        raise unknown_name("dataset", name, _entries)
    return _entries[name]


def not_found(name: str, root: Path, wanted: str) -> FileNotFoundError:
    """One sentence on what was looked for and where, one on how to get it."""
    there = "" if root.exists() else " (which does not exist)"
    return FileNotFoundError(f"{name} was not found: no {wanted} under {root}{there}. {entry(name).obtain}")


def load(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = False,
    **options: Any,
) -> DataSet:
    """Read a dataset.

    Args:
        source: A name from `names()`; or a path to a folder of class folders, to a `.csv`, `.tsv` or `.parquet` table
            of samples and labels (or to a folder that Hugging Face's `datasets` wrote), to an `.npz` file of arrays, or
            to `.tar` shards (a file, or a folder of them); or "module:function", your own function, which returns a
            `DataSet` for the options.
        root: Where a named dataset lies: the folder above it, its own folder, or its archive. Default: the
            environment's `NCSAM_DATA`, else `~/.cache/ncsam`. Not for paths.
        download: Fetch a named dataset if it is not there. Nothing is downloaded otherwise.
        options: What the reader of that dataset or file takes besides; see its docstring.
    """
    if isinstance(source, str) and is_reference(source) and not Path(source).exists():
        return _own(source, options)
    if isinstance(source, str) and source in _entries:
        read = _entries[source].read
        options["download"] = download
        where = data_root(root)
    else:
        read = _reader_of_path(source)
        if root is not None or download:
            raise bad_value(
                "root" if root is not None else "download",
                root or download,
                "no value: it is for named datasets, not for paths",
            )
        where = Path(source).expanduser()
    refuse_unknown(repr(source), options, list(inspect.signature(read).parameters)[1:])
    return read(where, **coerce_options(read, options))


def _own(reference: str, options: dict[str, Any]) -> DataSet:
    """What the user's function `module:name` returns for the options."""
    found = find_named("data", reference)(**options)
    if not isinstance(found, DataSet):
        raise bad_value("data", reference, f"a function that returns a DataSet, not {type(found).__name__}")
    return found


def _reader_of_path(source: str | os.PathLike[str]) -> Reader:
    from ncsam.data.images.files import subfolders
    from ncsam.data.readers.arrays import from_npz
    from ncsam.data.readers.folder import from_folder
    from ncsam.data.readers.shards import from_shards
    from ncsam.data.stored import is_stored_dataset, load_dataset
    from ncsam.data.tables.arrow_files import is_table_folder
    from ncsam.data.tables.table import from_table

    path = Path(source).expanduser()
    if path.is_dir():
        if is_table_folder(path):
            return from_table
        return from_shards if any(path.glob("*.tar")) and not subfolders(path) else from_folder
    by_suffix: dict[str, Reader] = {
        ".npz": from_npz,
        ".csv": from_table,
        ".tsv": from_table,
        ".parquet": from_table,
        ".tar": from_shards,
    }
    if path.is_file():
        if path.suffix.lower() not in by_suffix:
            raise bad_value("source", str(path), f"a file that ends in {', '.join(by_suffix)}")
        read = by_suffix[path.suffix.lower()]
        return load_dataset if read is from_npz and is_stored_dataset(path) else read
    if isinstance(source, str) and path.name == source and not path.suffix:
        raise unknown_name("dataset (and no such folder or file)", source, _entries)
    raise FileNotFoundError(f"source={str(path)!r}: there is no such folder or file")
