"""What a reader returns: the images or where they lie, the observed labels, and, kept apart, the clean ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Labels: TypeAlias = npt.NDArray[np.int64]
#: In memory: uint8 (N, H, W, C) pictures or float32 (N, ...) features. On disk: one path per sample.
Images: TypeAlias = "npt.NDArray[Any] | Sequence[Path]"


@dataclass(frozen=True)
class Split:
    """One part (training, test, validation) of a data set.

    `labels` are the observed ones, right or wrong; `clean`, where known, is for metrics only and never reaches
    training. `index` of a sample is its position here.
    """

    images: Images
    labels: Labels
    clean: Labels | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_memory(self) -> bool:
        return isinstance(self.images, np.ndarray)

    def with_labels(self, labels: Labels, clean: Labels | None) -> Split:
        """The same images under other observed labels."""
        return replace(self, labels=labels, clean=clean)

    def take(self, index: npt.NDArray[np.int64]) -> Split:
        """The samples at `index`, in that order."""
        images = self.images[index] if isinstance(self.images, np.ndarray) else [self.images[i] for i in index]
        return Split(images, self.labels[index], None if self.clean is None else self.clean[index])


@dataclass(frozen=True)
class DataSet:
    """A data set by name: its classes, its splits, and how its pictures are normalised.

    `mean` and `std` are per channel, in units of pictures scaled to [0, 1]; for float features, of the features.
    `size` is the (height, width) that a network sees; `None` for features that are not pictures.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def num_classes(self) -> int:
        return len(self.classes)
