"""Verified labels, for methods that use some: whether people found a label right."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.data.labels import stratified
from ncsam.engine.task import Task
from ncsam.errors import UsageError
from ncsam.methods import Method

Verdicts = npt.NDArray[np.int8]


def verdicts(method: Method, task: Task, seed: int) -> tuple[Verdicts | None, dict[str, Any] | None]:
    """1 (right), 0 (wrong) or -1 (not looked at) for each training sample, and where this comes from.

    A method without `verified_share` gets nothing. Else they are those of the dataset; where it brings none but the
    clean labels are known, a share of the samples trained on, drawn by the run's seed and balanced over classes, is
    compared with the clean labels.
    """
    if not method.verified_share:
        return None, None
    split = task.dataset.train
    if split.verified is not None:
        found = split.verified.copy()
        if task.val is not None:
            found[task.val] = -1
        source = "the dataset's own"
    elif split.clean is not None:
        found = np.full(len(split), -1, dtype=np.int8)
        _, drawn = stratified(split.labels[task.train], method.verified_share, seed=seed)
        rows = task.train[drawn]
        found[rows] = split.labels[rows] == split.clean[rows]
        source = f"clean labels of {method.verified_share:.4g} of the training samples, drawn by seed {seed}"
    else:
        raise bad_value(
            "method",
            method.name,
            "another one, or verified labels: a column `verified` (1 right, 0 wrong, empty unknown) in your table, "
            "Food-101N, or data whose clean labels are known",
        )
    if not (found == 1).any():
        raise UsageError(
            f"method {method.name!r} needs at least one label that was verified and found right, and there is none: "
            f"{source}. Verify more labels, or use another seed or a larger verified_share"
        )
    count = int((found >= 0).sum())
    return found, {"source": source, "samples": count, "right": int((found == 1).sum())}
