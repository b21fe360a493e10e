"""A copy of data that was given as Python objects: worker processes and later commands read it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import Arrays, atomic_path, open_arrays
from ncsam.data.modalities.text import TextList, tokenizer_from
from ncsam.data.types import DataSet, PathList, Split
from ncsam.errors import UsageError

MOST_BYTES = 2**29
_OPTIONAL = ("clean", "names", "verified")


def save_dataset(path: Path, dataset: DataSet, most_bytes: int | None = MOST_BYTES) -> bool:
    """Write a dataset, before any label noise of the run, to an `.npz` file.

    Args:
        path: The file.
        dataset: The dataset.
        most_bytes: The most that its arrays may take; `None` for no limit.

    Returns:
        Whether it could be stored: arrays, texts and paths are; other objects are not.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    about: dict[str, Any] = {"inputs": {}}
    for name in ("train", "val", "test"):
        split = getattr(dataset, name)
        if split is None:
            continue
        stored = _stored(split.inputs)
        if stored is None:
            return False
        arrays[f"{name}_inputs"], about["inputs"][name] = stored
        arrays[f"{name}_labels"] = split.labels
        arrays |= {f"{name}_{key}": getattr(split, key) for key in _OPTIONAL if getattr(split, key) is not None}
    if most_bytes is not None and sum(array.nbytes for array in arrays.values()) > most_bytes:
        return False
    about |= {key: getattr(dataset, key) for key in ("name", "classes", "mean", "std", "size", "source", "columns")}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    return True


def is_stored_dataset(path: Path) -> bool:
    """Whether `save_dataset` wrote an `.npz` file.

    Args:
        path: Any existing file.

    Raises:
        ValueError: It is a damaged archive.
    """
    if not zipfile.is_zipfile(path):
        return False
    with open_arrays(path) as arrays:
        return "about" in arrays.files


def load_dataset(path: Path) -> DataSet:
    """Read what `save_dataset` wrote.

    Args:
        path: The file.

    Raises:
        UsageError: The run has no copy of its data, or it is damaged.
    """
    if not path.is_file():
        raise bad_value(
            "data",
            "<in memory>",
            f"the data itself: the run was given it as a Python object, and {path.parent} has no copy",
        )
    with open_arrays(path) as file:
        try:
            return _read(file)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{path} is damaged, or not a dataset that was stored with a run: {error}") from error


def _read(file: Arrays) -> DataSet:
    about = json.loads(str(file["about"]))
    splits: dict[str, Any] = {"train": None, "val": None, "test": None}
    for name, form in about.pop("inputs").items():
        more = {key: file[f"{name}_{key}"] for key in _OPTIONAL if f"{name}_{key}" in file.files}
        splits[name] = Split(_restored(file[f"{name}_inputs"], form), file[f"{name}_labels"], **more)
    tuples: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in about.items()}
    return DataSet(**tuples, **splits)


def _stored(inputs: Any) -> tuple[npt.NDArray[Any], dict[str, Any]] | None:
    """Inputs as an array of plain values, and what restores them from it."""
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
        return inputs, {}
    if isinstance(inputs, TextList):
        texts = np.frombuffer(json.dumps(inputs.texts).encode(), dtype=np.uint8)
        return texts, {"tokenizer": inputs.tokenizer.state(), "length": inputs.length, "column": inputs.column}
    if isinstance(inputs, PathList):
        return inputs.names, {"root": str(inputs.root.absolute())}
    return None


def _restored(array: npt.NDArray[Any], form: dict[str, Any]) -> Any:
    if "tokenizer" in form:
        texts = json.loads(array.tobytes())
        return TextList(texts, tokenizer_from(form["tokenizer"]), form["length"], form["column"])
    return PathList(form["root"], array) if "root" in form else array
