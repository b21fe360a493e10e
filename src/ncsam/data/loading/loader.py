"""One loader for every kind of data: batches of views, observed labels and indices.

Order and augmentation of a batch depend on (seed, epoch, batch) alone: not on the global generators, on the number of
workers, on where the epoch was entered, nor on how many ranks share the global batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._arguments import count, flag, instance, number, positive
from ncsam._errors import bad_value
from ncsam._trees import Tree, to_device
from ncsam.data.augment.views import View
from ncsam.data.loading.sampling import (
    Batches,
    BatchRequest,
    Indices,
    Layout,
    batch_order,
    epoch_order,
    grouped_by_length,
    uniforms,
)
from ncsam.data.modalities import BatchTransform, Store, open_store
from ncsam.data.types import Split

_MOST_WORKERS = 1024
_LONGEST = 100_000  # pixels: what is longer is no image


@dataclass(frozen=True)
class Batch:
    """What a method sees of some samples: the inputs in each view, the observed labels, and the positions in the split.

    Inputs are a tensor, or a tree of tensors (see `ncsam._trees`), with one row per sample.

    Attributes:
        views: One tree for each view of the loader.
        labels: (B,) int64 class numbers.
        index: (B,) int64.
    """

    views: tuple[Tree, ...]
    labels: Tensor
    index: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch on another device.

        Args:
            device: Where to.
            non_blocking: Do not wait for copies from pinned memory.
        """
        views = tuple(to_device(view, device, non_blocking=non_blocking) for view in self.views)
        labels, index = (part.to(device, non_blocking=non_blocking) for part in (self.labels, self.index))
        return Batch(views, labels, index)


