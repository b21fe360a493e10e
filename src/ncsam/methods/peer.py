"""Peer loss (Liu and Guo, 2020, arXiv 1910.03231)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses import peer
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs, ramp

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@dataclass(frozen=True, kw_only=True)
class PeerPlan(Plan):
    """Peers for each row: the row n1 of an input, and the label y_{n2}, drawn apart.

    Attributes:
        inputs: As in `Plan`.
        targets: As in `Plan`.
        index: As in `Plan`.
        peers: Row of the peer's input for each row, (rows,).
        peer_labels: Label of another random row for each row, (rows,).
        alpha: Weight of the peer term in this epoch, 0 or larger.
    """

    peers: Tensor
    peer_labels: Tensor
    alpha: float


@register
class Peer(Method):
    r"""Cross-entropy less that of inputs and labels paired at random. Fitting the labels blindly is no longer rewarded,
    and the noise rate need not be known.

    .. math::
        L = \frac1{|B|} \sum_{i \in B} \frac{l(x_i, y_i) - a\, l(x_{m}, y_{n})}{1 + a}, \qquad
        l(x, y) = -\log(p_y(x) + 10^{-5})

    :math:`m` and :math:`n` are drawn at random from the batch for each i, :math:`l` is the bounded loss, and :math:`a`
    the weight of the peer term in this epoch.

    Cross-entropy alone for `warmup_epochs`, then a grows linearly to `alpha` over `ramp_epochs`. The division by 1 + a
    stands for the authors' learning rate, which they divide by it. Their multi-class code has 20 warm-up epochs of 300,
    then a grows, in pieces that are nearly one line, to 5 on uniform noise and 20 on sparse noise; the learning rate
    drops by 10 every 40 epochs. A large a at a large rate drives the model to chance, so a preset must not have one
    without the other: `uniform` has their spans, as shares of the run; `sparse` stops where theirs has come to rest, at
    epoch 120, with a at 6 and the rate at a thousandth. Peers come from the batch. Labels that NCSAM flips enter
    through cross-entropy.

    Args:
        alpha: Final weight of the peer term.
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        ramp_epochs: Length of the ramp: whole epochs, or a share of the run.

    References:
        Liu and Guo, 2020, arXiv 1910.03231.
    """

    about = "cross-entropy less that of random pairs"
    presets: ClassVar[Presets] = {
        "uniform": {"alpha": 5.0, "warmup_epochs": 20 / 300, "ramp_epochs": 280 / 300},
        "sparse": {"alpha": 6.0, "warmup_epochs": 20 / 120, "ramp_epochs": 100 / 120},
    }

    def __init__(self, alpha: float = 1.0, warmup_epochs: Span = 0.1, ramp_epochs: Span = 0.3) -> None:
        check_spans(warmup_epochs=warmup_epochs, ramp_epochs=ramp_epochs)
        if not alpha >= 0:
            raise bad_value("alpha", alpha, "a number, 0 or larger")
        self.alpha = alpha
        self.warmup_epochs = warmup_epochs
        self.ramp_epochs = ramp_epochs

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Draw the peers of each row from the batch.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: The state of training, and the source of randomness.
        """
        plain = in_epochs(self.warmup_epochs, state.epochs)
        alpha = self.alpha * ramp(state.epoch, plain, in_epochs(self.ramp_epochs, state.epochs))
        draws = torch.from_numpy(state.random().integers(len(batch), size=(2, len(batch)))).to(batch.labels.device)
        peers = {"peers": draws[0], "peer_labels": batch.labels[draws[1]]}
        return (PeerPlan(batch.views[0], batch.labels, batch.index, alpha=alpha, **peers),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The peer loss, divided by 1 + alpha.

        Args:
            network: The model.
            plan: A `PeerPlan`.
        """
        assert isinstance(plan, PeerPlan)
        logits = network(plan.inputs)
        value = peer(logits, plan.targets, plan.peers, plan.peer_labels, alpha=plan.alpha)
        return LossOutput(value / (1 + plan.alpha), logits, plan.targets)
