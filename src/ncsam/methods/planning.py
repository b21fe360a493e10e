"""Building blocks of plans: forward passes that leave running statistics alone, and steps on a subset of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._trees import Tree
from ncsam.methods.base import LossOutput, Method, Plan
from ncsam.vectors.saved import SavedBuffers, evaluation_mode

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@torch.no_grad()
def forward_frozen_stats(network: nn.Module, inputs: Tree, *names: str, evaluating: bool = False) -> Any:
    """What the model returns, without gradients and without changing its running statistics.

    Args:
        network: The model.
        inputs: A batch of inputs.
        *names: Further heads to ask; see `WithHeads`.
        evaluating: False runs it as in training (batch statistics, dropout), True as in evaluation.

    Returns:
        Logits, or a dictionary if heads were named.
    """
    if evaluating:
        with evaluation_mode([network]):
            return network(inputs, *names)
    buffers = SavedBuffers([network])
    answer = network(inputs, *names)
    buffers.restore()
    return answer


@dataclass(frozen=True, kw_only=True)
class PlanWithExtra(Plan):
    """A plan with an extra value for each row that the method's loss reads: a weight, a memory, another target.

    Attributes:
        inputs: As in `Plan`.
        targets: As in `Plan`.
        index: As in `Plan`.
        extra: (rows, ...).
    """

    extra: Tensor


@dataclass(frozen=True, kw_only=True)
class SubsetPlan(Plan):
    """A step whose loss takes only some rows of the batch; all of them pass through the model.

    No rows at all give a loss of zero: the step then carries no information, though momentum and weight decay act as
    usual.

    Attributes:
        inputs: The whole batch.
        targets: Targets of the rows.
        index: Which sample each of the rows is.
        rows: Positions in the batch.
        total: The sum of losses is divided by it.
    """

    rows: Tensor
    total: float


def train_on(batch: Batch, rows: Tensor, labels: Tensor | None = None, total: float | None = None) -> SubsetPlan:
    """A plan for some rows of a batch, in the batch's order.

    Args:
        batch: The batch.
        rows: Positions in the batch.
        labels: Labels of the whole batch to train under; by default the observed ones.
        total: What the sum of losses is divided by; by default the number of rows, for their mean.
    """
    rows = rows.sort().values
    targets = (batch.labels if labels is None else labels)[rows]
    total = len(rows) if total is None else total
    return SubsetPlan(batch.views[0], targets, batch.index[rows], rows=rows, total=total)


class SubsetMethod(Method):
    """A method whose plans may be `SubsetPlan`s."""

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The loss of the plan's rows, summed and divided by its `total`; other plans as in `Method`.

        Args:
            network: The model.
            plan: A `SubsetPlan` or another plan.
        """
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
    """Cross-entropy of each row.

    Args:
        logits: (rows, classes).
        labels: Class numbers (rows,).
    """
    return F.cross_entropy(logits.float(), labels, reduction="none")
