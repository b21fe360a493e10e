"""SELFIE, refurbishing labels (Song et al., 2019, ICML)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import Plan, State
from ncsam.methods.known_rate import KnownRate
from ncsam.methods.planning import forward_frozen_stats, losses_of, train_on
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_HISTORY = "selfie_history"
_LABEL = "selfie_label"


@register
class SELFIE(KnownRate):
    r"""Trains on the samples of small loss, and on those whose label the model's own history corrects. A history of the
    same predicted class is taken for the true one.

    .. math::
        L = \frac1{|S \cup R|} \left( \sum_{i \in R} -\log p_{\hat y_i} + \sum_{i \in S \setminus R} -\log p_{y_i}
        \right), \qquad R = \left\{ i : -\frac{1}{\log C} \sum_c h_{ic} \log h_{ic} \le \epsilon \right\}

    :math:`h_i` are the frequencies of the last q predicted classes (`history`) of sample i, :math:`\hat y_i` is the
    most frequent one, :math:`\epsilon` the `threshold`, :math:`R` are the refurbished samples of a batch, and :math:`S`
    its :math:`\lceil (1 - n) |B| \rceil` samples of smallest loss, n, `noise_share`, being the noise rate (see
    `KnownRate`). A refurbished label is renewed whenever it is certain again. `warmup_epochs` train on everything.

    q is at most the number of warm-up epochs, so that histories are full when they count. The authors train three times
    in a row and carry refurbished labels over; that is three runs, and this is one of them.

    Args:
        noise_share: Share of samples to treat as noisy; None takes the noise rate of the run, or an estimate.
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        history: Number of past predictions that are kept.
        threshold: Largest uncertainty, in [0, 1], of a label to be replaced.

    References:
        Song et al., 2019, ICML.
    """

    about = "small losses, and labels refurbished by the model's history"
    cost = "an extra forward pass before each step"

    def __init__(
        self,
        noise_share: float | None = None,
        warmup_epochs: Span = 0.25,
        history: int = 15,
        threshold: float = 0.05,
    ) -> None:
        check_spans(warmup_epochs=warmup_epochs)
        super().__init__("noise_share", noise_share, warmup_epochs)
        if history < 1:
            raise bad_value("history", history, "a number of predictions, 1 or larger")
        if not 0 <= threshold <= 1:
            raise bad_value("threshold", threshold, "an uncertainty in [0, 1]")
        self.history = history
        self.threshold = threshold

    def on_train_start(self, state: State) -> None:
        """Create the columns of past predictions and of refurbished labels, -1 where there are none.

        Args:
            state: The state of training.
        """
        length = min(self.history, max(1, in_epochs(self.wait, state.epochs)))
        state.samples.column(_HISTORY, (length,), torch.int32, fill=-1)
        state.samples.column(_LABEL, dtype=torch.int64, fill=-1)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the rows of small loss and the refurbished ones, then add the present predictions to the history.

        Args:
            batch: One view of each sample.
            networks: The model, as a sequence of one.
            state: The state of training, which holds histories and labels.
        """
        answers = forward_frozen_stats(networks[0], batch.views[0])
        history = state.samples[_HISTORY][batch.index]
        decided = self._decide(batch, answers, history, state)
        history[:, (state.epoch - 1) % history.shape[1]] = answers.argmax(dim=1).to(history.dtype)
        state.samples.write(_HISTORY, batch.index, history)
        return (decided,)

    def _decide(self, batch: Batch, answers: Tensor, history: Tensor, state: State) -> Plan:
        """By the predictions of earlier epochs; that of this one enters the history afterwards."""
        if state.epoch <= in_epochs(self.wait, state.epochs):
            return train_on(batch, torch.arange(len(batch), device=batch.labels.device))
        certain, label = most_frequent(history, state.num_classes, self.threshold)
        refurbished = torch.where(certain, label, state.samples[_LABEL][batch.index])
        state.samples.write(_LABEL, batch.index, refurbished)
        count = math.ceil((1 - (self.rate(state) or 0.0)) * len(batch) - 1e-9)
        chosen = refurbished >= 0
        chosen[losses_of(answers, batch.labels).topk(count, largest=False).indices] = True
        labels = torch.where(refurbished >= 0, refurbished, batch.labels)
        return train_on(batch, chosen.nonzero().flatten(), labels)


def most_frequent(history: Tensor, num_classes: int, threshold: float) -> tuple[Tensor, Tensor]:
    """Whether each row of predictions is full and certain, and its most frequent class.

    Args:
        history: Predicted classes (rows, history); -1 where there is none yet.
        num_classes: Number of classes.
        threshold: Largest uncertainty.
    """
    full = (history >= 0).all(dim=1)
    counts = F.one_hot(history.clamp(min=0).long(), num_classes).sum(dim=1)
    share = counts / history.shape[1]
    uncertainty = -torch.special.xlogy(share, share).sum(dim=1) / math.log(num_classes)
    return full & (uncertainty <= threshold), counts.argmax(dim=1)
