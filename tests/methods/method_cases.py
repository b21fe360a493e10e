"""Small batches, states and networks whose answers are known, for the tests of methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ncsam.data.loading.loader import Batch
from ncsam.engine.label_issues import SampleTable
from ncsam.methods import State


class Table(nn.Module):
    """A network that answers input i (its number) with row i of a table of logits, times a learnable 1."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits[inputs.flatten().round().long()] * self.scale


class Engine:
    """Answers a method's questions from functions, or from tables, that a test gives."""

    def __init__(self, predict: Callable[..., Tensor] | None, features: Callable[..., Tensor] | None = None) -> None:
        self.answers = {"probabilities": predict, "features": features}
        self.labels = torch.zeros(0, dtype=torch.int64)

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor:
        answer = self.answers[output]
        assert answer is not None
        return answer(networks)

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """In order, a sample's input being its number, as in `batch`."""
        views = 1 if isinstance(view, str) else len(view)
        for rows in index.split(batch_size or 4):
            yield Batch(tuple(rows.float().unsqueeze(1) for _ in range(views)), self.labels[rows], rows)

    def backward(self, loss: Tensor) -> None:
        loss.backward()


def state(labels: Sequence[int], classes: int, **changes: Any) -> State:
    """A state over as many samples as labels, in epoch 1 of 10; `predict` and `features` answer for the engine."""
    samples = SampleTable(len(labels))
    engine = Engine(changes.pop("predict", None), changes.pop("features", None))
    engine.labels = torch.tensor(labels)
    changes["engine"] = engine
    options: dict[str, Any] = {"epochs": 10, "steps_per_epoch": 4, "samples": samples, **changes}
    return State(classes, torch.tensor(labels), **options)


def batch(state: State, views: int = 1) -> Batch:
    """All samples in one batch; a sample's input is its number."""
    index = torch.arange(len(state.labels))
    return Batch(tuple(index.float().unsqueeze(1) for _ in range(views)), state.labels, index)


def log(rows: Sequence[Sequence[float]]) -> Tensor:
    """Logits whose probabilities are the given ones."""
    return torch.tensor(rows).log()
