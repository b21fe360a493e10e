"""Methods that want the noise rate: given as an option, named by the run, or estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ncsam._errors import bad_value
from ncsam.methods.base import State
from ncsam.methods.planning import SubsetMethod
from ncsam.methods.spans import Span, in_epochs


class KnownRate(SubsetMethod):
    """A method that uses the noise rate: `rate(state)` is its own option, else the run's noise rate, else an estimate.

    The estimate is made once, after `wait` (at least one epoch): what `estimate_noise` finds in the models' predictions
    for the samples held out for validation, or for the whole training split if none are. Until then the rate is
    unknown, `None`.

    Args:
        option: Name of the method's option, for the error message.
        value: Its value.
        wait: When to estimate: whole epochs, or a share of the run.
    """

    def __init__(self, option: str, value: float | None, wait: Span) -> None:
        if value is not None and not 0 <= value < 1:
            raise bad_value(option, value, "a share in [0, 1), or None for the noise rate of the run")
        self.given = value
        self.wait = wait
        self.estimated: float | None = None

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Estimate the noise rate once `wait` is over, if nobody gave it.

        Args:
            networks: The models, whose predictions the estimate is made from.
            state: The state of training.
        """
        if self.rate(state) is None and state.epoch > max(1, in_epochs(self.wait, state.epochs)):
            self.estimated = estimated_rate(networks, state)

    def rate(self, state: State) -> float | None:
        """The noise rate, as far as it is known.

        Args:
            state: The state of training, with the noise rate of the run if it was given.

        Returns:
            A share in [0, 1], or None while it is unknown.
        """
        return next((r for r in (self.given, state.noise_rate, self.estimated) if r is not None), None)

    def state_dict(self) -> dict[str, Any]:
        return {"estimated": self.estimated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the estimate, if there was one.

        Args:
            state: What `state_dict` returned.
        """
        self.estimated = state["estimated"]


def estimated_rate(networks: Sequence[nn.Module], state: State) -> float:
    """The noise rate by confident-learning counts, from predictions on the samples held out, or else on all.

    Args:
        networks: The models.
        state: The state of training.
    """
    from ncsam.noise import estimate_noise  # scipy comes with it, and only a run without a named rate needs it

    probabilities = state.predict(networks)
    which = torch.ones_like(state.labels, dtype=torch.bool) if state.held_out is None else state.held_out
    labels, found = state.labels[which].cpu().numpy(), probabilities[which].cpu().double().numpy()
    return estimate_noise(labels, found / found.sum(axis=1, keepdims=True)).rate
