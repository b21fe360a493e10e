"""Small batches, states and networks whose answers are known, for the tests of methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ncsam.data.loader import Batch
from ncsam.engine.samples import SampleTable
from ncsam.methods import State


class Table(nn.Module):
    """A network that answers input i (its number) with row i of a table of logits, times a learnable 1."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits[inputs.flatten().round().long()] * self.scale


def state(labels: Sequence[int], classes: int, **changes: Any) -> State:
    """A state over as many samples as labels, in epoch 1 of 10."""
    samples = SampleTable(len(labels))
    options: dict[str, Any] = {"epochs": 10, "steps_per_epoch": 4, "samples": samples, **changes}
    return State(classes, torch.tensor(labels), **options)


def batch(state: State, views: int = 1) -> Batch:
    """All samples in one batch; a sample's input is its number."""
    index = torch.arange(len(state.labels))
    return Batch(tuple(index.float().unsqueeze(1) for _ in range(views)), state.labels, index)


def log(rows: Sequence[Sequence[float]]) -> Tensor:
    """Logits whose probabilities are the given ones."""
    return torch.tensor(rows).log()
