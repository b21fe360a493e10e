"""Wrong counts, labels out of range, empty classes: said once, clearly, before any training starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, TypeVar

import numpy as np

from ncsam._checks import LARGEST, flag, instance
from ncsam._errors import bad_value
from ncsam.data.types import UNKNOWN, DataSet, Labels, Split

T = TypeVar("T")


def first_few(items: Iterable[T], total: int, shown: int = 5) -> str:
    """`a, b, c ... (12 in all)`: enough of a list to act on."""
    head = [str(item) for _, item in zip(range(shown), items, strict=False)]
    return ", ".join(head) + (f" ... ({total:,} in all)" if total > len(head) else "")


def check(
    dataset: DataSet, *, expected: Mapping[str, int] | None = None, partial: bool = False, allow_empty: bool = False
) -> DataSet:
    """Return `dataset` if it is sound, else raise a `ValueError` that names the split and what is wrong in it.

    Args:
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
            raise ValueError(f"{where}: {len(other):,} {name} for {len(split.labels):,} labels; they must be as many")
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
