"""What a run settles while it goes: when warm-up ends, and which share of a batch NCSAM flips."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ncsam._checks import count, ratio
from ncsam.engine.config import RunConfig
from ncsam.engine.evaluate import Evaluator
from ncsam.engine.optimizers import LARGEST_FLIP_RATIO
from ncsam.engine.progress import Console
from ncsam.noise import estimate_noise
from ncsam.optim import NCSAM
from ncsam.optim.sharpness_aware import SharpnessAware

_SMOOTHED = 3  # epochs
_LEAST_GAP = 0.02  # however many samples are held out
_ANSWERS: dict[str, Any] = {"warmup_epochs": count, "flip_ratio": ratio, "noise_estimate": ratio}


def memorizing(trained: Sequence[float], held_out: Sequence[float], samples: int) -> bool:
    """Whether the network fits the labels it has seen better than those it has not.

    `trained` and `held_out` are the accuracies on observed labels, as fractions, after each epoch so far: of samples
    trained on, and of `samples` held out. With t and v their means over the last three epochs, it is memorizing if
    t - v exceeds two standard errors of v, 2 sqrt(v (1 - v) / samples), and .02.

    Noisy validation accuracy stops rising at about the same time; but its own noise, which is several points for some
    hundred samples, hides when, and it stops rising as well in a network that cannot fit more.
    """
    if len(trained) < _SMOOTHED:
        return False
    t, v = (math.fsum(values[-_SMOOTHED:]) / _SMOOTHED for values in (trained, held_out))
    return _fits_better(t, v, samples)


def _fits_better(t: float, v: float, samples: int) -> bool:
    return t - v > max(_LEAST_GAP, 2.0 * math.sqrt(v * (1 - v) / samples))


class Settling:
    """The answers, `None` while they are open; and the noise rate that the run itself found, where it looked.

    All is computed from what every rank knows alike, so all ranks settle the same, and a resumed run what it had.
    """

    def __init__(self, config: RunConfig, evaluator: Evaluator, console: Console) -> None:
        self.config = config
        self.evaluator = evaluator
        self.console = console
        self.warmup_epochs = None if config.warmup == "auto" else config.warmup_epochs
        self.flip_ratio = None if config.flip_ratio == "auto" else config.flip_ratio
        self.noise_estimate: float | None = None

    @property
    def watches(self) -> bool:
        """Whether the coming epoch's end must tell the accuracy on the training split."""
        return self.warmup_epochs is None and self.config.sharpness_aware

    def before_epoch(self, epoch: int, history: Sequence[Mapping[str, Any]], networks: Sequence[nn.Module]) -> None:
        """Predictor what can be answered before `epoch`, the first being 1."""
        if not self.config.sharpness_aware:
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

    def note_what_was_fitted(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Say so if a perturbed run memorized nothing: it may also have been kept from learning."""
        if not self.config.sharpness_aware or not history or history[-1]["val_accuracy"] is None:
            return
        t, v = history[-1]["train_accuracy_observed"], history[-1]["val_accuracy"]
        if not _fits_better(t / 100, v / 100, len(self.evaluator.held_out_labels)):
            self.console.say(
                f"nothing was memorized: labels trained on are fitted to {t:.1f} %, those held out to {v:.1f} %. If "
                "that is less than you hoped for, the perturbation may hold the network back: compare --optimizer sgd"
            )

    def _settle_warmup(self, history: Sequence[Mapping[str, Any]]) -> None:
        trained, held_out = (
            [record[name] / 100 for record in history] for name in ("train_accuracy_observed", "val_accuracy")
        )
        if memorizing(trained, held_out, len(self.evaluator.held_out_labels)):
            self.warmup_epochs = len(history)
            why = "labels trained on are fitted better than those held out"
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
        return {name: getattr(self, name) for name in _ANSWERS}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, checked in _ANSWERS.items():
            answer = state.get(name, getattr(self, name))
            setattr(self, name, None if answer is None else checked(name, answer))
