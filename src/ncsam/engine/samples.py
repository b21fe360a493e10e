"""Memory per training sample, keyed by the sample's index: losses, votes, soft labels, counts.

It survives restarts (it is part of the checkpoint) and distributed training: every rank sees a part of the samples,
writes what it learned about them, and `synchronize` brings all ranks to one and the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ncsam._errors import bad_value, unknown_name
from ncsam.engine.saved_forms import matches_structure


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
