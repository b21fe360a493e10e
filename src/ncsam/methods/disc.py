"""DISC, dynamic instance-specific selection and correction (Li et al., 2023, CVPR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import first_leaf, join_rows, take_rows
from ncsam.losses import gce
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.mixup import mixed
from ncsam.methods.planning import forward_frozen_stats
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_PROBABILITIES = "disc_probabilities"
_THRESHOLDS = "disc_thresholds"
_SET = "disc_set"
_LABEL = "disc_label"
NONE, CLEAN, HARD, PURIFIED = range(4)
_LARGEST = 0.99  # a threshold for correction rises no further
_AUTHORS_EPOCHS = 200


@dataclass(frozen=True, kw_only=True)
class Selected(Plan):
    """Rows of both views, then the mixed rows of both; `kind` says which set each sample is in.

    `index` names the samples that are in any: the rows whose logits the outcome has.

    Attributes:
        inputs: Both views of the batch, then the mixed rows of both.
        targets: Labels of the whole batch, corrected where purified, (samples,).
        index: Which samples are in any set.
        kind: 0 none, 1 clean, 2 hard, 3 purified, (samples,).
        mixed_targets: Probabilities of the mixed rows, (rows, classes).
    """

    kind: Tensor
    mixed_targets: Tensor


@register
class DISC(Method):
    r"""One model and two views; each sample has its own thresholds, which follow the model's confidence. They divide
    the samples into clean, hard and purified ones, and the rest is not used.

    .. math::
        L = \frac1{|B|} \sum_{i \in \mathcal C} (\mathrm{CE}_w + \mathrm{CE}_s) + \frac{\lambda_h}{|B|} \sum_{i \in
        \mathcal H} (\mathrm{GCE}_w + \mathrm{GCE}_s) + \mathrm{MixUp}_w + \mathrm{MixUp}_s

    :math:`\mathcal C` are the clean and :math:`\mathcal H` the hard samples, w and s denote the weak and the strong
    view, :math:`\lambda_h` is `hard_weight`, GCE has the exponent `q`, and MixUp is the cross-entropy of the clean,
    hard and purified samples mixed in pairs with :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, at least 1/2.
    Before each epoch, with :math:`p_w` and :math:`p_s` the model's predictions for the two views in the last one:

    - clean: :math:`p_w[y] > t_w` and :math:`p_s[y] > t_s`; hard: exactly one of the two;
    - purified: neither, but :math:`\max_c \bar p_c > \min(\bar t + margin, .99)` with the means :math:`\bar p` and
      :math:`\bar t` over both views; its label is that class;
    - then :math:`t_w \leftarrow m t_w + (1 - m) \max_c p_w`, and so :math:`t_s`, m being `keep`. They start at 1 / N.

    `warmup_epochs` come first: CE on both views.

    The thresholds count epochs: by default m = .99^(200 / epochs), so that at any share of a run they are where the
    authors' are in their 200. The authors pass mixed rows through the model apart; here all rows of a step go through
    it together, and share BatchNorm's statistics. The .99 is that of their present code, whose first release had .9.
    Their strong view has two operations, each applied with probability 1/2 at a magnitude below 5 (CIFAR-10) or 10
    (CIFAR-100) of 10, and a gray square of 15 % of the side; ours ("auto") always applies two at magnitude 10 of 30 and
    cuts out a square of half the side. `view="auto:ncsam"` (CIFAR-10) and `"auto:ncsam_stronger"` are theirs. NCSAM
    flips labels of the selected samples, under the labels that they are mixed with, on the weak view.

    Args:
        warmup_epochs: Length of warm-up with cross-entropy on both views: whole epochs, or a share of the run.
        keep: m, the decay of thresholds, in [0, 1); None takes .99^(200 / epochs).
        margin: Added to the threshold of a correction.
        hard_weight: lambda_h.
        q: Exponent of generalized cross-entropy, in (0, 1].
        alpha: Parameter of Beta(alpha, alpha) in mixup.
        view: The strong view.

    References:
        Li et al., 2023, CVPR.
    """

    about = "thresholds for each sample select clean and hard labels and correct others, over two views"
    worse_with_sam = ("CIFAR-10",)
    cost = "up to four rows for each sample in a step, and a forward pass of two"
    mixes_inputs = True
    presets: ClassVar[Presets] = {
        "cifar": {"warmup_epochs": 20, "keep": 0.99},
        "cifar-asymmetric": {"warmup_epochs": 20, "keep": 0.95},
        "cifar-symmetric60": {"warmup_epochs": 20, "keep": 0.95, "hard_weight": 0.2},
        "cifar-symmetric80": {"warmup_epochs": 20, "keep": 0.95, "hard_weight": 0.2},
        "cifar-instance": {"warmup_epochs": 15, "keep": 0.99},
        "tiny-imagenet": {"warmup_epochs": 15, "keep": 0.99},
        "tiny-imagenet-asymmetric": {"warmup_epochs": 15, "keep": 0.95},
        "animal10n": {"warmup_epochs": 10, "keep": 0.99},
        "food101n": {"warmup_epochs": 10, "keep": 0.95},
        "clothing1m": {"warmup_epochs": 10, "keep": 0.95},
    }

    def __init__(
        self,
        warmup_epochs: Span = 0.1,
        keep: float | None = None,
        margin: float = 0.5,
        hard_weight: float = 1.0,
        q: float = 0.7,
        alpha: float = 5.0,
        view: str = "auto",
    ) -> None:
        check_spans(warmup_epochs=warmup_epochs)
        non_negative(margin=margin, hard_weight=hard_weight)
        if keep is not None and not 0 <= keep < 1:
            raise bad_value("keep", keep, "a number in [0, 1), or None")
        if not alpha > 0:
            raise bad_value("alpha", alpha, "a positive number")
        self.warmup_epochs = warmup_epochs
        self.keep = keep
        self.margin = margin
        self.hard_weight = hard_weight
        self.q = q
        self.alpha = alpha
        self.views = ("train", view)
        gce(torch.zeros(2, 2), torch.tensor([0, 1]), q=q)  # a wrong q is said now

    def on_train_start(self, state: State) -> None:
        """Create the columns of predictions, thresholds, sets and labels; thresholds start at 1 / N.

        Args:
            state: The state of training.
        """
        state.samples.column(_PROBABILITIES, (2, state.num_classes))
        state.samples.column(_THRESHOLDS, (2,), fill=1 / len(state.labels))
        state.samples.column(_SET, dtype=torch.int64, fill=NONE)
        state.samples.column(_LABEL, dtype=torch.int64)

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Divide the samples by the predictions of the last epoch, if there was one, then move the thresholds.

        Args:
            networks: Not used.
            state: The state of training.
        """
        if state.epoch == 1:
            return
        rows, samples = state.trained, state.samples
        p, t = samples[_PROBABILITIES][rows], samples[_THRESHOLDS][rows]
        kind, label = selected(p, state.labels[rows], t, self.margin)
        samples[_SET][rows], samples[_LABEL][rows] = kind, label
        keep = 0.99 ** (_AUTHORS_EPOCHS / state.epochs) if self.keep is None else self.keep
        samples[_THRESHOLDS][rows] = torch.lerp(p.amax(dim=2), t, keep)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Remember the predictions of both views, and plan the selected samples; all of them in warm-up.

        Args:
            batch: A weak and a strong view of each sample.
            networks: The model.
            state: The state of training.
        """
        both = join_rows(batch.views)
        answers = forward_frozen_stats(networks[0], both).float().softmax(dim=1)
        state.samples.write(_PROBABILITIES, batch.index, torch.stack(answers.chunk(2), dim=1))
        if state.epoch <= max(1, in_epochs(self.warmup_epochs, state.epochs)):
            return (Plan(both, batch.labels, batch.index),)
        kind, label = state.samples[_SET][batch.index], state.samples[_LABEL][batch.index]
        rows = (kind != NONE).nonzero().flatten()
        targets = F.one_hot(label[rows], state.num_classes).to(first_leaf(both).dtype)
        views = [
            mixed(take_rows(view, rows), targets, self.alpha, state, own_part_larger=True, stream=number)
            for number, view in enumerate(batch.views)
        ]
        inputs = join_rows((both, *(x for x, _ in views)))
        mixture = torch.cat([y for _, y in views])
        return (Selected(inputs, label, batch.index[rows], kind=kind, mixed_targets=mixture),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy of clean rows, generalized cross-entropy of hard ones, and mixup of all, on both views.

        Args:
            network: The model.
            plan: A `Selected`, or in warm-up a `Plan` of both views.
        """
        logits = network(plan.inputs)
        if not isinstance(plan, Selected):
            weak, strong = logits.chunk(2)
            value = F.cross_entropy(weak, plan.targets) + F.cross_entropy(strong, plan.targets)
            return LossOutput(value, weak, plan.targets)
        count = len(plan.kind)
        value = 0.0 * logits.sum()
        for view in (logits[:count], logits[count : 2 * count]):
            for kind, weight in ((CLEAN, 1.0), (HARD, self.hard_weight)):
                rows = plan.kind == kind
                if bool(rows.any()):
                    per_row = self._per_row(kind, view[rows], plan.targets[rows])
                    value = value + weight * per_row.sum() / count
        mixture = logits[2 * count :]
        if len(mixture):
            value = value + 2 * F.cross_entropy(mixture, plan.mixed_targets)  # the mean over one view, twice
        chosen = plan.kind != NONE
        return LossOutput(value, logits[:count][chosen], plan.targets[chosen])

    def _per_row(self, kind: int, logits: Tensor, targets: Tensor) -> Tensor:
        if kind == CLEAN:
            return F.cross_entropy(logits, targets, reduction="none")
        return gce(logits, targets, q=self.q, reduction="none")


def selected(p: Tensor, labels: Tensor, thresholds: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """The set of each sample and the label that it is trained under, from (samples, 2, classes) and (samples, 2).

    Args:
        p: (samples, 2, classes).
        labels: Class numbers (rows,).
        thresholds: (samples, 2).
        margin: Added to the threshold of a correction.
    """
    own = p.gather(2, labels.view(-1, 1, 1).expand(-1, 2, 1)).squeeze(2)
    votes = (own > thresholds).sum(dim=1)
    top, best = p.mean(dim=1).max(dim=1)
    purified = (votes == 0) & (top > (thresholds.mean(dim=1) + margin).clamp(max=_LARGEST))
    kind = torch.full_like(labels, NONE)
    kind[votes == 2], kind[votes == 1], kind[purified] = CLEAN, HARD, PURIFIED
    return kind, torch.where(purified, best, labels)
