"""Whether a network still learns what holds for samples it has not seen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam.data.types import Labels
from ncsam.optim.radius import LEAST_LEARNED

Floats = npt.NDArray[np.floating[Any]]
_NEWEST = 0.4  # of the average over epochs
_LEAST_CHANGE = 0.02  # of what was learned: less is no change


class HeldOutLoss:
    r"""The loss on held-out samples from epoch to epoch, and whether it still falls.

    One epoch's network swings, so its predictions are averaged over the epochs, :math:`q \leftarrow 0.6\, q + 0.4\, p`,
    and :math:`\ell_i = -\log q_i(y_i)` on the observed labels. With L their mean, L* the lowest so far, and L_0 - L*
    what was learned over guessing (at least .05), the loss no longer falls if

    - it rose: L - L* exceeds .02 (L_0 - L*) and two standard errors of the samples' own differences, or
    - it rests: for `patience` epochs it did not fall by another .02 (L_0 - L*).
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._average: Floats | None = None
        self._lowest: Floats | None = None  # each sample's loss where their mean was lowest
        self._mark = math.inf  # the last loss that was lower by enough, and how many epochs ago
        self._resting = 0

    def still_falls(self, labels: Labels, probabilities: Floats) -> bool:
        """Take in an epoch's predictions (N, classes) for samples with these labels."""
        previous = probabilities if self._average is None else self._average
        self._average = (1.0 - _NEWEST) * previous + _NEWEST * probabilities.astype(np.float64)
        losses = -np.log(np.maximum(self._average[np.arange(len(labels)), labels], 1e-12))
        frequencies = np.bincount(labels) / len(labels)
        guess = -sum(f * math.log(f) for f in frequencies.tolist() if f > 0)
        loss = float(losses.mean())
        self._resting += 1
        if self._lowest is None or loss < float(self._lowest.mean()):
            self._lowest = losses
            if loss < self._mark - _LEAST_CHANGE * max(LEAST_LEARNED, guess - loss):
                self._mark, self._resting = loss, 0
            return self._resting < self.patience
        rise = losses - self._lowest
        error = float(rise.std()) / math.sqrt(len(rise))
        least = _LEAST_CHANGE * max(LEAST_LEARNED, guess - float(self._lowest.mean()))
        return float(rise.mean()) <= max(least, 2.0 * error) and self._resting < self.patience

    def state_dict(self) -> dict[str, Any]:
        arrays = {"average": self._average, "lowest": self._lowest}
        tensors = {name: None if a is None else torch.from_numpy(a) for name, a in arrays.items()}
        return {**tensors, "mark": self._mark, "resting": self._resting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average, self._lowest = (
            None if state[name] is None else state[name].numpy() for name in ("average", "lowest")
        )
        self._mark, self._resting = state["mark"], state["resting"]
