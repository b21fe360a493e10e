"""What a run settles while it goes: when warm-up ends, and which share of a batch NCSAM flips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from ncsam.engine.config import RunConfig
from ncsam.engine.evaluate import Evaluator
from ncsam.engine.optimizers import LARGEST_FLIP_RATIO
from ncsam.engine.progress import Console
from ncsam.noise import estimate_noise
from ncsam.optim import NCSAM
from ncsam.optim.sharpness_aware import SharpnessAware

_SMOOTHED = 3  # epochs
_PATIENCE = 0.05  # of the epochs, and at least two


def warmup_is_over(accuracies: Sequence[float], samples: int, chance: float, epochs: int) -> bool:
    """Whether noisy-validation accuracy has stopped rising, after `len(accuracies)` of `epochs` epochs.

    Let s_e be the mean accuracy of epochs e - 2 to e, and m a mark, at first `chance`, the share of the most frequent
    label. Whenever s_e > m + sqrt(m (1 - m) / samples), the mark rises to s_e. Warm-up is over when it has risen at all
    and not for max(2, round(epochs / 20)) epochs; and after half of the epochs in any case.

    Accuracies and `chance` are fractions. One standard error is what the accuracy of so few samples may differ by for
    no reason; a network that is still at chance has not begun to learn, let alone to memorise.
    """
    done = len(accuracies)
    if done >= epochs // 2:
        return True
    mark, risen = chance, 0
    for e in range(_SMOOTHED, done + 1):
        smooth = math.fsum(accuracies[e - _SMOOTHED : e]) / _SMOOTHED
        if smooth > mark + math.sqrt(mark * (1 - mark) / samples):
            mark, risen = smooth, e
    return risen > 0 and done - risen >= max(2, round(_PATIENCE * epochs))


class Settling:
    """Both answers, `None` while they are open; and the noise rate that the run itself found, where it looked.

    All is computed from what every rank knows alike, so all ranks settle the same, and a resumed run what it had.
    """

    def __init__(self, config: RunConfig, evaluator: Evaluator, console: Console) -> None:
        self.config = config
        self.evaluator = evaluator
        self.console = console
        self.warmup_epochs = None if config.warmup == "auto" else config.warmup_epochs
        self.flip_ratio = None if config.flip_ratio == "auto" else config.flip_ratio
        self.noise_estimate: float | None = None

    def before_epoch(self, epoch: int, history: Sequence[Mapping[str, Any]], networks: Sequence[nn.Module]) -> None:
        """Answer what can be answered before `epoch`, the first being 1."""
        if self.config.optimizer == "sgd":
            return
        if self.warmup_epochs is None:
            self._settle_warmup(history)
        if self.warmup_epochs == epoch - 1 and self.config.optimizer == "ncsam" and self.flip_ratio is None:
            self._settle_flip_ratio(networks)

    def apply(self, optimizer: SharpnessAware, steps_per_epoch: int) -> None:
        """Tell an optimizer what is settled."""
        if self.warmup_epochs is not None:
            optimizer.warmup_steps = self.warmup_epochs * steps_per_epoch
        if isinstance(optimizer, NCSAM) and self.flip_ratio is not None:
            optimizer.flip_ratio = self.flip_ratio

    def _settle_warmup(self, history: Sequence[Mapping[str, Any]]) -> None:
        labels = self.evaluator.held_out_labels
        chance = float(np.bincount(labels).max()) / len(labels)
        accuracies = [record["val_accuracy"] / 100 for record in history]
        if not warmup_is_over(accuracies, len(labels), chance, self.config.epochs):
            return
        self.warmup_epochs = len(history)
        late = self.warmup_epochs >= self.config.epochs // 2
        why = "half of the epochs are done" if late else "noisy validation accuracy has stopped rising"
        self.console.say(f"warm-up ends after {self.warmup_epochs} epochs: {why}")

    def _settle_flip_ratio(self, networks: Sequence[nn.Module]) -> None:
        """min(estimated noise rate, .4), by what the warmed-up network makes of samples held out."""
        self.flip_ratio = LARGEST_FLIP_RATIO
        if self.warmup_epochs == 0:
            return
        labels, probabilities = self.evaluator.out_of_sample(networks)
        self.noise_estimate = float(estimate_noise(labels, probabilities).rate)
        self.flip_ratio = min(self.noise_estimate, LARGEST_FLIP_RATIO)
        self.console.say(
            f"noise rate estimated after warm-up: {100 * self.noise_estimate:.1f} %; flip_ratio {self.flip_ratio:.3f}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("warmup_epochs", "flip_ratio", "noise_estimate")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self.state_dict():
            setattr(self, name, state.get(name, getattr(self, name)))
