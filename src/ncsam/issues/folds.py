"""The training samples in K stratified parts, and the file of predictions that each part got from the other parts.

A network that was trained on a label tends to believe it. Out-of-fold predictions are free of that: each sample is
predicted by a network that was trained on the other K - 1 parts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path, read_array, read_json

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

OOF_FILE = "oof_probs.npy"
OOF_ABOUT = "oof_probs.json"


def stratified_folds(labels: npt.ArrayLike, folds: int, seed: int = 0) -> Labels:
    """The part, 0 to `folds` - 1, of every sample.

    Each class is shuffled and dealt out in turn, one class going on where the one before it stopped: the parts differ
    by at most one sample in every class, and by at most one in total.
    """
    given = np.asarray(labels)
    if given.ndim != 1:
        raise bad_value("labels.shape", given.shape, "one label per sample")
    if isinstance(folds, bool) or not 2 <= folds <= len(given):
        raise bad_value("folds", folds, f"a whole number from 2 to the number of samples, {len(given):,}")
    generator = np.random.default_rng(seed)
    order = np.concatenate([generator.permutation(np.flatnonzero(given == c)) for c in np.unique(given)])
    parts = np.empty(len(given), dtype=np.int64)
    parts[order] = np.arange(len(given)) % folds
    return parts


def parse_fold(text: str) -> tuple[int, int]:
    """`"2/5"`, the second part of five, as (2, 5)."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]) or int(found[2]) < 2:
        raise bad_value("fold", text, "PART/PARTS such as 2/5: the part that is held out, and the number of parts")
    return int(found[1]), int(found[2])


def labels_sha256(labels: Labels) -> str:
    """Of labels as little-endian 64-bit integers in order; tells whether predictions belong to them."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True)
class OutOfFold:
    """Out-of-fold predictions of a training split.

    `probabilities` is float32 (samples, classes), in the order of the training split. `about` says how they were made:
    `folds`, `seed` of the split, `labels_sha256` of the observed labels, and what else their maker notes.
    """

    probabilities: Floats
    about: dict[str, Any]

    def belong_to(self, labels: Labels) -> bool:
        """Whether they were made for these observed labels, and have a row for each and a column for every class."""
        rows, columns = self.probabilities.shape
        fits = rows == len(labels) and columns > max(labels, default=-1)
        return bool(fits) and self.about.get("labels_sha256") == labels_sha256(labels)


def save_oof(folder: Path, probabilities: npt.ArrayLike, labels: Labels, about: Mapping[str, Any]) -> None:
    """Write `oof_probs.npy` and `oof_probs.json` into a run folder. `about` should hold `folds` and `seed`."""
    rows = np.asarray(probabilities, dtype=np.float32)
    if rows.ndim != 2 or len(rows) != len(labels) or not np.isfinite(rows).all():
        raise bad_value("probabilities", f"{rows.dtype} {rows.shape}", f"finite numbers ({len(labels)}, classes)")
    with atomic_path(folder / OOF_FILE) as temporary, temporary.open("wb") as file:
        np.save(file, rows, allow_pickle=False)
    with atomic_path(folder / OOF_ABOUT) as temporary:
        text = json.dumps({**about, "labels_sha256": labels_sha256(labels)}, indent=2) + "\n"
        temporary.write_text(text, encoding="utf-8")


def load_oof(folder: Path) -> OutOfFold | None:
    """What `save_oof` wrote; `None` if a run has no out-of-fold predictions."""
    if not (folder / OOF_ABOUT).is_file() or not (folder / OOF_FILE).is_file():
        return None
    probabilities, about = read_array(folder / OOF_FILE), read_json(folder / OOF_ABOUT)
    if probabilities.ndim != 2 or probabilities.dtype.kind != "f" or not np.isfinite(probabilities).all():
        raise ValueError(f"{folder / OOF_FILE} does not hold probabilities (samples, classes)")
    return OutOfFold(probabilities.astype(np.float32, copy=False), about)
