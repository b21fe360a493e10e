"""Two models that divide the samples into labeled and unlabeled ones, and train on both by MixMatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import Tree, first_leaf, join_rows, take_rows
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, State
from ncsam.methods.mixup import mixed
from ncsam.methods.planning import forward_frozen_stats
from ncsam.methods.spans import Span, check_spans, in_epochs, plain_span, ramp

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@dataclass(frozen=True, kw_only=True)
class MixMatch(Plan):
    """Mixed rows: the first `labeled` of them under refined labels, the others under guessed ones.

    Attributes:
        inputs: Mixed rows of all views.
        targets: Mixed probabilities (rows, classes).
        index: None, because rows are mixtures.
        labeled: Number of labeled rows, which come first.
        unlabeled_weight: Weight of the loss on the other rows in this step.
    """

    labeled: int
    unlabeled_weight: float


class Dividing(Method):
    """What DivideMix and its successors share: warm-up, refined and guessed labels, mixing, the loss.

    A subclass fills its division in `on_epoch_start` once `warm(state)` is true, and applies it in `plan`.

    Args:
        warmup_epochs: Length of warm-up: whole epochs, or a share of the run.
        penalty: Whether the entropy of predictions is rewarded in warm-up.
        temperature: T of sharpening.
        alpha: Parameter of Beta(alpha, alpha) in mixing.
        unlabeled_weight: Final weight of the loss on unlabeled rows.
        ramp_epochs: Length of its ramp: whole epochs, or a share of the run.
    """

    networks = 2
    mixes_inputs = True

    def __init__(
        self,
        warmup_epochs: Span,
        penalty: bool,
        temperature: float,
        alpha: float,
        unlabeled_weight: float,
        ramp_epochs: Span,
    ) -> None:
        check_spans(warmup_epochs=warmup_epochs, ramp_epochs=ramp_epochs)
        non_negative(unlabeled_weight=unlabeled_weight)
        for name, value in (("temperature", temperature), ("alpha", alpha)):
            if not value > 0:
                raise bad_value(name, value, "a positive number")
        self.warmup_epochs = warmup_epochs
        self.penalty = penalty
        self.temperature = temperature
        self.alpha = alpha
        self.unlabeled_weight = unlabeled_weight
        self.ramp_epochs = ramp_epochs

    def warm(self, state: State) -> bool:
        """Whether warm-up, of one epoch at least, is over.

        Args:
            state: The state of training.
        """
        return state.epoch > plain_span(self.warmup_epochs, state)

    def mixmatch(
        self,
        batch: Batch,
        views: Sequence[Tree],
        labeled: Tensor,
        trust: Tensor,
        own: Tensor,
        both: Tensor,
        state: State,
        stream: int,
    ) -> MixMatch:
        """Rows of all `views`, mixed: `labeled` ones under trust * label + (1 - trust) * own, others under `both`.

        Both targets are sharpened.

        Args:
            batch: The batch.
            views: Views of it to train on.
            labeled: True for the samples that count as labeled, (samples,).
            trust: Weight of the given label, in [0, 1], (samples,).
            own: Probabilities by the model itself, (samples, classes).
            both: Probabilities by both models, (samples, classes).
            state: The state of training, and the source of randomness.
            stream: Number of the random stream, one for each model.
        """
        onehot = F.one_hot(batch.labels, state.num_classes).to(own.dtype)
        refined = sharpened(torch.lerp(own, onehot, trust.to(own.dtype).unsqueeze(1)), self.temperature)
        targets = torch.where(labeled.unsqueeze(1), refined, sharpened(both, self.temperature)).to(
            first_leaf(views[0]).dtype
        )
        groups = labeled.nonzero().flatten(), (~labeled).nonzero().flatten()
        inputs = join_rows([take_rows(view, rows) for rows in groups for view in views])
        labels = torch.cat([targets[rows] for rows in groups for _ in views])
        epoch = state.epoch - 1 + state.batch / max(1, state.steps_per_epoch)
        risen = ramp(epoch, plain_span(self.warmup_epochs, state), in_epochs(self.ramp_epochs, state.epochs))
        inputs, labels = mixed(inputs, labels, self.alpha, state, own_part_larger=True, stream=stream)
        count = len(groups[0]) * len(views)
        return MixMatch(inputs, labels, labeled=count, unlabeled_weight=risen * self.unlabeled_weight)

    def warm_up_loss(self, logits: Tensor, targets: Tensor) -> LossOutput:
        """Cross-entropy, minus the entropy of the predictions with `penalty`.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,).
        """
        value = self.criterion(logits, targets)
        if self.penalty:
            log_p = F.log_softmax(logits, dim=1)
            value = value + (log_p.exp() * log_p).sum(dim=1).mean()
        return LossOutput(value, logits, targets)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The loss of MixMatch, or that of warm-up.

        Args:
            network: One of the two models.
            plan: A `MixMatch`, or in warm-up a `Plan`.
        """
        logits = network(plan.inputs)
        return mixmatch_loss(logits, plan) if isinstance(plan, MixMatch) else self.warm_up_loss(logits, plan.targets)


def mixmatch_loss(logits: Tensor, plan: MixMatch) -> LossOutput:
    """CE on the labeled rows + weight * mean (p - target)^2 on the others + sum_c (1/C) log((1/C) / mean p_c).

    Args:
        logits: (rows, classes).
        plan: Mixed rows and their targets.
    """
    count, p = plan.labeled, logits.softmax(dim=1)
    value = apart_from_equal(p)
    if count:
        value = value + F.cross_entropy(logits[:count], plan.targets[:count])
    if count < len(p):
        value = value + plan.unlabeled_weight * (p[count:] - plan.targets[count:]).square().mean()
    rows = slice(count) if count else slice(None)
    return LossOutput(value, logits[rows], plan.targets[rows])


def apart_from_equal(probabilities: Tensor) -> Tensor:
    """sum_c (1/C) log((1/C) / mean p_c): how far the mean prediction is from equal shares.

    Args:
        probabilities: (rows, classes).
    """
    mean = probabilities.mean(dim=0)
    return -(mean * len(mean)).clamp(min=1e-12).log().mean()


def mean_answer(network: nn.Module, views: Sequence[Tensor], *, evaluating: bool = False) -> Tensor:
    """Probabilities by one model, the mean over views.

    Args:
        network: The model.
        views: Views of the batch.
        evaluating: Whether the model answers in evaluation mode.
    """
    answers: list[Any] = [forward_frozen_stats(network, view, evaluating=evaluating) for view in views]
    return torch.stack([answer.softmax(dim=1) for answer in answers]).mean(dim=0)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalized.

    Args:
        probabilities: (rows, classes).
        temperature: T; smaller is sharper.
    """
    powered = probabilities ** (1 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)
