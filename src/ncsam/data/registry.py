"""Datasets by name: one file and one `@register` line add one."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from ncsam._arguments import LARGEST, coerce_options, find_named, flag, instance, is_reference
from ncsam._errors import bad_value, refuse_unknown, unknown_name
from ncsam.data.types import UNKNOWN, DataSet, Labels, Split, first_few


def check(
    dataset: DataSet, *, expected: Mapping[str, int] | None = None, partial: bool = False, allow_empty: bool = False
) -> DataSet:
    """Return `dataset` if it is sound, else raise a `ValueError` that names the split and what is wrong in it.

    Args:
        dataset: As a reader made it.
        expected: The published number of samples of each split, where there is one.
        partial: Accept a part of a published dataset: other counts, and empty classes.
        allow_empty: Accept classes without a training sample.
    """
    instance("dataset", dataset, DataSet, "a dataset, as `load` and `from_arrays` return it")
    for name, value in (("partial", partial), ("allow_empty", allow_empty)):
        flag(name, value)
    if expected is not None and not isinstance(expected, Mapping):
        raise bad_value("expected", expected, "a number of samples for each split, by name")
    _check_description(dataset)
    for name, split in dataset.splits.items():
        where = f"{dataset.name}, split {name!r}"
        _check_lengths(split, where)
        if expected is not None and not partial and len(split) != expected.get(name, len(split)):
            raise ValueError(
                f"{where}: {len(split):,} samples found, {expected[name]:,} expected. A file is missing or incomplete; "
                "partial=True accepts a part of the dataset"
            )
        _check_range(split.labels, 0, dataset.num_classes, f"{where}: label")
        if split.clean is not None:
            lowest = UNKNOWN if name in dataset.extra else 0
            _check_range(split.clean, lowest, dataset.num_classes, f"{where}: clean label")
    if len(dataset.train) == 0:
        raise ValueError(f"{dataset.name}: the training split is empty")
    counts = np.bincount(dataset.train.labels, minlength=dataset.num_classes)
    empty = np.flatnonzero(counts == 0)
    if len(empty) and not (allow_empty or partial):
        listed = first_few((f"{c} ({dataset.classes[c]!r})" for c in empty), len(empty))
        raise ValueError(
            f"{dataset.name}: {len(empty)} of {dataset.num_classes} classes have no training sample: {listed}. "
            "allow_empty=True accepts this (in the shell: --data-options allow_empty=true)"
        )
    return dataset


def _check_description(dataset: DataSet) -> None:
    """Class names that differ, and as many means and deviations as there are channels or features."""
    twice = [name for name, count in Counter(dataset.classes).items() if count > 1]
    if twice:
        raise ValueError(f"{dataset.name}: classes of the same name: {first_few(map(repr, twice), len(twice))}")
    if len(dataset.mean) != len(dataset.std):
        raise bad_value("std", dataset.std, f"as many numbers as mean has ({len(dataset.mean)})")
    for argument, numbers in (("mean", dataset.mean), ("std", dataset.std)):
        if not isinstance(numbers, tuple) or not all(map(_is_finite, numbers)):
            raise bad_value(argument, numbers, "finite numbers")
    inputs = dataset.train.inputs
    if isinstance(inputs, np.ndarray) and inputs.ndim in (2, 4) and len(dataset.mean) not in (1, inputs.shape[-1]):
        raise bad_value("mean", dataset.mean, f"{inputs.shape[-1]} numbers, as the inputs have channels or features")
    if not all(number > 0 for number in dataset.std):
        raise bad_value("std", dataset.std, "numbers above 0")


def _is_finite(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and bool(abs(value) <= LARGEST)  # type: ignore[operator]


def _check_lengths(split: Split, where: str) -> None:
    for name, other in (("inputs", split.inputs), ("clean labels", split.clean)):
        if other is not None and len(other) != len(split.labels):
            raise ValueError(f"{where}: {len(other):,} {name} for {len(split.labels):,} labels; expected one per label")
    if isinstance(split.inputs, np.ndarray):
        shape, kind = split.inputs.shape, split.inputs.dtype
        if kind == np.uint8 and (len(shape) != 4 or shape[3] not in (1, 3)):
            raise ValueError(f"{where}: uint8 images of shape {shape}; expected (N, H, W, C) with 1 or 3 channels")
        if kind not in (np.uint8, np.float32):
            raise ValueError(f"{where}: inputs of type {kind}; expected uint8 images or float32 features")


def _check_range(labels: Labels, lowest: int, num_classes: int, what: str) -> None:
    wrong = np.flatnonzero((labels < lowest) | (labels >= num_classes))
    if len(wrong):
        raise ValueError(
            f"{what} {labels[wrong[0]]} of sample {wrong[0]:,} is out of range; the {num_classes} classes are 0 to "
            f"{num_classes - 1} ({len(wrong):,} such labels)"
        )


Reader = Callable[..., DataSet]


@dataclass(frozen=True)
class Entry:
    """A registered dataset: its reader, what it holds, how one gets it, and under which terms.

    Attributes:
        name: As `load` knows it.
        read: Takes the root folder first and options by keyword.
        about: What the dataset holds, in one line.
        obtain: A sentence on how to get it.
        license: Its terms of use.
    """

    name: str
    read: Reader
    about: str
    obtain: str
    license: str


_entries: dict[str, Entry] = {}


def register(name: str, *, about: str, obtain: str, license: str) -> Callable[[Reader], Reader]:
    """Make a reader known to `load` as `name`. The reader takes the root folder first and options by keyword.

    Args:
        name: Must not be registered yet.
        about: What the dataset holds, in one line.
        obtain: A sentence on how to get it, shown where it is not found.
        license: Its terms of use.
    """

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
    """What is registered under `name`.

    Args:
        name: One of `names()`.

    Raises:
        UsageError: There is no such dataset.
    """
    if name not in _entries:
        raise unknown_name("dataset", name, _entries)
    return _entries[name]


def not_found(name: str, root: Path, wanted: str) -> FileNotFoundError:
    """One sentence on what was looked for and where, one on how to get it.

    Args:
        name: The dataset's registered name.
        root: Where it was looked for.
        wanted: The file or folder that is missing.

    Returns:
        The error, for the caller to raise.
    """
    there = "" if root.exists() else " (which does not exist)"
    return FileNotFoundError(f"{name} was not found: no {wanted} under {root}{there}. {entry(name).obtain}")


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """`root`, else the environment's `NCSAM_DATA`, else `~/.cache/ncsam`.

    Args:
        root: A folder; `~` is expanded.
    """
    return Path(root or os.environ.get("NCSAM_DATA") or Path("~/.cache/ncsam")).expanduser()


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
    from ncsam.data.tables.columns import refuse_workbook
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
            refuse_workbook(path)
            raise bad_value("source", str(path), f"a folder, or a file that ends in {', '.join(by_suffix)}")
        read = by_suffix[path.suffix.lower()]
        return load_dataset if read is from_npz and is_stored_dataset(path) else read
    if isinstance(source, str) and path.name == source and not path.suffix:
        raise unknown_name("dataset (and no such file or folder)", source, _entries)
    raise FileNotFoundError(f"no such file or folder: {str(path)!r}")
