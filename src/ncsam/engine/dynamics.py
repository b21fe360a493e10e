"""How each training sample fared over the epochs, which tells the wrong labels from the right ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam.engine.evaluate import Predictions
from ncsam.engine.samples import SampleTable
from ncsam.issues.find import TrainingStatistics

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
