"""Rows of a table as people wrote them: what reports and reviews show where a model sees encoded features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from ncsam._errors import bad_value
from ncsam._text import shortened
from ncsam._trees import Tree
from ncsam.data.modalities.base import Modality, Store
from ncsam.data.types import DataSet, Inputs

_SHOWN, _CELL = 8, 60  # cells of a preview, characters of a cell


class TableRows(Sequence[Any]):
    """Rows as {column: value}; the columns are stored once, `order` says which rows, in which order.

    Args:
        columns: All of one length.
        order: Positions in the columns; `None` for all rows as they come.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], order: npt.NDArray[np.int64] | None = None) -> None:
        self.columns = columns
        self.order = np.arange(len(next(iter(columns.values()), ()))) if order is None else order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return TableRows(self.columns, self.order[index])
        row = int(self.order[index])
        return {name: values[row] for name, values in self.columns.items()}

    def take(self, index: npt.NDArray[np.int64]) -> TableRows:
        """The rows at `index`, in that order; the columns are shared.

        Args:
            index: Positions among these rows.
        """
        return TableRows(self.columns, self.order[index])

    def table(self) -> dict[str, list[Any]]:
        """The columns of these rows."""
        return {name: [values[row] for row in self.order] for name, values in self.columns.items()}


@dataclass(frozen=True)
class Rows(Modality):
    """Rows of mixed tables. A model is trained on their features, which `ncsam.data.from_table` computes."""

    name: ClassVar[str] = "rows of a table"

    @classmethod
    def holds(cls, inputs: Inputs) -> bool:
        return isinstance(inputs, TableRows)

    @classmethod
    def of(cls, dataset: DataSet) -> Rows:
        return cls()

    @classmethod
    def open(cls, inputs: Any, device: torch.device) -> Store:
        raise bad_value("inputs", "rows of a table", "features, as from_table and as_dataset make them of a table")

    def example(self, count: int = 2) -> Tree:
        raise bad_value("inputs", "rows of a table", "features")

    def read(self, paths: Sequence[Path]) -> tuple[list[str], Inputs]:
        raise bad_value("inputs", [str(path) for path in paths], "features, for which a run knows the preprocessing")

    def preview(self, inputs: Inputs, index: int) -> str:
        row: dict[str, Any] = inputs[index]
        cells = [f"{name}: {shortened(str(value), _CELL)}" for name, value in row.items() if value not in (None, "")]
        more = f", ... ({len(row)} columns)" if len(cells) > _SHOWN else ""
        return ", ".join(cells[:_SHOWN]) + more

    @classmethod
    def described(cls, inputs: Inputs) -> str:
        assert isinstance(inputs, TableRows)
        return f"rows of {len(inputs.columns)} columns, in memory"
