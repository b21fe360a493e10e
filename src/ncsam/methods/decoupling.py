"""Decoupling, or update by disagreement (Malach and Shalev-Shwartz, 2017, arXiv 1706.02613)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ncsam._errors import bad_value
from ncsam.methods.base import Plan, State
from ncsam.methods.planning import SubsetMethod, forward_frozen_stats, train_on
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class Decoupling(SubsetMethod):
    r"""Two models, trained only on the samples of a batch whose predicted classes differ between them. Both stop
    learning from a label once they agree, right or wrong.

    .. math::
        L_k = \frac{1}{\max(\gamma |B|, |D|)} \sum_{i \in D} -\log p^{(k)}_{y_i}, \qquad
        D = \{ i \in B : \arg\max p^{(1)}_i \ne \arg\max p^{(2)}_i \}

    :math:`p^{(k)}` is the prediction of model k, :math:`L_k` its loss, :math:`D` the samples of disagreement and
    :math:`\gamma` is `least`: a small D makes a small step (.1 in the authors' code, 0 in the paper). `warmup_epochs`
    come first, on all samples.

    Args:
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        least: Share of the batch, in [0, 1], that the loss is divided by at least.

    References:
        Malach and Shalev-Shwartz, 2017, arXiv 1706.02613.
    """

    about = "two models, trained where they disagree"
    worse_with_sam = ("digits pair flip 40",)
    cost = "two models, and an extra forward pass of each"
    networks = 2

    def __init__(self, warmup_epochs: Span = 0.05, least: float = 0.1) -> None:
        check_spans(warmup_epochs=warmup_epochs)
        if not 0 <= least <= 1:
            raise bad_value("least", least, "a share of the batch in [0, 1]")
        self.warmup_epochs = warmup_epochs
        self.least = least

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the rows on which the models disagree, the same for both; all rows in warm-up.

        Args:
            batch: One view of each sample.
            networks: Both models.
            state: The state of training.
        """
        if state.epoch <= in_epochs(self.warmup_epochs, state.epochs):
            rows = torch.arange(len(batch), device=batch.labels.device)
        else:
            first, second = (forward_frozen_stats(network, batch.views[0]).argmax(dim=1) for network in networks)
            rows = (first != second).nonzero().flatten()
        total = max(self.least * len(batch), len(rows))
        return train_on(batch, rows, total=total), train_on(batch, rows, total=total)
