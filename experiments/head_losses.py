"""Two losses of the last layer at the cost of one pass: per-sample SAM in closed form, and a Jacobian penalty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.methods.base import LossOutput, Method, Plan, State
from ncsam.models.backbone import Backbone

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


class HeadLoss(Method):
    """A loss of the logits and of what the head sees."""

    resists_memorization = False
    effect = "criterion"

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        return (Plan(batch.views[0], batch.labels, batch.index),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        backbone = next(module for module in network.modules() if isinstance(module, Backbone))
        seen: list[Tensor] = []
        hook = backbone.head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        logits = network(plan.inputs)
        hook.remove()
        return LossOutput(self.of(logits, seen[0], plan.targets, backbone.head), logits, plan.targets)

    def of(self, logits: Tensor, x: Tensor, targets: Tensor, head: nn.Linear) -> Tensor:
        """The loss, given the logits, the inputs x of the head, and the head."""
        raise NotImplementedError  # abstract: each loss's own


class PerSampleHead(HeadLoss):
    r"""1-SAM of the head (weights and bias): :math:`\tilde z = z + \rho \sqrt{|x|^2 + 1}\, (p - y) / |p - y|`.

    The gradient with respect to the logits is softmax(z~) - y, whose product with x is 1-SAM's gradient of the head.
    """

    def __init__(self, radius: float = 0.1) -> None:
        self.radius = radius

    def of(self, logits: Tensor, x: Tensor, targets: Tensor, head: nn.Linear) -> Tensor:
        with torch.no_grad():
            residual = logits.softmax(1) - F.one_hot(targets, logits.shape[1])
            shift = self.radius * (x.square().sum(1, keepdim=True) + 1).sqrt() * F.normalize(residual, dim=1)
        return F.cross_entropy(logits + shift, targets)


class JacobianPenalty(HeadLoss):
    r"""Cross-entropy + lambda (mean_i (1 - p_i) |x_i|^2 / d + |V|^2 / 100), p_i of the observed label, no gradient
    through it; V the head's weights (after Baek, Kolter, Raghunathan, ICLR 2024).
    """

    def __init__(self, strength: float = 0.1) -> None:
        self.strength = strength

    def of(self, logits: Tensor, x: Tensor, targets: Tensor, head: nn.Linear) -> Tensor:
        missing = 1 - logits.detach().softmax(1).gather(1, targets[:, None])[:, 0]
        penalty = (missing * x.square().mean(1)).mean() + head.weight.square().sum() / 100
        return F.cross_entropy(logits, targets) + self.strength * penalty
