"""What a reader returns: the inputs or where they lie, the observed labels, and, kept apart, the clean ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from ncsam._arguments import choice, count, instance, number
from ncsam._errors import bad_value

_MOST_CLASSES = 100_000  # class numbers may leave gaps up to here, if the reader is told to accept them


def encode_labels(
    columns: Sequence[Iterable[Any] | None], classes: Sequence[str] | None = None, *, where: str
) -> tuple[list[Labels | None], tuple[str, ...]]:
    """Turn columns of labels (observed, clean, test ...) into class numbers under one list of classes.

    Whole numbers are class numbers. Text is class names: the classes are the names found, sorted, unless `classes`
    gives them in an order of its own. Text that is nothing but whole numbers, and no names of `classes`, is class
    numbers. Numbers too large for that (article numbers, years of more samples than there are) are names, in order of
    size.

    Args:
        columns: One label per sample each; `None` for a column that does not exist.
        classes: Class names in the order of the class numbers.
        where: What error messages call the data.

    Returns:
        int64 arrays in the place of the columns, and the class names.

    Raises:
        ValueError: A label is missing, no whole number, or not among `classes`.
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
            raise ValueError(
                f"{where}: label {values[broken[0]]} of sample {broken[0]:,} is not a whole number: labels are classes"
            )
    if values.dtype.kind in "fbiu" and values.dtype != np.uint64:
        return values.astype(np.int64)
    text = np.char.strip(np.array([_text(value) for value in values.tolist()], dtype=np.str_))
    missing = np.flatnonzero(text == "")
    if len(missing):
        raise ValueError(
            f"{where}: sample {missing[0]:,} has no label ({len(missing):,} such samples): label them, or remove them"
        )
    return text


