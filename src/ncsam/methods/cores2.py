"""CORES2, the sample sieve with confidence regularization (Cheng et al., 2021, arXiv 2010.02347)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ncsam.losses import confidence_regularized
from ncsam.losses.peer import bounded_ce
from ncsam.losses.reduction import non_negative, of_target
from ncsam.methods.base import LossOutput, Plan, State
from ncsam.methods.planning import SubsetMethod, SubsetPlan, forward_frozen_stats
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs, ramp

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_KEPT = "cores2_kept"
_FLOOR = 1e-8


@dataclass(frozen=True, kw_only=True)
class Sieved(SubsetPlan):
    """The rows that pass the sieve, with beta and the prior of this epoch.

    Attributes:
        inputs: The whole batch.
        targets: Labels of the kept rows.
        index: Which sample each of the kept rows is.
        rows: Positions of the kept rows in the batch.
        total: Number of kept rows.
        beta: Weight of the regularizer in this epoch, 0 or larger.
        prior: Share of each label among the samples kept last, (classes,).
    """

    beta: float
    prior: Tensor


@register
class CORES2(SubsetMethod):
    r"""Cross-entropy with a regularizer that rewards confident predictions, on the samples that pass a sieve. A sample
    passes if the loss of its label is below the mean loss over all labels.

    .. math::
        L = \frac1{|K|} \sum_{i \in K} \frac{l_{i y_i} - \beta \sum_c P(c)\, l_{ic}}{1 + \beta}, \qquad
        K = \left\{ i \in B : l_{i y_i} \le \frac1C \sum_c l_{ic} \right\}, \qquad l_{ic} = -\log p_{ic}

    :math:`K` are the kept samples (all of them for `sieve_after` and the epoch after it), :math:`l_{ic}` is the loss of
    sample i under label c, and :math:`P` the share of each observed label among the samples that the last epoch kept.
    The strength :math:`\beta` is 0 for `warmup_epochs`, grows linearly to `beta` over `ramp_epochs`, then stays: 10,
    30, 30 of 100 epochs in the authors' code. The division stands for the authors' learning rate, which they divide by
    1 + beta. This is the first phase; their CORES2* adds consistency training on the rest. Labels that NCSAM flips
    enter through cross-entropy.

    Args:
        beta: Final weight of the regularizer.
        warmup_epochs: Epochs with beta = 0: whole epochs, or a share of the run.
        ramp_epochs: Length of the ramp: whole epochs, or a share of the run.
        sieve_after: When the sieve starts: whole epochs, or a share of the run.

    References:
        Cheng et al., 2021, arXiv 2010.02347.
    """

    about = "confidence regularizer and a sieve of samples"
    cost = "an extra forward pass once the sieve works"

    def __init__(
        self, beta: float = 2.0, warmup_epochs: Span = 0.1, ramp_epochs: Span = 0.3, sieve_after: Span = 0.3
    ) -> None:
        non_negative(beta=beta)
        check_spans(warmup_epochs=warmup_epochs, ramp_epochs=ramp_epochs, sieve_after=sieve_after)
        self.beta = beta
        self.warmup_epochs = warmup_epochs
        self.ramp_epochs = ramp_epochs
        self.sieve_after = sieve_after

    def on_train_start(self, state: State) -> None:
        """Keep every sample that is trained on, and take their label shares for the prior.

        Args:
            state: The state of training.
        """
        kept = state.samples.column(_KEPT, dtype=torch.bool, fill=1)
        if state.held_out is not None:
            kept[state.held_out] = False
        self.prior = label_shares(state.labels[kept], state.num_classes)

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Set the prior to the label shares of the samples kept last.

        Args:
            networks: Not used.
            state: The state of training.
        """
        self.prior = label_shares(state.labels[state.samples[_KEPT]], state.num_classes)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the rows that pass the sieve; all of them before it starts.

        Args:
            batch: One view of each sample.
            networks: The model, whose losses decide.
            state: The state of training.
        """
        rows = torch.arange(len(batch), device=batch.labels.device)
        if state.epoch > in_epochs(self.sieve_after, state.epochs) + 1:  # the authors count from 0: e <= 30 keeps all
            kept = sieve(forward_frozen_stats(networks[0], batch.views[0]), batch.labels)
            state.samples.write(_KEPT, batch.index, kept)
            rows = rows[kept]
        plain, length = in_epochs(self.warmup_epochs, state.epochs), in_epochs(self.ramp_epochs, state.epochs)
        return (
            Sieved(
                batch.views[0],
                batch.labels[rows],
                batch.index[rows],
                rows=rows,
                total=len(rows),
                beta=self.beta * ramp(state.epoch, plain, length),
                prior=self.prior,
            ),
        )

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The regularized loss of the kept rows, divided by 1 + beta; 0 if none was kept.

        Args:
            network: The model.
            plan: A `Sieved`.
        """
        assert isinstance(plan, Sieved)
        logits = network(plan.inputs)
        kept = logits[plan.rows]
        if len(kept) == 0:
            return LossOutput(logits.sum() * 0.0, kept, plan.targets)
        value = confidence_regularized(kept, plan.targets, plan.prior, beta=plan.beta, floor=_FLOOR)
        return LossOutput(value / (1 + plan.beta), kept, plan.targets)

    def state_dict(self) -> dict[str, Tensor]:
        return {"prior": self.prior}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the prior.

        Args:
            state: What `state_dict` returned.
        """
        self.prior = state["prior"]


def sieve(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether the loss of each label is no larger than the mean loss over all labels.

    Args:
        logits: (rows, classes).
        labels: Class numbers (rows,).
    """
    losses = bounded_ce(logits.float(), _FLOOR)
    return of_target(losses, labels) <= losses.mean(dim=1)


def label_shares(labels: Tensor, num_classes: int) -> Tensor:
    """The share of each label; equal shares if there are no labels.

    Args:
        labels: Class numbers (rows,).
        num_classes: Number of classes.
    """
    counts = torch.bincount(labels, minlength=num_classes).float()
    return counts / counts.sum() if len(labels) else torch.full_like(counts, 1 / num_classes)
