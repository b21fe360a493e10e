"""Selection by small losses: what a network finds easy is probably labelled right."""

from __future__ import annotations

from torch import Tensor

from ncsam._errors import bad_value
from ncsam.methods.base import State
from ncsam.methods.known_rate import KnownRate
from ncsam.methods.spans import Span, in_epochs


class SmallLoss(KnownRate):
    r"""Keeps the share R(e) = 1 - tau min((e / E)^c, 1) of small losses in epoch e.

    E is `ramp_epochs` and c `exponent`. tau, `forget_rate`, is by default the noise rate of the run. If that is not
    named either, nothing is forgotten for E epochs (one at least), then tau is estimated: see `KnownRate`.
    """

    def __init__(self, forget_rate: float | None = None, ramp_epochs: Span = 10, exponent: float = 1.0) -> None:
        super().__init__("forget_rate", forget_rate, ramp_epochs)
        if not exponent > 0:
            raise bad_value("exponent", exponent, "a positive number")
        self.exponent = exponent

    def remember_rate(self, state: State) -> float:
        """R(e)."""
        rate, length = self.rate(state), in_epochs(self.wait, state.epochs)
        if rate is None:
            return 1.0
        return 1.0 - rate * (min(1.0, (state.epoch / length) ** self.exponent) if length else 1.0)


def smallest(losses: Tensor, share: float) -> Tensor:
    """Positions of the floor(share * count) smallest losses; of any losses at least one."""
    count = min(len(losses), max(1, int(share * len(losses) + 1e-9)))
    return losses.topk(count, largest=False).indices
