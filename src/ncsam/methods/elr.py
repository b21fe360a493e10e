"""Early-learning regularization (Liu et al., 2020, arXiv 2007.00151)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from ncsam._errors import bad_value
from ncsam.losses import elr_regularizer
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.planning import PlanWithExtra, forward_frozen_stats
from ncsam.methods.registry import register

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_MEMORY = "elr_memory"


@register
class ELR(Method):
    r"""Pulls the predictions of each sample towards their own running mean. Early in training that mean is right more
    often than the label, so the pull works against memorizing.

    .. math::
        L = \frac1{|B|} \sum_{i \in B} \left[ -\log p_{y_i} + \lambda \log(1 - \langle p_i, t_i \rangle) \right],
        \qquad t_i \leftarrow \beta t_i + (1 - \beta) p_i

    :math:`t_i` is the memory of sample i, updated whenever the sample occurs, :math:`\beta` its decay and
    :math:`\lambda` the `weight`. As in the authors' code t starts at 0, and :math:`p_i` enters :math:`t_i` before that
    enters the loss; the :math:`p_i` of this update is normalized after being kept 1e-4 away from 0 and 1.

    Args:
        weight: Weight of the regularizer.
        beta: Decay of the memory of predictions, in [0, 1).

    References:
        Liu et al., 2020, arXiv 2007.00151.
    """

    about = "pulls predictions towards their own past"
    cost = "an extra forward pass before each step"
    presets: ClassVar[Presets] = {
        "cifar10": {"weight": 3.0, "beta": 0.7},
        "cifar10-asymmetric": {"weight": 1.0, "beta": 0.9},
        "cifar100": {"weight": 7.0, "beta": 0.9},
    }

    def __init__(self, weight: float = 3.0, beta: float = 0.7) -> None:
        non_negative(weight=weight)
        if not 0 <= beta < 1:
            raise bad_value("beta", beta, "a number in [0, 1)")
        self.weight = weight
        self.beta = beta

    def on_train_start(self, state: State) -> None:
        """Create the memory of predictions, 0 at first.

        Args:
            state: The state of training.
        """
        state.samples.column(_MEMORY, (state.num_classes,))

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Move the memory of these samples towards the present predictions, and plan with it.

        Args:
            batch: One view of each sample.
            networks: The model.
            state: The state of training, which holds the memory.
        """
        p = forward_frozen_stats(networks[0], batch.views[0]).float().softmax(dim=1).clamp(1e-4, 1 - 1e-4)
        p = p / p.sum(dim=1, keepdim=True)
        memory = torch.lerp(p, state.samples[_MEMORY][batch.index], self.beta)
        state.samples.write(_MEMORY, batch.index, memory)
        return (PlanWithExtra(batch.views[0], batch.labels, batch.index, extra=memory),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy plus `weight` times the regularizer.

        Args:
            network: The model.
            plan: A `PlanWithExtra`, whose extra values are the memory (rows, classes).
        """
        assert isinstance(plan, PlanWithExtra)
        logits = network(plan.inputs)
        value = F.cross_entropy(logits, plan.targets) + self.weight * elr_regularizer(logits, plan.extra)
        return LossOutput(value, logits, plan.targets)