def _text(value: Any) -> str:
    """A label as text; nothing at all where there is none."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    return "" if is_missing(value) else str(value)


def is_missing(label: Any) -> bool:
    """Whether there is no label: `None`, empty text, or what stands for a missing value and differs from itself.

    Args:
        label: Of any type.
    """
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
    """Indices (kept, held out), each in rising order: of every class, `round(fraction * its count)` are held out.

    Args:
        labels: (N,) class numbers.
        fraction: Above 0 and below 1.
        seed: From 0.
    """
    number("fraction", fraction, "a number between 0 and 1, both excluded", lambda share: 0 < share < 1)
    generator = np.random.default_rng(count("seed", seed))
    held = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        held[generator.permutation(members)[: round(fraction * len(members))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def test_from_val(splits: dict[str, Split], what: str) -> tuple[str, ...]:
    """Let the validation split serve as the test split where there is no other; returns the note that says so.

    Args:
        splits: By name; changed in place.
        what: The validation samples in words, for the note.
    """
    if "test" in splits or "val" not in splits:
        return ()
    splits["test"] = splits.pop("val")
    return (f"{what} serve as the test split",)


def hold_out(dataset: DataSet, fraction: float, *, into: str = "val", seed: int = 0) -> DataSet:
    """Move a stratified part of the training split into `val` or `test`, where the dataset has none of its own.

    The part keeps its observed labels, right or wrong: a validation split made this way is as noisy as the training.

    Args:
        dataset: One whose split `into` is `None`.
        fraction: Of every class, above 0 and below 1.
        into: "val" or "test".
        seed: Of the random choice.

    Raises:
        UsageError: The dataset has that split, or an argument is out of range.
    """
    instance("dataset", dataset, DataSet, "a dataset, as `load` and `from_arrays` return it")
    choice("into", into, ("val", "test"))
    if getattr(dataset, into) is not None:
        raise bad_value("into", into, f"a split that {dataset.name} does not have yet")
    kept, held = stratified(dataset.train.labels, fraction, seed)
    train, part = dataset.train.take(kept), dataset.train.take(held)
    return replace(dataset, train=train, val=part) if into == "val" else replace(dataset, train=train, test=part)


Labels: TypeAlias = npt.NDArray[np.int64]
#: One per sample, in a form that one of `ncsam.data.modalities` knows. Images: a uint8 array (N, H, W, C), paths, or
#: uint8 arrays (H, W, C) made on demand. Features: a float32 array (N, ...). Texts, and nested arrays. A sequence
#: that is no array may have `take(index)`, for some of its samples.
Inputs: TypeAlias = "npt.NDArray[Any] | Sequence[Any]"

#: A clean label that is known to differ from the observed one, while the true class is not known.
UNKNOWN = -1


class PathList(Sequence[Path]):
    """Many paths below one folder, held as one array of bytes.

    A million paths take tens of megabytes instead of hundreds, and the workers of a loader share them. `keep` is how
    many bytes a loader may spend on keeping the images once they are decoded.

    Args:
        root: The folder.
        names: Paths relative to it; bytes as `os.fsencode` makes them.
        keep: 0 keeps none.
    """

    def __init__(
        self, root: str | os.PathLike[str], names: Iterable[str] | npt.NDArray[np.bytes_], *, keep: int = 0
    ) -> None:
        self.root = Path(root)
        self.names = names if isinstance(names, np.ndarray) else np.array([os.fsencode(n) for n in names], dtype="S")
        self.keep = keep

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> PathList: ...
    def __getitem__(self, index: int | slice) -> Path | PathList:
        if isinstance(index, slice):
            return PathList(self.root, self.names[index], keep=self.keep)
        return self.root / os.fsdecode(bytes(self.names[index]))

    def take(self, index: npt.NDArray[np.int64]) -> PathList:
        """The paths at `index`, in that order.

        Args:
            index: Positions among these paths.
        """
        return PathList(self.root, self.names[index], keep=self.keep)


class LazyInputs(Sequence[Any]):
    """Samples that `make(i)` makes when asked; `order` says which of them, in which order.

    Args:
        make: Gets a number of `order`; it must be picklable for the workers of a loader.
        order: (N,) int64.
    """

    def __init__(self, make: Callable[[int], Any], order: npt.NDArray[np.int64]) -> None:
        self.make = make
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(self.make, self.order[index])
        return self.make(int(self.order[index]))

    def take(self, index: npt.NDArray[np.int64]) -> LazyInputs:
        """The samples at `index`, in that order; none is made yet.

        Args:
            index: Positions among these samples.
        """
        return type(self)(self.make, self.order[index])


class LazyImages(LazyInputs):
    """Decoded uint8 (H, W, C) arrays."""


@dataclass(frozen=True)
class Split:
    """One part (training, test, validation) of a dataset. The index of a sample is its position here.

    Attributes:
        inputs: The samples, or where they lie.
        labels: (N,) observed class numbers, right or wrong.
        clean: (N,) true class numbers, where known (`UNKNOWN` for some that differ from the observed ones). They are
            for metrics only and never reach training.
        names: The files of the samples, where nothing but their names is known.
        verified: Where people judged some labels: 1 if they found the observed one right, 0 if wrong, -1 if they did
            not look.
        original: The samples that features were computed from: image files, texts or rows of a table.
        cells: The rows of a table of numbers as its file has them; `inputs` are float32.
    """

    inputs: Inputs
    labels: Labels
    clean: Labels | None = None
    names: npt.NDArray[np.str_] | None = None
    verified: npt.NDArray[np.int8] | None = None
    original: Inputs | None = None
    cells: Inputs | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.inputs, np.ndarray)

    def with_labels(self, labels: Labels, clean: Labels | None) -> Split:
        """The same inputs under other observed labels, none of them verified.

        Args:
            labels: (N,) observed class numbers.
            clean: (N,) true class numbers, or `None`.
        """
        return replace(self, labels=labels, clean=clean, verified=None)

    def take(self, index: npt.NDArray[np.int64]) -> Split:
        """The samples at `index`, in that order.

        Args:
            index: Positions in this split.
        """
        clean = None if self.clean is None else self.clean[index]
        names = None if self.names is None else self.names[index]
        verified = None if self.verified is None else self.verified[index]
        original = None if self.original is None else take(self.original, index)
        cells = None if self.cells is None else take(self.cells, index)
        return Split(take(self.inputs, index), self.labels[index], clean, names, verified, original, cells)

    def of_original(self) -> Split:
        """The split of the samples that features were computed from; itself, where it is not known which."""
        return self if self.original is None else replace(self, inputs=self.original, original=None)

    def path(self, index: int) -> str | None:
        """The file of a sample, where it has one.

        Args:
            index: Position in this split.
        """
        for inputs in (self.inputs, self.original):
            if isinstance(inputs, PathList):
                return str(inputs[index])
        return None if self.names is None else str(self.names[index])

    @property
    def has_paths(self) -> bool:
        return isinstance(self.inputs, PathList) or isinstance(self.original, PathList) or self.names is not None


def take(inputs: Inputs, index: npt.NDArray[np.int64]) -> Inputs:
    """The inputs at `index`, in that order.

    Args:
        inputs: An array, or a sequence with or without a method `take`.
        index: Positions, int64.
    """
    if isinstance(inputs, np.ndarray):
        return inputs[index]
    found: Inputs = inputs.take(index) if hasattr(inputs, "take") else [inputs[i] for i in index]
    return found


@dataclass(frozen=True)
class Encoding:
    """How features were computed from the original samples.

    Attributes:
        encoder: Plain values that describe it: `{"kind": "images" | "texts" | "table", ...}`. `ncsam.embed` makes the
            encoder again from them, so that new samples can be encoded.
        mean, std, size: Of the original images, as `DataSet` has them.
    """

    encoder: Mapping[str, Any]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Annotator:
    """Somebody who labeled some of the training samples, and the estimated share of their answers that is right.

    Attributes:
        name: As in the table.
        answers: How many labels they gave.
        accuracy: In [0, 1].
    """

    name: str
    answers: int
    accuracy: float


@dataclass(frozen=True, repr=False)
class DataSet:
    """A dataset by name: its classes, its splits, and how its inputs are normalized.

    Attributes:
        name: For titles and messages.
        classes: Class names, in the order of the class numbers.
        train: The training split.
        test: The test split, if there is one.
        mean, std: Per channel, in units of images scaled to [0, 1]; for float features of shape (N, F) per feature, for
            features of any other shape one number; texts and trees have none.
        size: (height, width) of images that a model sees.
        source: Where the data was read from.
        notes: What a reader decided and what it left out.
        val: A validation split, where the dataset has one of its own.
        extra: Further published subsets by name (Clothing1M's clean training images, Food-101N's verified ones).
        columns: Names of the features, where they have any.
        annotators: Those whose answers were joined into the labels, if there were several.
        encoding: How the inputs were computed, where they are features of other samples; `original` is the dataset of
            those samples.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split | None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    size: tuple[int, int] | None = None
    source: str = ""
    notes: tuple[str, ...] = field(default=())
    val: Split | None = None
    extra: Mapping[str, Split] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    annotators: tuple[Annotator, ...] = ()
    encoding: Encoding | None = None

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):  # which a configuration file gives as lists
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))

    def __repr__(self) -> str:
        """One line: the name, and what `describe` shows in more detail."""
        sizes = ", ".join(f"{name}={len(split):,}" for name, split in self.splits.items())
        return f"<DataSet {self.name!r}: {self.num_classes:,} classes, {sizes}>"

    def _repr_html_(self) -> str:
        """What `describe` prints, for notebooks."""
        from html import escape

        from ncsam.data.describe import describe

        return f"<pre>{escape(describe(self))}</pre>"

    @property
    def original(self) -> DataSet:
        """The dataset of the samples that features were computed from, under the same labels; else the dataset itself.

        Reports, reviews and cleaned tables show these samples.
        """
        if self.encoding is None or self.train.original is None:
            return self
        splits = {
            name: None if split is None else split.of_original()
            for name, split in (("train", self.train), ("val", self.val), ("test", self.test))
        }
        about = {"mean": self.encoding.mean, "std": self.encoding.std, "size": self.encoding.size}
        return replace(self, **splits, **about, columns=(), encoding=None)  # type: ignore[arg-type]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def splits(self) -> dict[str, Split]:
        """Every split there is, by name: `train`, `val`, `test`, then the extra ones."""
        main = {"train": self.train, "val": self.val, "test": self.test}
        return {**{name: split for name, split in main.items() if split is not None}, **self.extra}


def first_few(items: Iterable[object], total: int, shown: int = 5) -> str:
    """`a, b, c ... (12 in all)`: enough of a list to act on.

    Args:
        items: Only the first `shown` are taken.
        total: How many there are.
        shown: How many to list.
    """
    head = [str(item) for _, item in zip(range(shown), items, strict=False)]
    return ", ".join(head) + (f" ... ({total:,} in all)" if total > len(head) else "")
