"""Which samples form which batch, on which rank, and the random numbers that go with it.

Everything here is a function of (seed, epoch, batch, stream). No generator is kept between batches and the global
ones are never touched, so an epoch can be entered at any batch and gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ncsam._arguments import count, flag, positive
from ncsam._errors import bad_value, known_name

Indices = npt.NDArray[np.int64]
#: Uniform numbers in [0, 1), a row per sample.
Draws = npt.NDArray[np.float32]
#: How an epoch is cut into batches; see `Layout`.
Batches = Literal["equal", "full"]

_GROUPED = 32  # batches within which samples are sorted by length
_ORDER = 0  # stream 0 orders the epoch; stream 1 + v draws for view v


def _stream(seed: int, epoch: int, batch: int, stream: int) -> np.random.Generator:
    return np.random.default_rng((seed, epoch, batch, stream))


def epoch_order(samples: int, seed: int, epoch: int) -> Indices:
    """A permutation of `samples` that depends on seed and epoch alone.

    Args:
        samples: How many.
        seed: Of the run.
        epoch: From 0.
    """
    return _stream(seed, epoch, 0, _ORDER).permutation(samples)


def grouped_by_length(order: Indices, lengths: npt.NDArray[np.int64], batch_size: int) -> Indices:
    """An order in which neighbors have similar lengths: sorted, the longest first, within pieces of 32 batches.

    Args:
        order: Positions of the samples.
        lengths: The length of every sample.
        batch_size: Samples per batch.
    """
    piece = _GROUPED * batch_size
    parts = [order[start : start + piece] for start in range(0, len(order), piece)]
    return np.concatenate([part[np.argsort(-lengths[part], kind="stable")] for part in parts])


def batch_order(batches: int, seed: int, epoch: int) -> Indices:
    """A permutation of an epoch's batches, by which batches that were grouped by length come in random order.

    Args:
        batches: Global batches in the epoch.
        seed: Of the run.
        epoch: From 0.
    """
    return _stream(seed, epoch, 1, _ORDER).permutation(batches)


def uniforms(rows: int, columns: int, seed: int, epoch: int, batch: int, view: int) -> Draws:
    """Uniform numbers for one view of one global batch.

    They are filled row by row, so the first rows do not depend on how many follow: a padded tail draws for its true
    samples what an unpadded one draws.

    Args:
        rows: Samples of the global batch.
        columns: Numbers per sample, `View.draws`.
        seed: Of the run.
        epoch: From 0.
        batch: Number of the global batch in the epoch, from 0.
        view: Number of the view, from 0.
    """
    if columns == 0:  # a view that draws nothing needs no generator, which takes longer than a small batch
        return np.empty((rows, 0), dtype=np.float32)
    return _stream(seed, epoch, batch, 1 + view).random((rows, columns), dtype=np.float32)


@dataclass(frozen=True)
class BatchRequest:
    """One batch to render: the samples, and a row of uniform numbers per sample for each view.

    Attributes:
        index: (B,) positions in the split.
        draws: (B, `View.draws`) for each view.
    """

    index: Indices
    draws: tuple[Draws, ...]


@dataclass(frozen=True)
class Part:
    """One rank's part of a global batch of `rows`: `positions` in the epoch's order, its rows `start` to `stop`.

    Attributes:
        positions: (stop - start,) int64.
        rows: Samples of the global batch, padding included.
        start, stop: From 0 to `rows`; the rank has the rows from `start` up to but not including `stop`.
    """

    positions: Indices
    rows: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """How `samples` positions are cut into global batches and these into one part per rank.

    A global batch has at most `world_size * batch_size` samples; ranks hold consecutive pieces of it, so joining them
    in rank order gives what one process with that larger batch would see. `batches` says how an epoch is cut:

    - "equal": ceil(samples / (world_size * batch_size)) global batches, and all parts of all batches have equal sizes,
      give or take one sample. Nothing is repeated or left out. (With batches of one, a part may hold two samples, so
      that no rank comes away empty.)
    - "full": every global batch is full but the last, which is short. If the ranks cannot share it equally, it is
      padded with the first samples of the epoch's order (fewer than `world_size` of them), so that all ranks hold
      equally many. `drop_last` leaves a short last batch out.

    Attributes:
        samples: At least `world_size`.
        batch_size: Samples per batch on each rank, at most.
        rank: 0 to `world_size` - 1.
        world_size: Number of processes.
        batches: "equal" or "full".
        drop_last: For "full" alone.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    batches: Batches = "equal"
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        if count("rank", self.rank) >= self.world_size:
            raise bad_value("rank", self.rank, f"0 to {self.world_size - 1} with world_size={self.world_size}")
        known_name("batches", self.batches, get_args(Batches))
        if flag("drop_last", self.drop_last) and self.batches == "equal":
            raise bad_value("drop_last", True, "False with batches='equal', which leaves nothing out")
        if self.samples < self.world_size:
            raise bad_value("world_size", self.world_size, f"at most {self.samples}, the number of samples")
        if len(self) == 0:
            raise bad_value("drop_last", True, f"False where {self.samples} samples do not fill one global batch")

    def __len__(self) -> int:
        whole, rest = divmod(self.samples, self.world_size * self.batch_size)
        count = whole + (rest > 0 and not self.drop_last)
        return min(count, self.samples // self.world_size) if self.batches == "equal" else count

    def part(self, batch: int) -> Part:
        """This rank's part of global batch number `batch`.

        Args:
            batch: From 0 to `len(self)` - 1.
        """
        if self.batches == "equal":
            pieces = len(self) * self.world_size
            first, start, stop, end = (
                piece * self.samples // pieces
                for piece in (
                    batch * self.world_size,
                    batch * self.world_size + self.rank,
                    batch * self.world_size + self.rank + 1,
                    (batch + 1) * self.world_size,
                )
            )
            return Part(np.arange(start, stop), end - first, start - first, stop - first)
        first = batch * self.world_size * self.batch_size
        here = min(self.samples - first, self.world_size * self.batch_size)
        each = -(-here // self.world_size)
        start = self.rank * each
        positions = np.arange(first + start, first + start + each) % self.samples
        return Part(positions, each * self.world_size, start, start + each)
