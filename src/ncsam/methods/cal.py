"""CAL, the second-order approach to instance-dependent noise (Zhu et al., 2021, arXiv 2012.11854)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.losses.peer import bounded_ce
from ncsam.losses.reduction import non_negative, of_target
from ncsam.methods.base import LossOutput, Method, Plan, Presets, Stage, State
from ncsam.methods.cores2 import label_shares
from ncsam.methods.planning import forward_frozen_stats
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs, ramp

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_BAYES = "cal_bayes"
_FLOOR, _OWN_FLOOR = 1e-5, 1e-8
_SURE = -8.0  # a label whose loss is this far below the mean over all labels is kept
_SAVED = ("prior", "bayes_shares", "transition", "means")  # what survives a restart


@dataclass(frozen=True, kw_only=True)
class Covaried(Plan):
    """With the strength of the regularizer, and in the second stage the Bayes labels of the rows.

    Attributes:
        inputs: As in `Plan`.
        targets: As in `Plan`.
        index: As in `Plan`.
        alpha: Weight of the regularizer in this epoch, 0 or larger.
        prior: P(c) in the regularizer, (classes,).
        bayes: Bayes labels (rows,); None in the first stage.
    """

    alpha: float
    prior: Tensor
    bayes: Tensor | None = None


@register
class CAL(Method):
    r"""First finds the labels that a Bayes classifier might give, then trains a fresh model whose loss is corrected by
    covariances under these labels. It is made for instance-dependent noise.

    .. math::
        L = \ell(y) - \alpha \sum_c P(c)\, l(c) - \mathrm{CAL}, \qquad
        \mathrm{CAL} = \sum_k P(k) \sum_j \mathrm{mean}_{i: b_i = k} \left( 1[y_i = j] - P(y = j \mid k) \right) \left(
        l_i(j) - \mu_{kj} \right)

    :math:`\ell(c) = -\log(p_c + 10^{-8})`, :math:`l(c) = -\log(p_c + 10^{-5})`, :math:`b_i` is the Bayes label of
    sample i, :math:`\mu_{kj}` the mean of :math:`l(j)` over all samples with Bayes label k, and :math:`P` the label
    shares. Stage 1 has no CAL, and P is the normalized square root of the label shares; in its last epoch each sample
    gets :math:`b_i`: its own label where :math:`\ell(y) - \mathrm{mean}_c\, \ell(c) < -8`, else the predicted one. The
    strength :math:`\alpha` grows to `alpha_first` in stage 1 and to `alpha_second` in stage 2.

    In each stage alpha is 0 for `warmup_epochs` and one epoch more, and grows over `ramp_epochs`; shares are of the
    second stage. Values and gradients are those of the authors' code, but the means are taken once before each epoch,
    from predictions without augmentation; they add them up along the epoch before, and begin with 0. Their stages are
    two runs of 100 epochs, of which the first is used up to its 66th epoch: `first_epochs`.

    Args:
        alpha_first: Final alpha of the first stage.
        alpha_second: Final alpha of the second stage.
        first_epochs: Length of the first stage: whole epochs, or a share of the run.
        warmup_epochs: Epochs with alpha = 0: whole epochs, or a share of the second stage.
        ramp_epochs: Length of the ramp of alpha: whole epochs, or a share of the second stage.
        sqrt_prior: Whether the first stage takes the square root of the label shares.

    References:
        Zhu et al., 2021, arXiv 2012.11854.
    """

    about = "labels of a Bayes classifier first, then a loss corrected by covariances"
    cost = "two runs in one; a prediction of the training split before each epoch of the second"
    effect = "criterion"
    presets: ClassVar[Presets] = {
        "cifar10-instance": {"alpha_first": 2.0, "alpha_second": 1.0},
        "cifar100-instance": {"alpha_first": 10.0, "alpha_second": 10.0},
    }

    def __init__(
        self,
        alpha_first: float = 2.0,
        alpha_second: float = 1.0,
        first_epochs: Span = 0.4,
        warmup_epochs: Span = 0.1,
        ramp_epochs: Span = 0.3,
        sqrt_prior: bool = True,
    ) -> None:
        non_negative(alpha_first=alpha_first, alpha_second=alpha_second)
        check_spans(first_epochs=first_epochs, warmup_epochs=warmup_epochs, ramp_epochs=ramp_epochs)
        self.alphas = (alpha_first, alpha_second)
        self.first_epochs, self.warmup_epochs, self.ramp_epochs = first_epochs, warmup_epochs, ramp_epochs
        self.sqrt_prior = sqrt_prior
        self.means: Tensor | None = None

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        """The stage that finds Bayes labels, then one with fresh models; a run of one epoch has the first alone.

        Args:
            epochs: Length of the run, to which the stages add up.
        """
        first = min(max(1, in_epochs(self.first_epochs, epochs)), epochs - 1)
        self.first = max(1, first)
        return (Stage(first), Stage(epochs - first, fresh=True)) if first >= 1 else (Stage(epochs),)

    def on_train_start(self, state: State) -> None:
        """Create the column of Bayes labels, -1 until they are found.

        Args:
            state: The state of training.
        """
        state.samples.column(_BAYES, dtype=torch.int64, fill=-1)

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Set the prior; in the second stage also the statistics under the Bayes labels.

        Args:
            networks: The model, which predicts the training split in the second stage.
            state: The state of training, whose `stage` decides.
        """
        trained = state.trained
        shares = label_shares(state.labels[trained], state.num_classes)
        if state.stage == 0:
            self.prior = F.normalize(shares.sqrt(), p=1, dim=0) if self.sqrt_prior else shares
            return
        self.prior = shares
        bayes = F.one_hot(state.samples[_BAYES][trained], state.num_classes).float()
        counts = bayes.sum(dim=0).clamp_min(1.0)
        self.bayes_shares = bayes.mean(dim=0)
        observed = F.one_hot(state.labels[trained], state.num_classes).float()
        self.transition = bayes.T @ observed / counts.unsqueeze(1)
        losses = -(state.predict(networks)[trained] + _FLOOR).log()
        self.means = bayes.T @ losses.to(bayes) / counts.unsqueeze(1)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the whole batch; the last epoch of the first stage also writes the Bayes labels.

        Args:
            batch: One view of each sample.
            networks: The model, whose predictions decide the Bayes labels.
            state: The state of training; the ramp of alpha counts `stage_epoch`.
        """
        second = state.epochs - self.first
        plain, growing = in_epochs(self.warmup_epochs, second), in_epochs(self.ramp_epochs, second)
        alpha = self.alphas[min(1, state.stage)] * ramp(state.stage_epoch - 1, plain, growing)
        bayes = None
        if state.stage > 0:
            bayes = state.samples[_BAYES][batch.index]
        elif state.stage_epoch == self.first:
            labels = bayes_labels(forward_frozen_stats(networks[0], batch.views[0]), batch.labels)
            state.samples.write(_BAYES, batch.index, labels)
        return (Covaried(batch.views[0], batch.labels, batch.index, alpha=alpha, prior=self.prior, bayes=bayes),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy less the regularizer, and in the second stage less the covariance term.

        Args:
            network: The model.
            plan: A `Covaried`.
        """
        assert isinstance(plan, Covaried)
        logits = network(plan.inputs)
        own = of_target(bounded_ce(logits, _OWN_FLOOR), plan.targets)
        value = (own - plan.alpha * (bounded_ce(logits, _FLOOR) @ plan.prior.to(own))).mean()
        if plan.bayes is not None:
            assert self.means is not None, "set before each epoch of the second stage"
            value = value - covariance(logits, plan.targets, plan.bayes, self.bayes_shares, self.transition, self.means)
        return LossOutput(value, logits, plan.targets)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name, None) for name in _SAVED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the prior and the statistics of the second stage, as far as they were there.

        Args:
            state: What `state_dict` returned.
        """
        for name in _SAVED:
            if state[name] is not None:
                setattr(self, name, state[name])


def bayes_labels(logits: Tensor, labels: Tensor) -> Tensor:
    """The observed label where the model is sure of it, else the predicted one.

    Args:
        logits: (rows, classes).
        labels: Class numbers (rows,).
    """
    losses = bounded_ce(logits.float(), _OWN_FLOOR)
    sure = of_target(losses, labels) - losses.mean(dim=1) < _SURE
    return torch.where(sure, labels, logits.argmax(dim=1))


def covariance(
    logits: Tensor, labels: Tensor, bayes: Tensor, shares: Tensor, transition: Tensor, means: Tensor
) -> Tensor:
    """sum_i P(i) sum_j mean over rows labeled i of (1[y = j] - P(y = j | i)) (l(j) - mean_ij).

    Args:
        logits: (rows, classes).
        labels: Class numbers (rows,).
        bayes: Bayes labels (rows,).
        shares: P(i), (classes,).
        transition: P(y = j | i), (classes, classes).
        means: mean_ij, (classes, classes).
    """
    losses = bounded_ce(logits, _FLOOR)
    centerd = F.one_hot(labels, logits.shape[1]).to(losses) - transition.to(losses)[bayes]
    rows = (centerd * (losses - means.to(losses)[bayes])).sum(dim=1)
    sums = losses.new_zeros(logits.shape[1]).index_add(0, bayes, rows)
    counts = torch.bincount(bayes, minlength=logits.shape[1]).clamp_min(1)
    return (shares.to(losses) * sums / counts).sum()
