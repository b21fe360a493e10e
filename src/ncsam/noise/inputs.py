"""Checks, random streams and draws that every generator uses; your own generators can import them from here.

Examples:
    >>> clean, size = check_labels([0, 1, 2, 1], None)
    >>> size, replaced(clean, [3], [0]).tolist()
    (3, [0, 1, 2, 0])
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ncsam._arguments import count, number
from ncsam._errors import bad_value

Labels: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_MOST_CLASSES = 1_000_000


def as_array(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """A numpy view of a list, an array or a tensor on any device.

    Args:
        values: Anything numpy reads, or a tensor.
        name: The argument's name, for the error message.
    """
    detach = getattr(values, "detach", None)
    try:
        return np.asarray(values if detach is None else detach().cpu())
    except (TypeError, ValueError):
        raise bad_value(name, values, "an array with rows of equal length") from None


def as_labels(labels: npt.ArrayLike, name: str = "labels") -> Labels:
    """A read-only int64 copy of one-dimensional whole-number labels; the caller's own are never changed.

    Args:
        labels: Whole numbers (N,).
        name: The argument's name, for the error message.

    Raises:
        UsageError: The labels are not whole numbers (N,), or there are none.
    """
    array = as_array(labels, name)
    if array.ndim != 1 or array.size == 0:
        raise bad_value(f"{name}.shape", array.shape, "(samples,), one class number for each of at least one sample")
    if array.dtype.kind not in "iu":
        raise bad_value(f"{name}.dtype", str(array.dtype), "a type of whole numbers")
    if array.dtype == np.int64 and array.base is None and not array.flags.writeable:
        return array  # already a frozen copy of ours
    frozen = np.array(array, dtype=np.int64, order="C")
    frozen.setflags(write=False)
    return frozen


def resolve_num_classes(labels: Labels, num_classes: int | None, name: str = "labels") -> int:
    """The number of classes, after checking that every label fits.

    Args:
        labels: Labels from `as_labels`.
        num_classes: C. `None` infers it: the labels must then use every class from 0 to their largest, because a gap
            more likely means a subset with classes missing than a class that does not exist.
        name: The argument's name, for the error message.

    Raises:
        UsageError: A label does not fit, or C cannot be inferred.
    """
    low, high = int(labels.min()), int(labels.max())
    if num_classes is None:
        if low < 0:
            raise bad_value(f"{name}[{int(labels.argmin())}]", low, "a class number, 0 or larger")
        if high >= len(labels) or not np.bincount(labels, minlength=high + 1).all():
            raise bad_value("num_classes", None, f"a number, because {name} do not use every class from 0 to {high}")
        num_classes = high + 1
    else:
        num_classes = count("num_classes", num_classes, 2, _MOST_CLASSES)
    if low < 0 or high >= num_classes:
        where = int(labels.argmin() if low < 0 else labels.argmax())
        raise bad_value(f"{name}[{where}]", int(labels[where]), f"a class number from 0 to {num_classes - 1}")
    if num_classes < 2:
        raise bad_value("num_classes", num_classes, "at least 2, because noise needs another class")
    return int(num_classes)


def check_labels(labels: npt.ArrayLike, num_classes: int | None) -> tuple[Labels, int]:
    """A frozen copy of the labels and the number of classes.

    Args:
        labels: Whole numbers (N,).
        num_classes: C, or `None` to infer it.
    """
    frozen = as_labels(labels)
    return frozen, resolve_num_classes(frozen, num_classes)


def check_rate(rate: float, name: str = "rate") -> float:
    """A noise rate as a float in [0, 1].

    Args:
        rate: The rate.
        name: Name of the argument, for the error message.
    """
    return number(name, rate, "a number from 0 to 1 (40 % is 0.4)", lambda share: 0 <= share <= 1)


def check_seed(seed: int) -> int:
    """A seed as a whole number, 0 or larger.

    Args:
        seed: A whole number, 0 or larger.
    """
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise bad_value("seed", seed, "a whole number, 0 or larger")
    return int(seed)


def check_matrix(matrix: npt.ArrayLike, name: str, shape: tuple[int, int]) -> Floats:
    """A float64 copy of a matrix whose rows are probabilities.

    Args:
        matrix: Real numbers.
        name: The argument's name, for the error message.
        shape: The shape it must have.
    """
    given = as_array(matrix, name)
    if given.dtype.kind not in "iuf":
        raise bad_value(f"{name}.dtype", str(given.dtype), "a type of real numbers")
    array: Floats = np.array(given, dtype=np.float64)
    if array.shape != shape:
        raise bad_value(f"{name}.shape", array.shape, f"{shape}")
    if not np.isfinite(array).all() or array.min() < 0:
        raise bad_value(name, "negative or not finite", "finite probabilities, 0 or larger")
    sums = array.sum(axis=1)
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > 1e-3:
        raise bad_value(f"{name}[{row}].sum()", float(sums[row]), "1, the sum of every row")
    array /= sums[:, None]
    return array


def stream(seed: int, purpose: str) -> np.random.Generator:
    """Random numbers for one purpose.

    They are keyed by seed and purpose, so that a program that uses the same seed to draw its data, or another generator
    here, does not accidentally draw the same numbers.

    Args:
        seed: A whole number, 0 or larger.
        purpose: Any text, such as the name of the generator.
    """
    return np.random.default_rng([check_seed(seed), *purpose.encode()])


def by_class(labels: Labels, rows: npt.NDArray[np.intp] | None = None) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Each class that occurs, with the positions of its samples in increasing order.

    Args:
        labels: Labels from `as_labels`.
        rows: Positions to consider; by default all.
    """
    chosen = labels if rows is None else labels[rows]
    small = chosen.astype(np.min_scalar_type(int(labels.max())))  # 8 and 16 bit sort by radix, far quicker
    order = np.argsort(small, kind="stable")
    edges = np.flatnonzero(np.diff(chosen[order])) + 1
    for part in np.split(order, edges):
        if len(part):
            yield int(chosen[part[0]]), part if rows is None else rows[part]


def replaced(labels: Labels, rows: npt.NDArray[np.intp], values: Labels) -> Labels:
    """A frozen copy of the labels with `values` at `rows`.

    Args:
        labels: Labels from `as_labels`.
        rows: Positions.
        values: Their new labels.
    """
    changed: Labels = labels.copy()
    changed[rows] = values
    changed.setflags(write=False)
    return changed


def draw_rows(probabilities: Floats, uniforms: Floats) -> Labels:
    """One class per row of probabilities, by inversion: the first whose cumulative probability exceeds the uniform.

    Args:
        probabilities: (rows, C).
        uniforms: One uniform number per row.
    """
    cumulated = probabilities.cumsum(axis=1)
    cumulated /= cumulated[:, -1:]
    drawn: Labels = (cumulated <= uniforms[:, None]).sum(axis=1, dtype=np.int64)
    return drawn


def draw_by_class(matrix: Floats, labels: Labels, rows: npt.NDArray[np.intp] | None, uniforms: Floats) -> Labels:
    """For each chosen sample one class from its label's row of `matrix`; the other samples keep their label.

    Args:
        matrix: (C, C), rows of probabilities.
        labels: Labels from `as_labels`.
        rows: Positions.
        uniforms: One uniform number per row.
    """
    drawn: Labels = labels.copy()
    for label, part in by_class(labels, rows):
        cumulated = matrix[label].cumsum()
        cumulated /= cumulated[-1]
        drawn[part] = np.searchsorted(cumulated, uniforms[part], side="right")
    return drawn
