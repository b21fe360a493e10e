"""Truncated generalized cross-entropy (Zhang and Sabuncu, 2018, arXiv 1805.07836)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses import gce
from ncsam.methods.base import Plan, Presets, State
from ncsam.methods.planning import SubsetMethod, train_on
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_KEPT = "gce_truncated_kept"


@register
class GCETruncated(SubsetMethod):
    r"""Generalized cross-entropy that drops the samples whose label the model finds unlikely. The decision is revised
    every few epochs.

    .. math:: L = \frac1{|B|} \sum_{i \in B} v_i \frac{1 - p_{y_i}^q}{q}, \qquad v_i = 1[\hat p_{y_i} > k]

    :math:`v_i` says whether sample i is kept, :math:`\hat p` is the prediction at the last decision, :math:`k` the
    threshold and :math:`q` the exponent. That is alternating minimization of :math:`\sum_i v_i (L_q(p_i) - L_q(k))`
    over v and the weights. All v are 1 at first. From epoch `prune_after` on (40 of 120 in the authors' CIFAR-10
    recipe) they are set again every `refresh` epochs, from predictions on the un-augmented training split. The
    published code takes the best model so far for these predictions, and chooses it on the test split; here it is the
    present model. Where fewer than `least` of the samples trained on would be left, as many are kept, those of the
    largest p_y: a model that believes nothing yet would otherwise be left with nothing to learn from. The floor is
    ours; where more than half of the labels are wrong, name a lower one.

    Args:
        q: Exponent of generalized cross-entropy, in (0, 1].
        k: Probability in (0, 1) of the given label below which a sample is dropped.
        prune_after: When samples are dropped for the first time: whole epochs, or a share of the run.
        refresh: Epochs between two decisions.
        least: Share of the samples, in (0, 1], that is always kept.

    References:
        Zhang and Sabuncu, 2018, arXiv 1805.07836.
    """

    about = "`gce` that drops samples it does not believe"
    needs_warmup = True
    cost = "predicts the training split every ten epochs"
    name = "gce_truncated"
    presets: ClassVar[Presets] = {
        "cifar10": {"prune_after": 40, "least": 0.1},
        "cifar100": {"prune_after": 80, "least": 0.1},
    }

    def __init__(
        self, q: float = 0.7, k: float = 0.5, prune_after: Span = 1 / 3, refresh: int = 10, least: float = 0.5
    ) -> None:
        check_spans(prune_after=prune_after)
        if not 0 < k < 1:
            raise bad_value("k", k, "a probability in (0, 1)")
        if not 0 < least <= 1:
            raise bad_value("least", least, "a share of the samples in (0, 1]")
        if refresh < 1:
            raise bad_value("refresh", refresh, "a number of epochs, 1 or larger")
        self.q = q
        self.k = k
        self.prune_after = prune_after
        self.refresh = refresh
        self.least = least
        self.criterion(torch.zeros(2, 2), torch.tensor([0, 1]))  # a wrong q is said now

    def on_train_start(self, state: State) -> None:
        """Create the column of kept samples, all of them at first.

        Args:
            state: The state of training.
        """
        state.samples.column(_KEPT, dtype=torch.bool, fill=1)

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Decide again which samples are kept, every `refresh` epochs from `prune_after` on.

        Args:
            networks: The model, which predicts the training split.
            state: The state of training.
        """
        since = state.epoch - max(2, in_epochs(self.prune_after, state.epochs))
        if since >= 0 and since % self.refresh == 0:
            own = state.predict(networks).gather(1, state.labels.unsqueeze(1)).squeeze(1)[state.trained]
            count = math.ceil(self.least * len(own))
            kept = own > self.k
            kept[own.topk(count).indices] = True
            state.samples[_KEPT][state.trained] = kept

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the kept rows; the sum of their losses is divided by the size of the batch.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: The state of training, which says who is kept.
        """
        kept = state.samples[_KEPT][batch.index].nonzero().flatten()
        return (train_on(batch, kept, total=len(batch)),)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean generalized cross-entropy, without truncation.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,), or probabilities (rows, classes).
        """
        return gce(logits, targets, q=self.q)
