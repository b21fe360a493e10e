"""Selection by small losses: what a network finds easy is probably labeled right."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import State
from ncsam.methods.known_rate import KnownRate
from ncsam.methods.spans import Span, check_spans, in_epochs


class SmallLoss(KnownRate):
    r"""Keeps the share R(e) = 1 - tau min(e^c / E, 1) of small losses in epoch e.

    E is `ramp_epochs` and c `exponent`, as in the Co-teaching paper; the authors' code has tau^c in the place of tau
    and e - 1 in that of e^c, which for c = 1 is the same but for one epoch. tau, `forget_rate`, is by default the noise
    rate of the run. If that is not named either, nothing is forgotten for E epochs (one at least), then tau is
    estimated: see `KnownRate`.
    """

    def __init__(self, forget_rate: float | None = None, ramp_epochs: Span = 10, exponent: float = 1.0) -> None:
        check_spans(ramp_epochs=ramp_epochs)
        super().__init__("forget_rate", forget_rate, ramp_epochs)
        if not exponent > 0:
            raise bad_value("exponent", exponent, "a positive number")
        self.exponent = exponent

    def remember_rate(self, state: State) -> float:
        """R(e)."""
        rate, length = self.rate(state), in_epochs(self.wait, state.epochs)
        if rate is None:
            return 1.0
        return 1.0 - rate * (min(1.0, state.epoch**self.exponent / length) if length else 1.0)


class TwoNetworks(SmallLoss):
    """Predicts with the mean of its networks' logits, or with `ensemble=False` by the first network alone.

    The authors of Co-teaching, Co-teaching+ and JoCoR report each network by itself. The mean is usually a little
    better, so that only `ensemble=False` compares with their tables.
    """

    def __init__(
        self,
        forget_rate: float | None = None,
        ramp_epochs: Span = 10,
        exponent: float = 1.0,
        ensemble: bool = True,
    ) -> None:
        super().__init__(forget_rate, ramp_epochs, exponent)
        self.ensemble = ensemble

    def predict(self, networks: Sequence[nn.Module], inputs: Tensor) -> Tensor:
        return super().predict(networks if self.ensemble else networks[:1], inputs)


def smallest(losses: Tensor, share: float) -> Tensor:
    """Positions of the floor(share * count) smallest losses; of any losses at least one."""
    count = min(len(losses), max(1, int(share * len(losses) + 1e-9)))
    return losses.topk(count, largest=False).indices
