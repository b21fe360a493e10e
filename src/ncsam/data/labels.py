"""Labels as people write them (names, numbers, text) turned into class numbers, and splits that keep the classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._checks import choice, count, instance, number
from ncsam._errors import bad_value
from ncsam.data.check import first_few
from ncsam.data.types import DataSet, Labels, Split

_MOST_CLASSES = 100_000  # class numbers may leave gaps up to here, if the reader is told to accept them


def encode_labels(
    columns: Sequence[Iterable[Any] | None], classes: Sequence[str] | None = None, *, where: str
) -> tuple[list[Labels | None], tuple[str, ...]]:
    """Turn columns of labels (observed, clean, test ...) into class numbers under one list of classes.

    Whole numbers are class numbers. Text is class names: the classes are the names found, sorted, unless `classes`
    gives them in an order of its own. Text that is nothing but whole numbers, and no names of `classes`, is class
    numbers. Numbers too large for that (article numbers, years of more samples than there are) are names, in order of
    size.
    """
    if classes is not None:
        classes = _class_names(classes, where)
    values = [None if column is None else _values(column, where) for column in columns]
    text = [column for column in values if column is not None and column.dtype.kind == "U"]
    found = sorted({name for column in text for name in np.unique(column).tolist()})
    if all(name.removeprefix("-").isdecimal() for name in found) and not (classes and set(found) <= set(classes)):
        if classes is None and (identifiers := _identifiers(values)):
            values = [None if column is None else column.astype(np.str_) for column in values]
            names = tuple(identifiers)
        else:
            values = [None if column is None else _whole(column, where) for column in values]
            top = max((int(column.max(initial=-1)) for column in values if column is not None), default=-1)
            names = tuple(classes) if classes is not None else tuple(str(i) for i in range(top + 1))
    else:
        names = tuple(classes) if classes is not None else tuple(found)
        unknown = [name for name in found if name not in set(names)]
        if unknown:
            listed = first_few(map(repr, unknown), len(unknown))
            raise ValueError(f"{where}: labels that are not among classes: {listed}")
    number = {name: i for i, name in enumerate(names)}
    return [None if column is None else _numbers(column, number) for column in values], names


def _identifiers(columns: Sequence[npt.NDArray[Any] | None]) -> list[str]:
    """The distinct numbers, as text in order of size, if they are too large to count classes by; else nothing."""
    found = {str(value) for column in columns if column is not None for value in np.unique(column).tolist()}
    samples = sum(len(column) for column in columns if column is not None)
    ordered = sorted(found, key=lambda digits: (len(digits.lstrip("0")), digits))
    if not found or any(digits.startswith("-") for digits in found):
        return []
    small = len(ordered[-1].lstrip("0")) < 19 and int(ordered[-1]) < max(samples, _MOST_CLASSES)
    return [] if small else ordered


def _whole(column: npt.NDArray[Any], where: str) -> Labels:
    try:
        return column.astype(np.int64)
    except (OverflowError, ValueError):  # text of more digits than a class number has
        longest = max(column.tolist(), key=len)
        raise ValueError(f"{where}: label {longest} is no class number") from None


def _class_names(classes: Any, where: str) -> tuple[str, ...]:
    """Names in an order of their own; a single text would be a name for each of its letters."""
    listed = isinstance(classes, Sequence) and not isinstance(classes, (str, bytes))
    names = tuple(classes) if listed or getattr(classes, "ndim", 0) == 1 else (None,)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where}: {bad_value('classes', classes, 'a list of names, as text')}")
    return names


def _values(column: Iterable[Any], where: str) -> npt.NDArray[Any]:
    """A column as an array of int64 or of text."""
    try:
        values = np.asarray(column if isinstance(column, np.ndarray) else list(column))
    except (TypeError, ValueError):  # what has no end or no parts, or parts of different lengths
        raise ValueError(f"{where}: labels of type {type(column).__name__}; expected one label per sample") from None
    if values.ndim != 1:
        raise ValueError(f"{where}: labels of shape {values.shape}; expected one label per sample")
    if values.dtype.kind in "cV":
        raise ValueError(f"{where}: labels of type {values.dtype}; expected whole numbers or text")
    if values.dtype.kind == "f":
        # NaN is broken too: it differs from itself; and beyond 2^53 neighboring numbers are one
        broken = np.flatnonzero((values != np.round(values)) | (np.abs(values) > 2.0**53))
        if len(broken):
            raise ValueError(f"{where}: label {values[broken[0]]} of sample {broken[0]:,} is not a whole number")
    if values.dtype.kind in "fbiu" and values.dtype != np.uint64:
        return values.astype(np.int64)
    text = np.char.strip(np.array([_text(value) for value in values.tolist()], dtype=np.str_))
    missing = np.flatnonzero(text == "")
    if len(missing):
        raise ValueError(f"{where}: sample {missing[0]:,} has no label ({len(missing):,} such samples)")
    return text


def _text(value: Any) -> str:
    """A label as text; nothing at all where there is none."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return "" if is_missing(value) else str(value)


def is_missing(label: Any) -> bool:
    """Whether there is no label: `None`, empty text, or what stands for a missing value and differs from itself."""
    try:
        return label is None or bool(label == "") or bool(label != label)
    except (TypeError, ValueError):  # pandas.NA; an array, which is no label, but not missing either
        return not hasattr(label, "__len__")


def _numbers(column: npt.NDArray[Any], number: dict[str, int]) -> Labels:
    if column.dtype.kind != "U":
        return column
    found, inverse = np.unique(column, return_inverse=True)
    return np.array([number[name] for name in found.tolist()], dtype=np.int64)[inverse.reshape(-1)]


def stratified(labels: Labels, fraction: float, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Indices (kept, held out), each in rising order: of every class, `round(fraction * its count)` are held out."""
    number("fraction", fraction, "a number between 0 and 1, both excluded", lambda share: 0 < share < 1)
    generator = np.random.default_rng(count("seed", seed))
    held = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        held[generator.permutation(members)[: round(fraction * len(members))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def test_from_val(splits: dict[str, Split], what: str) -> tuple[str, ...]:
    """Let the validation split serve as the test split where there is no other; returns the note that says so."""
    if "test" in splits or "val" not in splits:
        return ()
    splits["test"] = splits.pop("val")
    return (f"{what} serve as the test split",)


def hold_out(dataset: DataSet, fraction: float, *, into: str = "val", seed: int = 0) -> DataSet:
    """Move a stratified part of the training split into `val` or `test`, where the dataset has none of its own.

    The part keeps its observed labels, right or wrong: a validation split made this way is as noisy as the training.
    """
    instance("dataset", dataset, DataSet, "a dataset, as `load` and `from_arrays` return it")
    choice("into", into, ("val", "test"))
    if getattr(dataset, into) is not None:
        raise bad_value("into", into, f"a split that {dataset.name} does not have yet")
    kept, held = stratified(dataset.train.labels, fraction, seed)
    train, part = dataset.train.take(kept), dataset.train.take(held)
    return replace(dataset, train=train, val=part) if into == "val" else replace(dataset, train=train, test=part)
