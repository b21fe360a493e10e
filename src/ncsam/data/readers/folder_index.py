"""The files of a large folder of class folders, found once and kept.

Listing millions of files is slow, above all on a network drive; there are far fewer folders to ask for the time of
their last change. It changes when a file in a folder is added, removed or renamed, so that an index whose folders all
have their times still is true. The folder above the classes is not asked: its classes are compared by name.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ncsam._files import atomic_path, open_arrays

INDEX = ".ncsam-files.npz"
#: From so many files on an index is kept.
LARGE = 50_000
_SETTLED = 2.0  # seconds without a change, before which two changes could have one and the same time

Names = npt.NDArray[np.bytes_]
Labels = npt.NDArray[np.int64]


def read_index(folder: Path, classes: Sequence[str]) -> tuple[Names, Labels] | None:
    """The files and class numbers that `keep_index` wrote; `None` if there is no index, or a folder has changed.

    Args:
        folder: The folder above the class folders.
        classes: Names of the class folders, in the order of the class numbers.

    Returns:
        Paths relative to `folder`, as bytes, and class numbers.
    """
    with contextlib.suppress(OSError, ValueError, KeyError), open_arrays(folder / INDEX) as file:
        times = [os.stat(folder / os.fsdecode(bytes(name))).st_mtime_ns for name in file["folders"]]
        if times == file["times"].tolist() and file["classes"].tolist() == list(classes):
            names, labels = file["names"], file["labels"]
            return (names, labels) if _fit(names, labels, len(classes)) else None
    return None


def _fit(names: Names, labels: Labels, classes: int) -> bool:
    """Whether these are names of files below the folder, each with a class."""
    if names.dtype.kind != "S" or names.ndim != 1 or labels.dtype != np.int64 or labels.shape != names.shape:
        return False
    elsewhere = np.char.startswith(names, b"/") | (np.char.find(names, b"../") >= 0)
    return bool(len(names) and not elsewhere.any() and labels.min() >= 0 and labels.max() < classes)


def keep_index(folder: Path, classes: Sequence[str], names: Names, labels: Labels) -> bool:
    """Write the index, where the folder may be written to, has no links to folders, and has not just changed.

    Args:
        folder: The folder above the class folders.
        classes: Names of the class folders, in the order of the class numbers.
        names: Paths relative to `folder`, as bytes.
        labels: The class number of each.

    Returns:
        Whether it was written.
    """
    found = _folders(folder)
    if found is None:
        return False
    folders, times = found
    if max(times) > time.time_ns() - _SETTLED * 1e9:
        return False
    stored = np.array([os.fsencode(name) for name in folders], dtype="S")
    try:
        with atomic_path(folder / INDEX) as temporary, temporary.open("wb") as file:
            np.savez(file, names=names, labels=labels, classes=np.array(classes), folders=stored, times=np.array(times))
    except OSError:
        return False
    return True


def _folders(folder: Path) -> tuple[list[str], list[int]] | None:
    """Every folder below, with the time of its last change; `None` if one of them is a link."""
    waiting, found, times = [""], [], []
    while waiting:
        here = waiting.pop()
        if here:
            found.append(here)
            times.append(os.stat(folder / here).st_mtime_ns)
        with os.scandir(folder / here) as entries:
            for entry in entries:
                if entry.is_dir():
                    if entry.is_symlink():
                        return None
                    waiting.append(os.path.join(here, entry.name))
    return found, times
