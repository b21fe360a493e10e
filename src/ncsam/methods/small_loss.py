"""Selection by small losses: what a model finds easy is probably labeled right."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import State
from ncsam.methods.known_rate import KnownRate
from ncsam.methods.spans import Span, check_spans, in_epochs


class SmallLoss(KnownRate):
    """Keeps the share R(e) = 1 - tau min(e^c / E, 1) of small losses in epoch e.

    This is the formula of the Co-teaching paper; the authors' code has tau^c in the place of tau and e - 1 in that of
    e^c, which for c = 1 is the same but for one epoch. If the noise rate is not known, nothing is dropped for E epochs
    (at least one), then tau is estimated: see `KnownRate`.

    Args:
        forget_rate: tau, the share of samples to drop in the end; None takes the noise rate of the run, or an estimate.
        ramp_epochs: E: whole epochs, or a share of the run.
        exponent: c, the power of the epoch.
    """

    def __init__(self, forget_rate: float | None = None, ramp_epochs: Span = 10, exponent: float = 1.0) -> None:
        check_spans(ramp_epochs=ramp_epochs)
        super().__init__("forget_rate", forget_rate, ramp_epochs)
        if not exponent > 0:
            raise bad_value("exponent", exponent, "a positive number")
        self.exponent = exponent

    def remember_rate(self, state: State) -> float:
        """R(e).

        Args:
            state: The state of training.

        Returns:
            The share to keep, in [0, 1]; 1 while the noise rate is unknown.
        """
        rate, length = self.rate(state), in_epochs(self.wait, state.epochs)
        if rate is None:
            return 1.0
        return 1.0 - rate * (min(1.0, state.epoch**self.exponent / length) if length else 1.0)


class TwoNetworks(SmallLoss):
    """Predicts with the mean of its models' logits, or with the first model alone.

    The authors of Co-teaching, Co-teaching+ and JoCoR report each model by itself. The mean is usually a little better,
    so that only `ensemble=False` compares with their tables.

    Args:
        forget_rate: tau, the share of samples to drop in the end; None takes the noise rate of the run, or an estimate.
        ramp_epochs: E: whole epochs, or a share of the run.
        exponent: c, the power of the epoch.
        ensemble: Whether both models predict together.
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
        """The mean logits of the models, or those of the first with `ensemble=False`.

        Args:
            networks: Both models.
            inputs: A batch of inputs.
        """
        return super().predict(networks if self.ensemble else networks[:1], inputs)


def smallest(losses: Tensor, share: float) -> Tensor:
    """Positions of the floor(share * count) smallest losses; of any losses at least one.

    Args:
        losses: One loss per row.
        share: Share to keep, in [0, 1].
    """
    count = min(len(losses), max(1, int(share * len(losses) + 1e-9)))
    return losses.topk(count, largest=False).indices
