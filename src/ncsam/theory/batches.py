"""The data that measurements run over: a batch, or anything that gives the same batches each time it is walked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._errors import bad_value

#: One batch (inputs, labels) or (inputs, labels, clean labels), or a loader of such batches. A loader of `ncsam.data`
#: goes as well; only one that neither shuffles nor augments gives the same batches each time.
Data: TypeAlias = "Sequence[Tensor] | Iterable[Any]"


class WithClean:
    """The batches of a loader of `ncsam.data`, with the clean labels of their samples beside the observed ones."""

    def __init__(self, loader: Iterable[Any], clean: npt.ArrayLike) -> None:
        self.loader = loader
        self.clean = torch.from_numpy(np.array(clean, dtype=np.int64))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for batch in self.loader:
            yield batch.views[0], batch.labels, self.clean[batch.index.cpu()].to(batch.labels.device)


def batches(data: Data, device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """Batch after batch, on the network's device."""
    if iter(data) is data:
        raise bad_value("data", type(data).__name__, "a batch, a list of batches or a loader: it is walked repeatedly")
    whole = isinstance(data, (tuple, list)) and len(data) > 0 and isinstance(data[0], Tensor)
    walked: Iterable[Any] = [data] if whole else data
    for batch in walked:
        parts = (batch.views[0], batch.labels) if hasattr(batch, "views") else tuple(batch)
        if len(parts) not in (2, 3) or not all(isinstance(part, Tensor) for part in parts):
            raise bad_value("data", type(batch).__name__, "batches (inputs, labels) or (inputs, labels, clean labels)")
        yield tuple(part.to(device) for part in parts)


def with_clean(data: Data, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The same, where clean labels are needed."""
    for batch in batches(data, device):
        if len(batch) != 3:
            raise bad_value("data", f"batches of {len(batch)}", "(inputs, labels, clean labels): the clean are needed")
        yield batch[0], batch[1], batch[2]


def label_sets(data: Data) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Data with known clean labels, seen in four ways, so that sharpness can be measured on clean and noisy apart.

    `observed`: all samples with the labels that training sees; `clean`: all with their true ones; `right` and `wrong`:
    the samples whose observed label is right or wrong, with that label. A set without a sample is left out.
    """
    sets: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in ("observed", "clean", "right", "wrong")}
    for inputs, observed, clean in with_clean(data, torch.device("cpu")):
        right = observed == clean
        for name, labels, which in (
            ("observed", observed, slice(None)),
            ("clean", clean, slice(None)),
            ("right", observed, right),
            ("wrong", observed, ~right),
        ):
            if len(labels[which]):
                sets[name].append((inputs[which], labels[which]))
    return {name: found for name, found in sets.items() if found}
