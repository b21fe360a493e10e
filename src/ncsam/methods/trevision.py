"""T-Revision, or Reweight-R (Xia et al., 2019, arXiv 1906.00189)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import LossOutput, Plan, State
from ncsam.methods.planning import PlanWithExtra, forward_frozen_stats, losses_of
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs
from ncsam.methods.steps import average_gradients
from ncsam.methods.transition import TransitionMethod

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class TRevision(TransitionMethod):
    r"""Importance weights turn the risk under noisy labels into that under clean ones. The transition matrix behind the
    weights is estimated first and then revised by learning.

    .. math::
        L = \frac1{|B|} \sum_{i \in B} b_i \left( -\log p_{y_i} \right), \qquad
        b_i = \frac{p_{y_i}}{(T^\top p_i)_{y_i}}

    :math:`b_i` is the weight of sample i and :math:`T_{jk} = P(\text{observed } k \mid \text{true } j)` the transition
    matrix.

    Three stages. Cross-entropy for `warmup_epochs`, then T is estimated (or given: see `TransitionMethod`). Reweighting
    with T. From `revise_after` on T is revised: it is T + D, rows normalized, and the slack D learns by the gradient of
    the same loss through the weights b, by an Adam of its own with `slack_lr`. For the model the weights are
    constants, and its steps are the run's own; in the authors' third stage the weights are differentiated and that
    Adam, at a rate of 5e-7, drives the model too, which at this rate hardly moves. Their code adds D to T once per
    sample, so that D counts 64 times on average in a batch of 128; here it is added once, and `slack_lr` is as much
    larger: at 5e-7 D would reach 1e-4 in 400 steps, and revise nothing. They choose each stage's model on noisy
    validation samples; here one model goes through all stages. Labels that NCSAM flips enter through cross-entropy.

    Args:
        transition: T as rows of P(observed | true); None estimates it.
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        revise_after: When T is revised: whole epochs, or a share of the run.
        quantile: Predictions above this quantile are outliers and no anchors; None keeps all.
        slack_lr: Learning rate of the slack D.

    References:
        Xia et al., 2019, arXiv 1906.00189.
    """

    about = "importance weights by a transition matrix that is revised"
    cost = "an extra forward pass before each step, after warm-up"

    def __init__(
        self,
        transition: Sequence[Sequence[float]] | None = None,
        warmup_epochs: Span = 0.1,
        revise_after: Span = 0.5,
        quantile: float | None = 0.97,
        slack_lr: float = 3e-5,
    ) -> None:
        super().__init__(transition, warmup_epochs, quantile)
        check_spans(revise_after=revise_after)
        if not slack_lr >= 0:
            raise bad_value("slack_lr", slack_lr, "a number, 0 or larger")
        self.revise_after = revise_after
        self.slack_lr = slack_lr

    def on_train_start(self, state: State) -> None:
        """Check T, and create the slack, 0 at first, with its optimizer.

        Args:
            state: The state of training.
        """
        super().on_train_start(state)
        self.slack = torch.zeros(state.num_classes, state.num_classes, device=state.labels.device, requires_grad=True)
        self.adam = torch.optim.Adam([self.slack], lr=self.slack_lr)

    def plain(self, state: State) -> int:
        """The share itself: by a T that is still flat the weights follow p_y, which does no harm (see the trial).

        Args:
            state: The state of training.
        """
        return in_epochs(self.warmup_epochs, state.epochs)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Weight the rows by the present T, which from `revise_after` on takes a step first; no weights in warm-up.

        Args:
            batch: One view of each sample.
            networks: The model, as a sequence of one.
            state: The state of training.
        """
        if self.transition is None:
            return super().plan(batch, networks, state)
        answers = forward_frozen_stats(networks[0], batch.views[0]).float()
        if state.epoch > in_epochs(self.revise_after, state.epochs):
            self._revise(answers, batch.labels)
        weights = importance(answers, batch.labels, revised(self.transition.to(self.slack), self.slack))
        return (PlanWithExtra(batch.views[0], batch.labels, batch.index, extra=weights),)

    @torch.enable_grad()
    def _revise(self, answers: Tensor, labels: Tensor) -> None:
        assert self.transition is not None
        weights = importance(answers, labels, revised(self.transition.to(self.slack), self.slack))
        self.adam.zero_grad()
        (weights * losses_of(answers, labels)).mean().backward()  # type: ignore[no-untyped-call]
        average_gradients([self.slack])
        self.adam.step()

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Weighted cross-entropy; weights are constants.

        Args:
            network: The model.
            plan: A `PlanWithExtra`, whose extra values are the weights, or in warm-up a `Plan`.
        """
        logits = network(plan.inputs)
        if not isinstance(plan, PlanWithExtra):
            return LossOutput(self.criterion(logits, plan.targets), logits, plan.targets)
        losses = F.cross_entropy(logits, plan.targets, reduction="none")
        return LossOutput((plan.extra * losses).mean(), logits, plan.targets)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Plain cross-entropy, which flipped labels enter through.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,), or probabilities (rows, classes).
        """
        return F.cross_entropy(logits, targets)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slack": self.slack.detach(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore T and, in a training run, the slack and its optimizer.

        Args:
            state: What `state_dict` returned.
        """
        super().load_state_dict(state)
        if not hasattr(self, "slack"):  # a trained model is only asked for predictions
            return
        with torch.no_grad():
            self.slack.copy_(state["slack"])
        self.adam.load_state_dict(state["adam"])


def revised(transition: Tensor, slack: Tensor) -> Tensor:
    """T + D as probabilities: none below 1e-6, rows normalized.

    Args:
        transition: T, (classes, classes).
        slack: D, (classes, classes).
    """
    raw = (transition + slack).clamp(min=1e-6)
    return raw / raw.sum(dim=1, keepdim=True)


def importance(logits: Tensor, labels: Tensor, transition: Tensor) -> Tensor:
    """p_y / (T^T p)_y of each row.

    Args:
        logits: (rows, classes).
        labels: Class numbers (rows,).
        transition: T, (classes, classes).
    """
    p = logits.softmax(dim=1)
    observed = labels.unsqueeze(1)
    return (p.gather(1, observed) / (p @ transition).gather(1, observed)).squeeze(1)
