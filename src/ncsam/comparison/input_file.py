"""Data in memory as one `.npz` file, so that worker processes and later commands can read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam.data.readers.arrays import from_npz
from ncsam.data.types import DataSet
from ncsam.errors import RunError
from ncsam.issues.folds import labels_sha256

INPUT = "input.npz"


def save_input(dataset: DataSet, path: Path) -> None:
    """Write arrays of images or features, their labels and classes to `path`, as `ncsam.data.load` reads them.

    A file that is there already is kept if it holds the same labels.

    Raises:
        UsageError: if the inputs are not arrays; files and texts are given by their path instead.
        RunError: if the file holds other labels.
    """
    if path.is_file():
        if labels_sha256(from_npz(path, allow_empty=True).train.labels) != labels_sha256(dataset.train.labels):
            raise RunError(f"{path} holds other data: choose another folder")
        return
    arrays: dict[str, Any] = {"classes": np.array(dataset.classes)}
    for suffix, split in (("", dataset.train), ("_test", dataset.test), ("_val", dataset.val)):
        if split is None:
            continue
        if not isinstance(split.inputs, np.ndarray):
            raise bad_value("dataset", dataset.name, "arrays of images or features, or the path of the data")
        arrays |= {f"x{suffix}": split.inputs, f"y{suffix}": split.labels}
        if split.clean is not None and suffix != "_val":
            arrays[f"y{suffix}_clean"] = split.clean
        if split.names is not None:
            arrays[f"paths{suffix}"] = split.names
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
