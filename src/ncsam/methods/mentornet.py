"""MentorNet's self-paced form (Jiang et al., 2018, arXiv 1712.05055)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from ncsam.methods.base import Plan, State
from ncsam.methods.planning import forward_frozen_stats, losses_of, train_on
from ncsam.methods.registry import register
from ncsam.methods.small_loss import SmallLoss, smallest

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class MentorNet(SmallLoss):
    r"""One model, trained on the samples of each batch that have the smallest loss. The share that is kept falls to one
    minus the noise rate.

    .. math::
        L = \frac1{|S|} \sum_{i \in S} -\log p_{y_i}, \qquad
        S = \arg\min_{S \subset B,\ |S| = R(e) |B|} \sum_{i \in S} -\log p_{y_i}, \qquad
        R(e) = 1 - \tau \min(e^c / E, 1)

    :math:`S` is the selection, :math:`R(e)` the share kept in epoch :math:`e`, :math:`\tau` the noise rate, :math:`E`
    the ramp and :math:`c` its exponent: see `SmallLoss`.

    This is what tables of the Co-teaching line call MentorNet: the predefined curriculum v_i = 1[l_i small], not a
    learned mentor network.

    Args:
        forget_rate: tau, the share of samples to drop in the end; None takes the noise rate of the run, or an estimate.
        ramp_epochs: E, after which the full rate is dropped: whole epochs, or a share of the run.
        exponent: c, the power of the epoch in the ramp.

    References:
        Jiang et al., 2018, arXiv 1712.05055.
    """

    about = "small losses only, by one model (the self-paced form)"
    worse_with_sam = ("digits pair flip 40",)
    cost = "an extra forward pass before each step"

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the rows of smallest loss.

        Args:
            batch: One view of each sample.
            networks: The model, as a sequence of one.
            state: The state of training, which decides the share that is kept.
        """
        losses = losses_of(forward_frozen_stats(networks[0], batch.views[0]), batch.labels)
        return (train_on(batch, smallest(losses, self.remember_rate(state))),)
