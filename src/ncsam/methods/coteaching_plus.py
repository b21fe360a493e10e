"""Co-teaching+ (Yu et al., 2019, arXiv 1901.04215)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from ncsam.methods.base import Plan, Presets, State
from ncsam.methods.planning import forward_frozen_stats, losses_of, train_on
from ncsam.methods.registry import register
from ncsam.methods.small_loss import TwoNetworks, smallest
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class CoteachingPlus(TwoNetworks):
    r"""Co-teaching among the samples on which the two models disagree. Disagreement keeps the models from becoming one.

    .. math::
        L_1 = \frac1{|S_2|} \sum_{i \in S_2} -\log p^{(1)}_{y_i}, \qquad
        S_k = \arg\min_{S \subset D,\ |S| = R(e) |D|} \sum_{i \in S} -\log p^{(k)}_{y_i}, \qquad
        D = \{ i \in B : \arg\max p^{(1)}_i \ne \arg\max p^{(2)}_i \}

    :math:`L_1` is the loss of model 1 (:math:`L_2` likewise with :math:`S_1`), :math:`p^{(k)}` the prediction of model
    k, :math:`D` the samples of disagreement, :math:`S_k` the selection of model k, and :math:`R(e)` the share kept in
    epoch :math:`e`, as in `coteaching`. Predictions are those of both models together: see `TwoNetworks`.

    For `warmup_epochs` (20 of 200 on CIFAR-10) it is Co-teaching. Then, in each batch, D holds the samples whose two
    predicted classes differ, and each model trains on the R(e) share of D whose losses the other finds smallest. Where
    D is empty the step carries no loss, or with `skip_empty=False` the whole batch is used instead for it, as in the
    authors' code. That code's slips (softmax twice, a loss divided twice, the first sample of D lost) are not kept.

    Args:
        forget_rate: tau, the share of samples to drop in the end; None takes the noise rate of the run, or an estimate.
        ramp_epochs: E, after which the full rate is dropped: whole epochs, or a share of the run.
        exponent: c, the power of the epoch in the ramp.
        warmup_epochs: Length of plain Co-teaching: whole epochs, or a share of the run.
        skip_empty: Whether a batch without disagreement carries no loss; False trains on all of it.
        ensemble: Whether both models predict together; False predicts with the first alone.

    References:
        Yu et al., 2019, arXiv 1901.04215.
    """

    about = "small losses only, chosen by the other of two models where they disagree"
    cost = "two models, and an extra forward pass of each"
    name = "coteaching_plus"
    networks = 2
    presets: ClassVar[Presets] = {
        "cifar10": {"warmup_epochs": 20},
        "cifar100": {"warmup_epochs": 5},
        "tiny-imagenet": {"warmup_epochs": 100},
    }

    def __init__(
        self,
        forget_rate: float | None = None,
        ramp_epochs: Span = 10,
        exponent: float = 1.0,
        warmup_epochs: Span = 0.1,
        skip_empty: bool = True,
        ensemble: bool = True,
    ) -> None:
        super().__init__(forget_rate, ramp_epochs, exponent, ensemble)
        check_spans(warmup_epochs=warmup_epochs)
        self.warmup_epochs = warmup_epochs
        self.skip_empty = skip_empty

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Give each model the rows that the other finds easiest among those on which the two disagree.

        Args:
            batch: One view of each sample.
            networks: Both models, which choose before either trains.
            state: The state of training, which decides the share that is kept.
        """
        answers = [forward_frozen_stats(network, batch.views[0]) for network in networks]
        differ = answers[0].argmax(dim=1) != answers[1].argmax(dim=1)
        if state.epoch <= in_epochs(self.warmup_epochs, state.epochs) or not (self.skip_empty or bool(differ.any())):
            differ.fill_(True)
        rows = differ.nonzero().flatten()
        share = self.remember_rate(state)
        first, second = (rows[smallest(losses_of(z[rows], batch.labels[rows]), share)] for z in answers)
        return train_on(batch, second), train_on(batch, first)
