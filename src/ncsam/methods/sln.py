"""Stochastic label noise (Chen et al., 2021, ICLR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.losses.reduction import non_negative
from ncsam.methods.averaging import AveragingMethod
from ncsam.methods.base import LossOutput, Plan, Presets, State
from ncsam.methods.mixtures import losses_under, scaled
from ncsam.methods.planning import PlanWithExtra
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_TARGETS = "sln_targets"


@register
class SLN(AveragingMethod):
    r"""Stochastic label noise: fresh Gaussian noise on the targets in every step. It keeps the model from becoming
    certain of any label.

    .. math::
        L = -\frac1{|B|} \sum_{i \in B} \sum_c t_{ic} \log p_{ic}, \qquad t_i = e_{y_i} + \sigma \xi_i, \qquad
        \xi_i \sim N(0, I)

    :math:`t_i` is the target of sample i, :math:`\xi_i` the noise, drawn in every step, and :math:`\sigma` its standard
    deviation.

    The authors' further parts are off by default. `decay` (.999 in theirs) predicts with averaged weights, SLN-MO.
    `correct_after` (250 of 300 epochs) adds label correction, SLN-MO-LC: from then on sigma = 0 and
    t = l e_y + (1 - l) e_k, k the prediction on the un-augmented sample and l its loss scaled to [0, 1] over the
    samples trained on, both taken before each epoch. So a sample that the model finds easy takes the prediction, and
    one that it finds hard keeps its label, as in the authors' code.

    Args:
        sigma: Standard deviation of the noise on targets.
        decay: Decay of the running average of the weights, in [0, 1); 0 predicts with the weights themselves.
        correct_after: When label correction starts: whole epochs, or a share of the run; None never.

    References:
        Chen et al., 2021, ICLR.
    """

    about = "targets with fresh Gaussian noise in every step"
    cost = "as cross-entropy; with correction, a prediction of the training split before each epoch"
    presets: ClassVar[Presets] = {
        "cifar10-symmetric": {"sigma": 1.0},
        "cifar10-asymmetric": {"sigma": 0.5},
        "cifar10-instance": {"sigma": 0.5},
        "cifar100": {"sigma": 0.2},
        "cifar100-instance": {"sigma": 0.1},
    }

    def __init__(self, sigma: float = 1.0, decay: float = 0.0, correct_after: Span | None = None) -> None:
        super().__init__(decay)
        non_negative(sigma=sigma)
        if correct_after is not None:
            check_spans(correct_after=correct_after)
        self.sigma = sigma
        self.correct_after = correct_after

    def on_train_start(self, state: State) -> None:
        """Move the average to the device of training, and create the column of corrected targets if they are wanted.

        Args:
            state: The state of training.
        """
        super().on_train_start(state)
        if self.correct_after is not None:
            state.samples.column(_TARGETS, (state.num_classes,))

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """From `correct_after` on, write the corrected targets.

        Args:
            networks: The model.
            state: The state of training, whose `predict` answers with the averaged weights if there are any.
        """
        if self._corrects(state):
            rows = state.trained
            found = corrected_targets(state.predict(networks)[rows], state.labels[rows])
            state.samples[_TARGETS][rows] = found

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Draw fresh noise on the targets; from `correct_after` on take the corrected ones instead.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: The state of training, and the source of randomness.
        """
        if self._corrects(state):
            return (Plan(batch.views[0], state.samples[_TARGETS][batch.index], batch.index),)
        z = state.random().standard_normal((len(batch), state.num_classes), dtype="float32")
        onehot = F.one_hot(batch.labels, state.num_classes)
        disturbed = onehot + self.sigma * torch.from_numpy(z).to(batch.labels.device)
        return (PlanWithExtra(batch.views[0], batch.labels, batch.index, extra=disturbed),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy with noisy or corrected targets.

        Args:
            network: The model.
            plan: A `PlanWithExtra`, whose extra values are noisy targets (rows, classes), or a `Plan`.
        """
        if not isinstance(plan, PlanWithExtra):
            return super().loss(network, plan)
        logits = network(plan.inputs)
        return LossOutput(F.cross_entropy(logits, plan.extra.to(logits.dtype)), logits, plan.targets)

    def _corrects(self, state: State) -> bool:
        after = self.correct_after
        return after is not None and state.epoch > max(1, in_epochs(after, state.epochs))


def corrected_targets(probabilities: Tensor, labels: Tensor) -> Tensor:
    """l e_y + (1 - l) e_k for each sample: k the predicted class, l the loss of y, from 0 (smallest) to 1 (largest).

    Args:
        probabilities: (samples, classes).
        labels: Class numbers (rows,).
    """
    losses = scaled(losses_under(probabilities, labels)).unsqueeze(1)
    classes = probabilities.shape[1]
    return torch.lerp(F.one_hot(probabilities.argmax(1), classes).float(), F.one_hot(labels, classes).float(), losses)