@dataclass(eq=False)
class Loader:
    """Batches of a split, epoch after epoch.

    `iterate(epoch, start_batch)` is the plain way in. `for batch in loader` walks the current epoch and, at its end,
    moves on to the next; `state_dict` and `load_state_dict` keep the place. Options are fixed once the loader is made;
    `with_options` makes another loader over the same samples.

    Args:
        split: The samples, such as `dataset.train`.
        batch_size: Samples per batch on each rank, at most.
        views: Names (`"plain"`, `"weak"`, `"strong"`, ...: see `ncsam.data.augment.views`) or `View` recipes. Each
            gives one element of `batch.views`, with its own random numbers. By default "weak" for images; all else
            has the view "plain" alone.
        mean, std: Per channel (along the last axis, for features). `None` leaves images scaled to [0, 1].
        size: (height, width) that the model sees; by default that of images in memory. Files need it.
        resize: A file is scaled until it just covers `size` with its longer side brought to this length, and a window
            is cut from that; for a square, the file's shorter side is brought to it. By default the longer side of
            `size`, so that a crop loses only the ends of one side and a file of that very size nothing.
        seed: A number in `[0, 2**32)`.
        shuffle: A new order in each epoch; else the split's own.
        batches, drop_last, rank, world_size: See `ncsam.data.loading.sampling.Layout`.
        subset: Positions of the samples to use. `batch.index` still counts in the whole split.
        device: Where images in memory are kept and augmented, and where batches arrive.
        dtype: Floating-point type of the views.
        channels_last: Memory order of views with four axes.
        workers: Processes that decode files. Without effect for what is in memory.
        by_length: Texts of similar length share batches, so that little is padded: shuffled, within pieces of 32
            batches; else over the whole split, whose order is then another.
        store: The samples as another loader holds them; `with_options` passes it on.

    Examples:
        >>> from ncsam import data
        >>> dataset = data.from_arrays([[float(i)] for i in range(5)], [0, 1, 0, 1, 0])
        >>> loader = Loader(dataset.train, 2, shuffle=False)
        >>> [batch.index.tolist() for batch in loader]  # sizes differ by at most one
        [[0], [1, 2], [3, 4]]
    """

    split: Split = field(repr=False)
    batch_size: int
    _: KW_ONLY
    views: str | View | Sequence[str | View] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    size: tuple[int, int] | None = None
    resize: int | None = None
    seed: int = 0
    shuffle: bool = True
    batches: Batches = "equal"
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    subset: npt.ArrayLike | None = field(default=None, repr=False)
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    workers: int = 0
    by_length: bool = False
    store: Store | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        instance("split", self.split, Split, "a part of a dataset, such as dataset.train")
        if len(self.split) == 0:
            raise bad_value("split", "0 samples", "at least one")
        if len(self.split.inputs) != len(self.split):
            raise bad_value("split", f"{len(self.split.inputs)} inputs", f"as many as its {len(self.split)} labels")
        self._check_options()
        self.device = _device(self.device)
        self.store = open_store(self.split.inputs, self.device) if self.store is None else self.store
        self._samples = _positions(self.subset, len(self.split))
        self._layout = Layout(
            len(self._samples), self.batch_size, self.rank, self.world_size, self.batches, self.drop_last
        )
        transform = BatchTransform(
            self.store.resolve(self.store.usual_view if self.views is None else self.views),
            None if self.mean is None else tuple(self.mean),
            None if self.std is None else tuple(self.std),
            self.size,
            self.resize,
            self.dtype,
            self.channels_last,
            self.workers,
        )
        self._transform = self.store.check(transform)
        self._labels = torch.from_numpy(np.array(self.split.labels, dtype=np.int64)).to(self.device)
        self._epoch = 0
        self._next_batch = 0
        self._resumed_at = 0

    def _check_options(self) -> None:
        """What would otherwise be noticed in the first batch, if at all."""
        for name, most in (("seed", 2**32 - 1), ("workers", _MOST_WORKERS)):
            setattr(self, name, count(name, getattr(self, name), most=most))
        for name in ("shuffle", "channels_last", "by_length"):
            flag(name, getattr(self, name))
        if self.size is not None:
            sides = tuple(self.size) if isinstance(self.size, (tuple, list)) else ()
            if len(sides) != 2 or not all(isinstance(side, Integral) and 1 <= side <= _LONGEST for side in sides):
                raise bad_value("size", self.size, f"(height, width), both from 1 to {_LONGEST:,}")
            self.size = sides
        if self.resize is not None:
            self.resize = positive("resize", self.resize, _LONGEST)
        for name in ("mean", "std"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, (list, tuple)) and getattr(given, "ndim", 0) != 1:
                raise bad_value(name, given, "a list of numbers or None")
            setattr(self, name, None if given is None else [number(name, each) for each in given])
        if isinstance(self.views, np.ndarray):
            raise bad_value("views", self.views, "names or recipes of views, one or a list")
        if not isinstance(self.dtype, torch.dtype) or not self.dtype.is_floating_point:
            raise bad_value("dtype", self.dtype, "a real type such as torch.float32")
        if self.store is not None and not isinstance(self.store, Store):
            raise bad_value("store", self.store, "the store of another loader, or None")

    def with_options(self, **changes: Any) -> Loader:
        """Another loader over the same samples, with some options changed, at epoch 0. Nothing stored is copied.

        Args:
            **changes: Options of `Loader` by name; with another `split` or `device` the samples are stored again.
        """
        store = None if {"split", "device"} & changes.keys() else self.store
        return replace(self, **{"store": store, **changes})

    def evaluation(self, batch_size: int | None = None) -> Loader:
        """The same samples un-augmented, in order, each exactly once; by default in batches four times as large.

        Args:
            batch_size: Samples per batch on each rank, at most.
        """
        size = 4 * self.batch_size if batch_size is None else batch_size
        return self.with_options(batch_size=size, views="plain", shuffle=False, batches="equal", drop_last=False)

    def __len__(self) -> int:
        """Batches in an epoch, the same number on every rank."""
        return len(self._layout)

    def iterate(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from `start_batch` on; bit for bit those of the whole epoch.

        Args:
            epoch: From 0.
            start_batch: From 0 to `len(self)`.
        """
        count("epoch", epoch)
        if not 0 <= count("start_batch", start_batch) <= len(self):
            raise bad_value("start_batch", start_batch, f"0 to {len(self)}, the number of batches in an epoch")
        return self._batches(epoch, start_batch)

    def _batches(self, epoch: int, start_batch: int) -> Iterator[Batch]:
        order = self._samples
        if self.shuffle:
            order = order[epoch_order(len(order), self.seed, epoch)]
        assert self.store is not None
        place = np.arange(len(self))
        if self.by_length and (lengths := self.store.row_lengths) is not None:
            if self.shuffle:
                order = grouped_by_length(order, lengths, self.batch_size * self.world_size)
                place = batch_order(len(self), self.seed, epoch)
            else:
                order = order[np.argsort(-lengths[order], kind="stable")]
        handed_out: deque[Indices] = deque()  # the store may take several batches before it returns the first

        def requests() -> Iterator[BatchRequest]:
            for batch in range(start_batch, len(self)):
                part = self._layout.part(int(place[batch]))
                draws = [
                    uniforms(part.rows, view.draws, self.seed, epoch, batch, number)[part.start : part.stop]
                    for number, view in enumerate(self._transform.views)
                ]
                handed_out.append(order[part.positions])
                yield BatchRequest(handed_out[-1], tuple(draws))

        for views in self.store.render(requests(), self._transform):
            index = torch.from_numpy(handed_out.popleft()).to(self.device)
            yield Batch(views, self._labels.index_select(0, index), index)

    def set_epoch(self, epoch: int) -> None:
        """Let the next `for batch in loader` walk this epoch, from its first batch.

        Args:
            epoch: From 0.
        """
        count("epoch", epoch)
        self._epoch, self._next_batch, self._resumed_at = epoch, 0, 0

    def __iter__(self) -> Iterator[Batch]:
        start, self._resumed_at = self._resumed_at, 0
        for step, batch in enumerate(self.iterate(self._epoch, start)):
            self._next_batch = start + step + 1
            yield batch
        self.set_epoch(self._epoch + 1)

    def state_dict(self) -> dict[str, int]:
        """The place in the run: the next batch of `for batch in loader`, and what must not change meanwhile."""
        return {"epoch": self._epoch, "batch": self._next_batch, **self._fixed()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next `for batch in loader` continue where the state was taken.

        Args:
            state: What `state_dict` of a loader with the same seed, samples and global batch size returned.

        Raises:
            UsageError: The state belongs to another kind of loader.
        """
        for name, value in self._fixed().items():
            if state[name] != value:
                raise bad_value(f"state[{name!r}]", state[name], f"{value}, as this loader has")
        if state["epoch"] < 0 or not 0 <= state["batch"] <= len(self):
            raise bad_value("state", dict(state), f"an epoch from 0 and a batch from 0 to {len(self)}")
        self._epoch, self._next_batch, self._resumed_at = state["epoch"], state["batch"], state["batch"]

    def _fixed(self) -> dict[str, int]:
        return {
            "seed": self.seed,
            "samples": len(self._samples),
            "global_batch": self.batch_size * self.world_size,
            "equal_batches": int(self.batches == "equal"),
        }


def _device(device: torch.device | str) -> torch.device:
    allowed = "the name of a device, such as 'cpu' or 'cuda:0'"
    if not isinstance(device, str | torch.device):
        raise bad_value("device", device, allowed)
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError):  # no such name, or no such device here
        raise bad_value("device", device, f"{allowed}, which this machine has") from None


def _positions(subset: npt.ArrayLike | None, samples: int) -> Indices:
    if subset is None:
        return np.arange(samples)
    try:
        positions = np.asarray(subset)
    except ValueError:  # of lists of different lengths
        positions = np.empty(0)
    if positions.ndim != 1 or not np.issubdtype(positions.dtype, np.integer) or len(positions) == 0:
        raise bad_value("subset", subset, "a list of at least one position")
    if positions.min() < 0 or positions.max() >= samples:
        raise bad_value("subset", subset, f"positions from 0 to {samples - 1}")
    return positions.astype(np.int64)
