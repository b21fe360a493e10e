"""K folds that keep the classes: every sample is held out exactly once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.data.types import Labels

Indices = npt.NDArray[np.int64]


def assign_folds(labels: Labels, count: int, seed: int) -> Indices:
    """The fold, from 0 to `count - 1`, in which each sample is held out.

    The samples of a class are shuffled and dealt out in turn, class after class without starting again at fold 0: the
    folds' sizes, and a class's samples in them, differ by at most one.
    """
    if not 2 <= count <= len(labels):
        raise bad_value("folds", count, f"a whole number from 2 to the {len(labels):,} samples")
    generator = np.random.default_rng((seed, count))
    order = np.concatenate([generator.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)])
    folds = np.empty(len(labels), dtype=np.int64)
    folds[order] = np.arange(len(labels)) % count
    return folds
