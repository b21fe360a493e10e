"""Co-teaching (Han et al., 2018, arXiv 1804.06872)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from ncsam.methods.base import Plan, State
from ncsam.methods.planning import forward_frozen_stats, losses_of, train_on
from ncsam.methods.registry import register
from ncsam.methods.small_loss import TwoNetworks, smallest

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class Coteaching(TwoNetworks):
    r"""Two models, each trained on the samples of the batch whose losses the *other* finds smallest. Wrong labels have
    large losses while a model has not memorized them, and two models make different mistakes.

    .. math::
        L_1 = \frac1{|S_2|} \sum_{i \in S_2} -\log p^{(1)}_{y_i}, \qquad
        S_k = \arg\min_{S \subset B,\ |S| = R(e) |B|} \sum_{i \in S} -\log p^{(k)}_{y_i}, \qquad
        R(e) = 1 - \tau \min(e^c / E, 1)

    :math:`L_1` is the loss of model 1 (:math:`L_2` likewise with :math:`S_1`), :math:`p^{(k)}` the prediction of model
    k, :math:`S_k` its selection, :math:`R(e)` the share kept in epoch :math:`e`, :math:`\tau` the noise rate, :math:`E`
    the ramp and :math:`c` its exponent.

    R(e) = 1 - tau min(e^c / E, 1), tau the noise rate (see `SmallLoss`), E = 10, c = 1. (For asymmetric noise, JoCoR's
    code takes half of the rate for tau.) Both predict together, or one alone: see `TwoNetworks`. Both models choose
    before either trains. The authors' code divides the mean over the chosen once more by their number, which Adam does
    not notice and SGD would; here it is the mean.

    Args:
        forget_rate: tau, the share of samples to drop in the end; None takes the noise rate of the run, or an estimate.
        ramp_epochs: E, after which the full rate is dropped: whole epochs, or a share of the run.
        exponent: c, the power of the epoch in the ramp.
        ensemble: Whether both models predict together; False predicts with the first alone.

    References:
        Han et al., 2018, arXiv 1804.06872.
    """

    about = "small losses only, chosen by the other of two models"
    cost = "two models, and an extra forward pass of each"
    networks = 2

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Give each model the rows that the other finds easiest.

        Args:
            batch: One view of each sample.
            networks: Both models, which choose before either trains.
            state: The state of training, which decides the share that is kept.
        """
        share = self.remember_rate(state)
        first, second = (
            smallest(losses_of(forward_frozen_stats(network, batch.views[0]), batch.labels), share)
            for network in networks
        )
        return train_on(batch, second), train_on(batch, first)
