"""LIMIT, gradients predicted without the label (Harutyunyan et al., 2020, arXiv 2002.07933)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import choice
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.planning import PlanWithExtra, forward_frozen_stats
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class LIMIT(Method):
    r"""Trains a classifier that never sees a label, on gradients that a second model predicts from the input alone.
    What the second model cannot predict, such as random label noise, the classifier cannot memorize.

    .. math::
        L_f = -\sum_c p^{(q)}_c \log p^{(f)}_c, \qquad
        L_q = \left\| p^{(q)} - e_y \right\|_2^2 + \gamma \left\| p^{(f)} - p^{(q)} \right\|_2^2

    :math:`p^{(f)}` is the prediction of the classifier f, :math:`p^{(q)}` that of the model q, each constant in the
    other's loss, :math:`\gamma` is `decay`, and both losses are means over the batch. At f's logits the gradient
    :math:`p^{(f)} - e_y` is so replaced by :math:`p^{(f)} - p^{(q)}`. `distribution="laplace"` has the 1-norm in the
    first term of :math:`L_q`. For the epochs `wait`, f is not trained. f predicts.

    Gradients are those of the authors' code, but f's is their sum over the batch divided by its size: they use Adam,
    which does not notice. They stop early on noisy validation. Their options to sample the gradient instead of taking
    its mean, and to begin q with the weights of a model trained by cross-entropy, are not offered.

    Args:
        distribution: "gaussian" (squared error) or "laplace" (absolute error).
        decay: Weight of the length of the predicted gradient.
        wait: Epochs in which f is not trained: whole epochs, or a share of the run.

    References:
        Harutyunyan et al., 2020, arXiv 2002.07933.
    """

    about = "trains on gradients that a second model predicts without the label"
    worse_with_sam = ("digits symmetric 40",)
    needs_warmup = True
    cost = "two models, and an extra forward pass of each"
    networks = 2
    effect = "criterion"
    #: The authors choose the decay by noisy validation among 0, .1, .3, 1, 3, 10 and 30; this is the middle.
    presets: ClassVar[Presets] = {
        "cifar10": {"distribution": "gaussian", "decay": 1.0},
        "clothing1m": {"distribution": "gaussian", "decay": 1.0},
    }

    def __init__(
        self, distribution: Literal["gaussian", "laplace"] = "gaussian", decay: float = 1.0, wait: Span = 0
    ) -> None:
        non_negative(decay=decay)
        check_spans(wait=wait)
        self.distribution = choice("distribution", distribution, ("gaussian", "laplace"))
        self.decay = decay
        self.wait = wait

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Give f the predictions of q as targets, and q the labels with the predictions of f.

        Args:
            batch: One view of each sample.
            networks: The classifier f and the model q, in this order.
            state: The state of training; f learns nothing for the epochs `wait`.
        """
        classifier, predictor = (
            forward_frozen_stats(network, batch.views[0]).float().softmax(dim=1) for network in networks
        )
        # where f waits, its own answers are its targets: a gradient of zero
        targets = classifier if state.epoch <= in_epochs(self.wait, state.epochs) else predictor
        return (
            Plan(batch.views[0], targets, batch.index),
            PlanWithExtra(batch.views[0], batch.labels, batch.index, extra=classifier),
        )

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy for f, `predictor_loss` for q.

        Args:
            network: f or q.
            plan: A `Plan` for f, a `PlanWithExtra` for q.
        """
        if not isinstance(plan, PlanWithExtra):
            return super().loss(network, plan)
        logits = network(plan.inputs)
        value = predictor_loss(logits, plan.targets, plan.extra, self.distribution, self.decay)
        return LossOutput(value, logits, plan.targets)

    def predict(self, networks: Sequence[nn.Module], inputs: Tensor) -> Tensor:
        """Logits of the classifier f alone.

        Args:
            networks: f and q, in this order.
            inputs: A batch of inputs.
        """
        return super().predict(networks[:1], inputs)


def predictor_loss(logits: Tensor, labels: Tensor, classifier: Tensor, distribution: str, decay: float) -> Tensor:
    """mean ||p_q - y||^2, or its 1-norm, + decay mean ||p_f - p_q||^2.

    Args:
        logits: (rows, classes).
        labels: Class numbers (rows,).
        classifier: p_f, (rows, classes).
        distribution: "gaussian" or "laplace".
        decay: Weight of the length of the prediction.
    """
    p = logits.softmax(dim=1)
    error = p - F.one_hot(labels, logits.shape[1]).to(p)
    away = error.abs() if distribution == "laplace" else error**2
    return away.sum(dim=1).mean() + decay * ((classifier.to(p) - p) ** 2).sum(dim=1).mean()
