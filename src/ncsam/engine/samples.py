"""Memory per training sample, keyed by its index (losses, votes, soft labels), and the training statistics in it.

The table survives restarts, as part of the checkpoint, and distributed training: every rank sees a part of the samples,
writes what it learned about them, and `synchronize` makes the tables of all ranks equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from ncsam._errors import bad_value, unknown_name
from ncsam.engine.evaluate import Predictions
from ncsam.engine.states import matches_structure
from ncsam.issues.find import TrainingStatistics


class SampleTable:
    """Named columns of `samples` rows each, on one device.

    Rows may be changed through `write` and `add`, by one rank alone, or in place through `table[name]`, by all ranks
    alike.
    """

    def __init__(self, samples: int, device: torch.device | str = "cpu") -> None:
        self.samples = samples
        self.device = torch.device(device)
        self._columns: dict[str, Tensor] = {}
        self._written: dict[str, Tensor] = {}  # rows this rank wrote since the last synchronize
        self._added: dict[str, Tensor] = {}  # what this rank added since then

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def column(
        self, name: str, shape: Sequence[int] = (), dtype: torch.dtype = torch.float32, fill: float = 0.0
    ) -> Tensor:
        """Make a column filled with `fill`, unless it is there already; the tensor (samples, *shape)."""
        if name not in self._columns:
            self._columns[name] = torch.full((self.samples, *shape), fill, dtype=dtype, device=self.device)
        here = self._columns[name]
        if here.shape[1:] != torch.Size(shape) or here.dtype != dtype:
            raise bad_value("column", name, f"a column of the same form as the existing one, {_form(here)}")
        return here

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._columns:
            raise unknown_name("column", name, self._columns)
        return self._columns[name]

    def write(self, name: str, index: Tensor, values: Tensor) -> None:
        """Set the rows `index`. Where ranks write the same row, the highest rank's value stays."""
        column = self[name]
        column[index] = values.to(column)
        if _distributed():
            self._written.setdefault(name, self._rows(torch.bool))[index] = True

    def add(self, name: str, index: Tensor, values: Tensor | float) -> None:
        """Add to the rows `index` (each at most once); the ranks' additions are summed."""
        column = self[name]
        column[index] += values
        if _distributed():
            self._added.setdefault(name, torch.zeros_like(column))[index] += values

    def synchronize(self) -> None:
        """Make the table the same on all ranks. Every rank must call it."""
        if not _distributed():
            return
        for name, column in self._columns.items():
            self._share_additions(name, column)
            self._share_writes(name, column)

    def _share_additions(self, name: str, column: Tensor) -> None:
        if not _anywhere(name in self._added, self.device):
            return
        own = self._added.pop(name, torch.zeros_like(column))
        every = own.clone()
        dist.all_reduce(every)
        column += every - own

    def _share_writes(self, name: str, column: Tensor) -> None:
        if not _anywhere(name in self._written, self.device):
            return
        rows = self._written.pop(name, self._rows(torch.bool)).nonzero().flatten()
        for index, values in zip(*_gathered((rows, column[rows])), strict=True):
            column[index] = values

    def _rows(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.samples, dtype=dtype, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """The columns by name; `synchronize` first."""
        return dict(self._columns)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave, for as many samples."""
        for name, values in state.items():
            if len(values) != self.samples:
                raise bad_value("samples", self.samples, f"{len(values)}, as in the saved table")
            if name in self._columns and not matches_structure(values, self._columns[name]):
                raise bad_value(
                    "column", name, f"a column of the same form as the existing one, {_form(self._columns[name])}"
                )
            self._columns[name] = values.to(self.device)
        self._written.clear()
        self._added.clear()


def _form(column: Tensor) -> str:
    return f"{column.dtype} of shape {tuple(column.shape)}"


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _anywhere(here: bool, device: torch.device) -> bool:
    flag = torch.tensor(int(here), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def _gathered(parts: tuple[Tensor, ...]) -> list[list[Tensor]]:
    """Each of the tensors from every rank, in rank order; their lengths may differ."""
    count = torch.tensor([len(parts[0])], device=parts[0].device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    longest = max(int(c) for c in counts)
    result = []
    for part in parts:
        padded = part.new_zeros((longest, *part.shape[1:]))
        padded[: len(part)] = part
        every = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(every, padded)
        result.append([values[: int(c)] for values, c in zip(every, counts, strict=True)])
    return result


Floats = npt.NDArray[np.float64]
_STEEPNESS = 4.0  # from where a margin counts almost fully
_MOST_NUMBERS = 20_000_000  # of samples times classes; beyond, the last prediction suggests the label


class Dynamics:
    """Statistics of every sample of the training split over the epochs, in the run's sample table."""

    def __init__(self, table: SampleTable, num_classes: int) -> None:
        self.table = table
        self.keeps_probabilities = table.samples * num_classes <= _MOST_NUMBERS
        table.column("evaluations", dtype=torch.int64)
        table.column("margin_sum", dtype=torch.float64)
        table.column("lead_sum", dtype=torch.float64)
        table.column("loss_sum", dtype=torch.float64)
        table.column("was_right", dtype=torch.bool)
        table.column("last_predicted", dtype=torch.int64)
        table.column("times_forgotten", dtype=torch.int64)
        table.column("first_learned", dtype=torch.int64)  # epoch; 0 for never
        table.column("times_flipped", dtype=torch.int64)
        if self.keeps_probabilities:
            table.column("probability_sum", (num_classes,))

    def update(self, predictions: Predictions, labels: npt.NDArray[np.int64], epoch: int) -> None:
        """Take the predictions after an epoch; the same on all ranks."""
        table = self.table

        def here(values: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(values).to(table.device)

        right = here(predictions.predicted == labels)
        table["times_forgotten"].add_(table["was_right"] & ~right)
        table["first_learned"][right & (table["first_learned"] == 0)] = epoch
        table["was_right"].copy_(right)
        table["last_predicted"].copy_(here(predictions.predicted))
        table["evaluations"].add_(1)
        table["margin_sum"].add_(here(predictions.margin))
        table["lead_sum"].add_(here(np.tanh(_STEEPNESS * predictions.margin.astype(np.float64))))
        table["loss_sum"].add_(here(predictions.loss))
        if predictions.probabilities is not None:
            table["probability_sum"].add_(here(predictions.probabilities))

    def numbers(self, name: str) -> npt.NDArray[Any]:
        values: npt.NDArray[Any] = self.table[name].cpu().numpy()
        return values

    def mean(self, name: str) -> Floats:
        """Mean over the evaluations of a summed column."""
        means: Floats = self.numbers(f"{name}_sum") / np.maximum(1, self.numbers("evaluations"))
        return means

    def label_quality(self) -> Floats:
        """(1 + mean over epochs of tanh(4 margin)) / 2, in [0, 1]; low where the label is likely wrong.

        Between how often another class led the label and how far it led: of the statistics tried, the one that is
        never far from the best, whether the model ends up memorizing wrong labels or not (docs/engine.md).
        """
        return (1.0 + self.mean("lead")) / 2.0

    def predicted(self) -> npt.NDArray[np.int64]:
        """The class with the largest mean probability over training; it may be the given label."""
        if self.keeps_probabilities:
            classes: npt.NDArray[np.int64] = self.numbers("probability_sum").argmax(axis=1)
            return classes
        return self.numbers("last_predicted")

    def statistics(self) -> TrainingStatistics:
        """All of it as `ncsam.issues` takes it."""
        probabilities = None
        if self.keeps_probabilities:
            sums = self.numbers("probability_sum").astype(np.float64)
            probabilities = sums / sums.sum(axis=1, keepdims=True)
        diagnostics: dict[str, npt.NDArray[Any]] = {name: self.mean(name) for name in ("loss", "margin")}
        diagnostics |= {name: self.numbers(name) for name in ("times_flipped", "times_forgotten", "first_learned")}
        return TrainingStatistics(
            self.label_quality(), self.predicted(), probabilities, self.numbers("was_right"), diagnostics
        )
