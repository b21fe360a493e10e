"""What plans are made of: a look at the networks' answers, and steps that train on some rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._trees import Tree
from ncsam.methods.base import LossOutput, Method, Plan
from ncsam.vectors.saved import SavedBuffers

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@torch.no_grad()
def forward_frozen_stats(network: nn.Module, inputs: Tree, *names: str, evaluating: bool = False) -> Any:
    """What the network answers as it trains (batch statistics, dropout), leaving its running statistics alone.

    `evaluating`: as it answers in evaluation. `names` are further heads to ask: see `WithHeads`.
    """
    if evaluating:
        modes = [(module, module.training) for module in network.modules()]
        for module, _ in modes:
            module.training = False
        answer = network(inputs, *names)
        for module, training in modes:
            module.training = training
        return answer
    buffers = SavedBuffers([network])
    answer = network(inputs, *names)
    buffers.restore()
    return answer


@dataclass(frozen=True, kw_only=True)
class PlanWithExtra(Plan):
    """With a note beside each row that the method's own loss reads: a weight, a memory, another target."""

    extra: Tensor


@dataclass(frozen=True, kw_only=True)
class SubsetPlan(Plan):
    """A step whose loss takes some rows of the batch only; all of them pass through the network.

    `targets` and `index` belong to the rows. The sum of losses is divided by `total`. No rows at all give a loss of
    zero: the step then carries no information, though momentum and weight decay go on.
    """

    rows: Tensor
    total: float


def train_on(batch: Batch, rows: Tensor, labels: Tensor | None = None, total: float | None = None) -> SubsetPlan:
    """A plan for some rows, in the batch's order, under their labels, or others; a mean over them unless said."""
    rows = rows.sort().values
    targets = (batch.labels if labels is None else labels)[rows]
    total = len(rows) if total is None else total
    return SubsetPlan(batch.views[0], targets, batch.index[rows], rows=rows, total=total)


class SubsetMethod(Method):
    """A method whose plans may be `SubsetPlan`s."""

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        if not isinstance(plan, SubsetPlan):
            return super().loss(network, plan)
        logits = network(plan.inputs)
        chosen = logits[plan.rows]
        if len(plan.rows) == 0:
            return LossOutput(logits.sum() * 0.0, chosen, plan.targets)
        share = len(plan.rows) / plan.total
        loss = self.criterion(chosen, plan.targets)
        return LossOutput(loss if share == 1.0 else loss * share, chosen, plan.targets)


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each row."""
    return F.cross_entropy(logits.float(), labels, reduction="none")
