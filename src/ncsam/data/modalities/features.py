"""Features: float arrays of any shape, and the columns of tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._errors import bad_value
from ncsam.data.loading.sampling import BatchRequest
from ncsam.data.modalities.base import BatchTransform, Modality, Store, check_counts, check_numbers
from ncsam.data.readers.arrays import NPZ_NAMES, read_npz
from ncsam.data.tables.columns import TABLE_SUFFIXES, numbers, read_columns
from ncsam.data.types import DataSet, Inputs

_SHOWN = 8  # numbers of a preview


@dataclass(frozen=True)
class Features(Modality):
    """float32 arrays (N, ...), normalized along the last axis.

    `shape` is that of one sample; `columns` are the names of its numbers where they come from a table. `encoder`
    describes how they were computed from images, texts or mixed columns (see `ncsam.data.types.Encoding`).

    Attributes:
        mean, std: One number, or one for each position along the last axis; empty for no normalization.
        shape: Without the first axis.
        columns: Empty where the features have no names.
        encoder: Plain values, or `None` for features that were given as such.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    encoder: Mapping[str, Any] | None = None

    name: ClassVar[str] = "features"
    prepared: ClassVar[str] = "(x - mean) / std along the last axis; (batch, *shape)"

    def __post_init__(self) -> None:
        check_numbers(mean=self.mean, std=self.std)
        check_counts(shape=self.shape)
        if any(not isinstance(column, str) for column in self.columns):
            raise bad_value("columns", self.columns, "column names, as text")

    @classmethod
    def holds(cls, inputs: Inputs) -> bool:
        return isinstance(inputs, np.ndarray) and np.issubdtype(inputs.dtype, np.floating) and inputs.ndim >= 2

    @classmethod
    def of(cls, dataset: DataSet) -> Features:
        assert isinstance(dataset.train.inputs, np.ndarray)
        encoder = None if dataset.encoding is None else dataset.encoding.encoder
        return cls(dataset.mean, dataset.std, dataset.train.inputs.shape[1:], dataset.columns, encoder)

    @classmethod
    def open(cls, inputs: Any, device: torch.device) -> Store:
        return FeatureStore(inputs, device)

    def input_sizes(self) -> dict[str, int]:
        return {"in_features": math.prod(self.shape)}

    def preparation(self, inputs: Inputs) -> dict[str, Any]:
        return {"mean": self.mean or None, "std": self.std or None}

    def example(self, count: int = 2) -> Tensor:
        return torch.randn(count, *self.shape, generator=torch.Generator().manual_seed(0))

    def read(self, paths: Sequence[Path]) -> tuple[list[str], Inputs]:
        """One .npz with an array x; or tables with the columns that the run was trained on.

        Args:
            paths: One `.npz` file, or any number of tables.

        Raises:
            UsageError: The files are of another type, or samples have another shape.
        """
        if any(path.suffix.lower() == ".npz" for path in paths):
            names, found = read_arrays(paths)
            if found.shape[1:] != self.shape:
                raise bad_value("inputs", str(paths[0]), f"samples of shape {self.shape}; it holds {found.shape[1:]}")
            return names, np.ascontiguousarray(found, dtype=np.float32)
        if not self.columns or any(path.suffix.lower() not in TABLE_SUFFIXES for path in paths):
            known = [".npz", *(TABLE_SUFFIXES if self.columns else ())]
            raise bad_value(
                "inputs",
                [str(path) for path in paths],
                f"files that end in {', '.join(known)}",
            )
        names, parts = [], []
        for path in paths:
            table = read_columns(path)
            parts.append(self.of_table(table, str(path)))
            names += [f"{path}[{row}]" for row in range(len(parts[-1]))]
        return names, np.concatenate(parts)

    def of_table(self, table: Mapping[str, list[Any]], where: str = "table") -> npt.NDArray[np.float32]:
        """The features of new rows, computed as those of the training rows were.

        Args:
            table: Columns by name, all of one length; further columns are ignored.
            where: What error messages call the table.

        Returns:
            float32 (rows, features), not yet normalized.

        Raises:
            UsageError: A column is missing, or the features were computed from images or texts.
        """
        if self.encoder is None:
            return numbers(dict(table), self.columns, where)
        if self.encoder.get("kind") != "table":
            raise bad_value("inputs", where, f"{self.encoder.get('kind')}, which this run was trained on")
        from ncsam.data.tables.features import encode_table

        return encode_table(self.encoder, table)

    def preview(self, inputs: Inputs, index: int) -> str:
        values = np.asarray(inputs[index]).reshape(-1)
        names = [f"{column} " for column in self.columns] or [""] * len(values)
        more = f", ... ({len(values)} numbers)" if len(values) > _SHOWN else ""
        return ", ".join(f"{name}{value:.4g}" for name, value in list(zip(names, values, strict=True))[:_SHOWN]) + more

    @classmethod
    def described(cls, inputs: Inputs) -> str:
        assert isinstance(inputs, np.ndarray)
        return f"{inputs.dtype} {' x '.join(map(str, inputs.shape[1:]))}, in memory"


class FeatureStore(Store):
    """One float32 tensor on the device.

    Args:
        inputs: A float array (N, ...).
        device: Where it is kept.
    """

    kind = "features"

    def __init__(self, inputs: npt.NDArray[Any], device: torch.device) -> None:
        self.values = torch.from_numpy(np.require(inputs, np.float32, ["C", "W"])).to(device)

    def check(self, transform: BatchTransform) -> BatchTransform:
        transform.check_normalization(self.values.shape[-1], "features along the last axis")
        return transform

    def render(self, requests: Iterable[BatchRequest], transform: BatchTransform) -> Iterator[tuple[Tensor, ...]]:
        scale, shift = transform.normalizer(1, (-1,), self.values.device)
        for request in requests:
            index = torch.from_numpy(request.index).to(self.values.device)
            values = self.values.index_select(0, index).mul_(scale).add_(shift)
            copies = [values.clone() for _ in transform.views[1:]]
            yield tuple(transform.delivered(view) for view in (values, *copies))


def read_arrays(paths: Sequence[Path]) -> tuple[list[str], npt.NDArray[Any]]:
    """The array x of the one .npz file there may be, and a name for each of its rows.

    Args:
        paths: Must be one `.npz` file.

    Raises:
        UsageError: There are several files, or no array named x or the like.
    """
    if len(paths) > 1:
        raise bad_value("inputs", [str(path) for path in paths], "one .npz file and nothing else")
    arrays = read_npz(paths[0])
    name = next((name for name in NPZ_NAMES["x"] if name in arrays), None)
    if name is None:
        raise bad_value("inputs", str(paths[0]), f"an array named x; it holds {', '.join(arrays)}")
    return [f"{paths[0]}[{row}]" for row in range(len(arrays[name]))], arrays[name]
