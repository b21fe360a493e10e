"""The data of measurements: a batch, or anything that yields the same batches each time it is iterated."""

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
    """The batches of a loader of `ncsam.data`, with the clean labels of their samples.

    Args:
        loader: A loader of `ncsam.data` that neither shuffles nor augments.
        clean: The clean label of each sample of the loader.
    """

    def __init__(self, loader: Iterable[Any], clean: npt.ArrayLike) -> None:
        try:
            found = np.asarray(clean)
        except ValueError:  # of lists of different lengths
            found = np.empty(0)
        if found.dtype.kind not in "iu" or found.ndim != 1:
            raise bad_value("clean", f"{found.dtype} {found.shape}", "a class number for each sample of the loader")
        self.loader = loader
        self.clean = torch.from_numpy(found.astype(np.int64))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for batch in walked("loader", self.loader):
            if not hasattr(batch, "views") or not bool((batch.index < len(self.clean)).all()):
                allowed = f"a loader of ncsam.data over {len(self.clean)} samples, as many as there are clean labels"
                raise bad_value("loader", type(self.loader).__name__, allowed)
            yield batch.views[0], batch.labels, self.clean[batch.index.cpu()].to(batch.labels.device)


def batches(data: Data, device: torch.device) -> Iterator[tuple[Tensor, ...]]:
    """Batch after batch, on the model's device.

    Args:
        data: A batch, or batches, of (inputs, labels) or (inputs, labels, clean labels).
        device: Where to put them.
    """
    whole = isinstance(data, (tuple, list)) and len(data) > 0 and isinstance(data[0], Tensor)
    for batch in [data] if whole else walked("data", data):
        parts = _parts(batch)
        if len(parts) not in (2, 3) or not all(isinstance(part, Tensor) and part.ndim for part in parts):
            raise bad_value("data", type(batch).__name__, "batches (inputs, labels) or (inputs, labels, clean labels)")
        if len({len(part) for part in parts}) > 1:
            raise bad_value("data", [tuple(part.shape) for part in parts], "as many labels as inputs in a batch")
        yield tuple(part.to(device) for part in parts)


def _parts(batch: Any) -> tuple[Any, ...]:
    """Inputs and labels of a batch, ours or anyone's; nothing if it is none."""
    if hasattr(batch, "views"):
        return batch.views[0], batch.labels
    return tuple(batch) if isinstance(batch, (tuple, list)) else ()


def walked(name: str, data: Any) -> Iterable[Any]:
    """Something that can be iterated again and again.

    Args:
        name: Name of the argument, for the error message.
        data: A batch, or batches, of (inputs, labels) or (inputs, labels, clean labels).
    """
    again = isinstance(data, Iterable) and not isinstance(data, (str, bytes, Tensor, np.ndarray, dict))
    if not again or iter(data) is data:
        raise bad_value(
            name, type(data).__name__, "a batch, a list of batches or a loader, which can be iterated again"
        )
    found: Iterable[Any] = data
    return found


def with_clean(data: Data, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The same, where clean labels are needed.

    Args:
        data: A batch, or batches, of (inputs, labels) or (inputs, labels, clean labels).
        device: Where to put them.
    """
    for batch in batches(data, device):
        if len(batch) != 3:
            raise bad_value("data", f"batches of {len(batch)}", "batches (inputs, labels, clean labels)")
        yield batch[0], batch[1], batch[2]


def label_sets(data: Data) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Split data with known clean labels into four sets, so that sharpness can be measured on clean and noisy labels.

    Args:
        data: Batches (inputs, observed labels, clean labels).

    Returns:
        `observed`: all samples with the labels that training sees; `clean`: all with their true ones; `right` and
            `wrong`:
        the samples whose observed label is right or wrong, with that label. Empty sets are left out.
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
