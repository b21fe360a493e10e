"""The training samples in K stratified parts.

A model that was trained on a label tends to agree with it. Out-of-fold predictions do not: each sample is predicted by
a model that was trained on the other K - 1 parts.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value

Labels = npt.NDArray[np.int64]


def stratified_folds(labels: npt.ArrayLike, folds: int, seed: int = 0) -> Labels:
    """The part, 0 to `folds` - 1, of every sample.

    Each class is shuffled and dealt out in turn, each class continuing where the one before it stopped: the parts
    differ by at most one sample in every class, and by at most one in total.
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
    """SHA-256 of labels as little-endian 64-bit integers in order; tells whether predictions belong to them."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
