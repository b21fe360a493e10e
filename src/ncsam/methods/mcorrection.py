"""M-Correction, bootstrapping by a beta mixture (Arazo et al., 2019, arXiv 1904.11238)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import first_leaf
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, State
from ncsam.methods.mixtures import beta_posterior, losses_under
from ncsam.methods.mixup import mixed
from ncsam.methods.planning import forward_frozen_stats
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_NOISY = "mcorrection_noisy"


@dataclass(frozen=True)
class Corrected(Plan):
    """Mixed rows under corrected labels; others are for plain mixup."""


@register
class MCorrection(Method):
    r"""Mixup whose labels give way to predictions as far as a sample looks mislabeled. How far is read from a mixture
    of two Beta distributions that is fitted to the losses (M-DYR-H; soft: M-DYR-S).

    .. math::
        L = -\sum_c \tilde t_c \log p_c + \eta \sum_c \frac1C \log \frac{1/C}{\bar p_c}, \qquad
        t_i = (1 - w_i)\, e_{y_i} + w_i \hat z_i, \qquad \tilde t = \lambda t_i + (1 - \lambda) t_j

    :math:`w_i` is the probability that the loss of sample i comes from the component of large losses, :math:`\hat z_i`
    its predicted class before mixing (`soft=True`: its probabilities), :math:`t_i` its target, :math:`\tilde t` the
    target of a mixed pair i, j with :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`, :math:`\bar p` the mean
    prediction and :math:`\eta` is `balance`.

    `warmup_epochs` (105 of 300) are plain mixup. Before each later epoch the two Betas are fitted to those training
    losses that lie between their 5th and 95th percentiles, these being scaled to 0 and 1. The authors' MD-DYR-SH, which
    also mixes by w, is not here.

    Args:
        alpha: Parameter of Beta(alpha, alpha) in mixup.
        warmup_epochs: Length of plain mixup: whole epochs, or a share of the run.
        balance: Weight of the term for equal class shares.
        soft: Whether predicted probabilities replace the predicted class.

    References:
        Arazo et al., 2019, arXiv 1904.11238.
    """

    about = "mixup with labels corrected by a beta mixture of losses"
    cost = "after warm-up an extra forward pass, and a prediction of the training split before each epoch"
    mixes_inputs = True

    def __init__(
        self, alpha: float = 32.0, warmup_epochs: Span = 0.35, balance: float = 1.0, soft: bool = False
    ) -> None:
        check_spans(warmup_epochs=warmup_epochs)
        non_negative(balance=balance)
        if not alpha > 0:
            raise bad_value("alpha", alpha, "a positive number")
        self.alpha = alpha
        self.warmup_epochs = warmup_epochs
        self.balance = balance
        self.soft = soft

    def on_train_start(self, state: State) -> None:
        """Create the column of the probability of being mislabeled, 0 at first.

        Args:
            state: The state of training.
        """
        state.samples.column(_NOISY)

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """After warm-up, fit two Betas to the losses and write the probability of being mislabeled.

        Args:
            networks: The model, which predicts the training split.
            state: The state of training.
        """
        if self._corrects(state):
            losses = losses_under(state.predict(networks), state.labels)
            trained = slice(None) if state.held_out is None else ~state.held_out
            w = probably_noisy(losses[trained])
            state.samples[_NOISY][trained] = w

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Mix the batch, after warm-up under corrected labels.

        Args:
            batch: One view of each sample.
            networks: The model, whose predictions correct labels.
            state: The state of training, and the source of randomness.
        """
        inputs = batch.views[0]
        dtype = first_leaf(inputs).dtype
        targets = F.one_hot(batch.labels, state.num_classes).to(dtype)
        if self._corrects(state):
            w = state.samples[_NOISY][batch.index].to(dtype).unsqueeze(1)
            p = forward_frozen_stats(networks[0], inputs).softmax(dim=1).to(dtype)
            guess = p if self.soft else F.one_hot(p.argmax(dim=1), state.num_classes).to(dtype)
            targets = torch.lerp(targets, guess, w)
        kind = Corrected if self._corrects(state) else Plan
        return (kind(*mixed(inputs, targets, self.alpha, state)),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy, after warm-up with the term for equal class shares.

        Args:
            network: The model.
            plan: A `Corrected`, or in warm-up a `Plan`.
        """
        if not isinstance(plan, Corrected):
            return super().loss(network, plan)
        logits = network(plan.inputs)
        mean = logits.softmax(dim=1).mean(dim=0)
        apart = -(mean * len(mean)).clamp(min=1e-12).log().mean()
        return LossOutput(F.cross_entropy(logits, plan.targets) + self.balance * apart, logits, plan.targets)

    def _corrects(self, state: State) -> bool:
        return state.epoch > max(1, in_epochs(self.warmup_epochs, state.epochs))


def probably_noisy(losses: Tensor) -> Tensor:
    """The posterior of the component of large losses.

    Args:
        losses: One loss per row.
    """
    values = losses.cpu().double().numpy()
    low, high = np.percentile(values, (5, 95))
    scaled = (values - low) / max(high - low, 1e-12)
    fitted = scaled[(values >= low) & (values <= high)]
    return torch.from_numpy(beta_posterior(fitted, at=np.clip(scaled, 0, 1))).to(losses)
