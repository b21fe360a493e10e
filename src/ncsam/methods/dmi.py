"""L_DMI, determinant-based mutual information (Xu et al., 2019, arXiv 1909.03388)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from ncsam.losses import dmi
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, State
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@dataclass(frozen=True)
class Joint(Plan):
    """A batch for L_DMI; others are for cross-entropy."""


@register
class DMI(Method):
    r"""Maximizes a mutual information between labels and predictions that a change of labels by any invertible
    transition matrix only shifts by a constant. It needs a model that was warmed up by cross-entropy.

    .. math:: L = -\omega \log |\det U|, \qquad U = \frac{1}{|B|} \sum_{i \in B} e_{y_i} p_i^\top

    :math:`U` is the joint matrix of labels and predictions of a batch and :math:`\omega` the `weight`. `warmup_epochs`
    by cross-entropy come first.

    The authors start from a model trained by cross-entropy and continue with a learning rate of 1e-6, because the
    gradient is that of a log-determinant, U^{-T}. Here the run has one learning rate, so the loss carries a `weight`.
    The default of .01 at a rate of .05 makes steps 500 times as long as theirs, for a run that is as many times
    shorter: theirs are 100 epochs of CIFAR-10, 39,000 steps. With `weight` 2e-5 the steps are theirs, and 20 epochs of
    digits change nothing after warm-up. `eps` (see `ncsam.losses.dmi`) bounds the gradient. The batch should be much
    larger than the number of classes. Labels that NCSAM flips enter through cross-entropy, since L_DMI is a function of
    a whole batch.

    Args:
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        weight: Weight of the loss, which stands for a smaller learning rate.
        eps: eps^2 is added to the diagonal of U U^T.

    References:
        Xu et al., 2019, arXiv 1909.03388.
    """

    about = "determinant of labels against predictions"
    worse_with_sam = ("CIFAR-10",)

    def __init__(self, warmup_epochs: Span = 0.5, weight: float = 0.01, eps: float = 1e-3) -> None:
        check_spans(warmup_epochs=warmup_epochs)
        non_negative(weight=weight, eps=eps)
        self.warmup_epochs = warmup_epochs
        self.weight = weight
        self.eps = eps

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the whole batch, for cross-entropy in warm-up and for L_DMI after it.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: The state of training.
        """
        kind = Plan if state.epoch <= in_epochs(self.warmup_epochs, state.epochs) else Joint
        return (kind(batch.views[0], batch.labels, batch.index),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """`weight` times L_DMI of the batch, or cross-entropy in warm-up.

        Args:
            network: The model.
            plan: A `Joint`, or in warm-up a `Plan`.
        """
        if not isinstance(plan, Joint):
            return super().loss(network, plan)
        logits = network(plan.inputs)
        return LossOutput(self.weight * dmi(logits, plan.targets, eps=self.eps), logits, plan.targets)
