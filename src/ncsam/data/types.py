"""What a reader returns: the inputs or where they lie, the observed labels, and, kept apart, the clean ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

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
        return PathList(self.root, self.names[index], keep=self.keep)


class LazyInputs(Sequence[Any]):
    """Samples that `make(i)` makes when asked; `order` says which of them, in which order."""

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
        return type(self)(self.make, self.order[index])


class LazyImages(LazyInputs):
    """Decoded uint8 (H, W, C) arrays."""


@dataclass(frozen=True)
class Split:
    """One part (training, test, validation) of a dataset.

    `labels` are the observed ones, right or wrong; `clean`, where known, is for metrics only and never reaches
    training. `index` of a sample is its position here. `original` are the samples that features were computed from:
    image files, texts or rows of a table. `names` are the files of the samples, where nothing but their names is known.
    `verified`, where people judged some labels, is 1 where they found the observed one right, 0 where wrong, and -1
    where they did not look.
    """

    inputs: Inputs
    labels: Labels
    clean: Labels | None = None
    names: npt.NDArray[np.str_] | None = None
    verified: npt.NDArray[np.int8] | None = None
    original: Inputs | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.inputs, np.ndarray)

    def with_labels(self, labels: Labels, clean: Labels | None) -> Split:
        """The same inputs under other observed labels, none of them verified."""
        return replace(self, labels=labels, clean=clean, verified=None)

    def take(self, index: npt.NDArray[np.int64]) -> Split:
        """The samples at `index`, in that order."""
        clean = None if self.clean is None else self.clean[index]
        names = None if self.names is None else self.names[index]
        verified = None if self.verified is None else self.verified[index]
        original = None if self.original is None else take(self.original, index)
        return Split(take(self.inputs, index), self.labels[index], clean, names, verified, original)

    def of_original(self) -> Split:
        """The split of the samples that features were computed from; itself, where it is not known which."""
        return self if self.original is None else replace(self, inputs=self.original, original=None)

    def path(self, index: int) -> str | None:
        """The file of a sample, where it has one."""
        for inputs in (self.inputs, self.original):
            if isinstance(inputs, PathList):
                return str(inputs[index])
        return None if self.names is None else str(self.names[index])

    @property
    def has_paths(self) -> bool:
        return isinstance(self.inputs, PathList) or isinstance(self.original, PathList) or self.names is not None


def take(inputs: Inputs, index: npt.NDArray[np.int64]) -> Inputs:
    """The inputs at `index`, in that order."""
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
    """Somebody who labeled some of the training samples, and the estimated share of their answers that is right."""

    name: str
    answers: int
    accuracy: float


@dataclass(frozen=True, repr=False)
class DataSet:
    """A dataset by name: its classes, its splits, and how its inputs are normalized.

    `mean` and `std` are per channel, in units of images scaled to [0, 1]; for float features of shape (N, F) they are
    per feature, for features of any other shape one number; texts and trees have none. `size` is the (height, width) of
    images that a network sees, `columns` are the names of features, where they have any. `val` is a validation split
    where the dataset has one of its own. `extra` holds further published subsets by name (Clothing1M's clean training
    images, Food-101N's verified ones). `annotators` are those whose answers were joined into the labels, if there were
    several. `encoding` says how the inputs were computed, where they are features of other samples; `original` is the
    dataset of those samples. `notes` say what a reader decided and what it left out.
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
