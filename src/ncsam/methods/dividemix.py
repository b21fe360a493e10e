"""DivideMix (Li et al., 2020, arXiv 2002.07394)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import Plan, Presets, State
from ncsam.methods.mixmatch import Dividing, mean_answer
from ncsam.methods.mixtures import gaussian_posterior, losses_under, scaled
from ncsam.methods.registry import register
from ncsam.methods.spans import Span

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_CLEAN = "dividemix_clean"
_LOSSES = "dividemix_losses"


@register
class DivideMix(Dividing):
    r"""Two models; each treats what the *other* finds mislabeled as unlabeled. Both train by MixMatch, a
    semi-supervised method.

    .. math::
        L = \frac1{|X|} \sum_{i \in X} -\sum_c t_{ic} \log p_{ic} + \lambda_u(e)\, \mathrm{mean}_{i \in U, c} (p_{ic} -
        t_{ic})^2 + \sum_c \frac1C \log \frac{1/C}{\bar p_c}

    :math:`X` and :math:`U` are the mixed labeled and unlabeled rows, :math:`t_i` their targets, :math:`\lambda_u(e)` is
    the weight in epoch :math:`e`, which grows to `unlabeled_weight`, and :math:`\bar p` is the mean prediction. Steps 1
    to 4 make rows and targets:

    1. Warm-up: cross-entropy, minus the entropy of the predictions with `penalty` (the authors' for asymmetric noise
       only, and off by default).
    2. Co-divide. Before each epoch, the losses of each model on the un-augmented training split (the mean over the
       last `average` epochs; 5 at 90 % noise) are scaled to [0, 1] and fitted by two Gaussians; w_i is the probability
       of the one with the smaller mean. Sample i is labeled for a model if the other's w_i > `threshold`.
    3. Co-refine and co-guess. With two views of each sample: a labeled one has the target w y + (1 - w) p, p the
       model's own mean over the views; an unlabeled one the mean over both models and views. Both are sharpened,
       p_c^(1/T) normalized. The model itself answers as it trains, the other one in evaluation mode.
    4. MixMatch. All rows are mixed with rows drawn from them all, lambda ~ Beta(alpha, alpha) but at least 1/2, drawn
       for each model by itself;
       L = CE on the labeled rows + weight(t) mean (p - target)^2 on the others + sum_c (1/C) log((1/C) / mean p_c).
       The weight rises linearly to `unlabeled_weight` over `ramp_epochs` after warm-up.

    Predictions are by the mean of both models. The authors draw labeled and unlabeled batches apart; here both come
    as they fall in one batch, and the models step in turn within it instead of epoch by epoch. NCSAM flips labels of
    the labeled rows.

    Args:
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        penalty: Whether the entropy of predictions is rewarded in warm-up (for asymmetric noise).
        threshold: Probability in [0, 1] above which a sample is labeled.
        average: Number of epochs over which losses are averaged.
        temperature: T of sharpening; smaller is sharper.
        alpha: Parameter of Beta(alpha, alpha) in mixing.
        unlabeled_weight: Final weight of the loss on unlabeled rows.
        ramp_epochs: Length of the ramp: whole epochs, or a share of the run.

    References:
        Li et al., 2020, arXiv 2002.07394.
    """

    about = "two models divide the samples for each other and train by MixMatch"
    cost = "two models on twice the rows, eight more forward passes, two predictions of the training split an epoch"
    views = ("train", "train")
    presets: ClassVar[Presets] = {
        "cifar10-symmetric20": {"warmup_epochs": 10, "unlabeled_weight": 0.0},
        "cifar10-symmetric50": {"warmup_epochs": 10, "unlabeled_weight": 25.0},
        "cifar10-symmetric80": {"warmup_epochs": 10, "unlabeled_weight": 25.0},
        "cifar10-symmetric90": {
            "warmup_epochs": 10,
            "unlabeled_weight": 50.0,
            "threshold": 0.6,
            "average": 5,
        },
        "cifar10-asymmetric40": {"warmup_epochs": 10, "unlabeled_weight": 0.0, "penalty": True},
        "cifar100-symmetric20": {"warmup_epochs": 30, "unlabeled_weight": 25.0},
        "cifar100-symmetric50": {"warmup_epochs": 30, "unlabeled_weight": 150.0},
        "cifar100-symmetric80": {"warmup_epochs": 30, "unlabeled_weight": 150.0},
    }

    def __init__(
        self,
        warmup_epochs: Span = 0.1,
        penalty: bool = False,
        threshold: float = 0.5,
        average: int = 1,
        temperature: float = 0.5,
        alpha: float = 4.0,
        unlabeled_weight: float = 25.0,
        ramp_epochs: Span = 16,
    ) -> None:
        super().__init__(warmup_epochs, penalty, temperature, alpha, unlabeled_weight, ramp_epochs)
        if not 0 <= threshold <= 1:
            raise bad_value("threshold", threshold, "a probability in [0, 1]")
        if average < 1:
            raise bad_value("average", average, "a number of epochs, 1 or larger")
        self.threshold = threshold
        self.average = average
        self.divisions = 0

    def on_train_start(self, state: State) -> None:
        """Create the columns of the probability of being clean and of the last `average` losses, for each model.

        Args:
            state: The state of training.
        """
        state.samples.column(_CLEAN, (2,))
        state.samples.column(_LOSSES, (2, self.average))

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """After warm-up, fit two Gaussians to the losses of each model and write the probability of being clean.

        Args:
            networks: Both models, which predict the training split.
            state: The state of training.
        """
        if not self.warm(state):
            return
        trained = state.trained
        kept = state.samples[_LOSSES]
        for number, network in enumerate(networks):
            losses = scaled(losses_under(state.predict([network]), state.labels)[trained])
            kept[trained, number, self.divisions % self.average] = losses
            mean = kept[trained, number].sum(dim=1) / min(self.divisions + 1, self.average)
            state.samples[_CLEAN][trained, number] = probably_clean(mean)
        self.divisions += 1

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Cross-entropy on the first view in warm-up; then MixMatch, each model on the other's division.

        Args:
            batch: Two views of each sample.
            networks: Both models, which refine and guess labels.
            state: The state of training.
        """
        if not self.warm(state):
            plain = Plan(batch.views[0], batch.labels, batch.index)
            return plain, plain
        own = [mean_answer(network, batch.views) for network in networks]
        steady = [mean_answer(network, batch.views, evaluating=True) for network in networks]
        clean = state.samples[_CLEAN][batch.index]
        plans = []
        for k in (0, 1):
            w, both = clean[:, 1 - k], (own[k] + steady[1 - k]) / 2
            plans.append(self.mixmatch(batch, batch.views, w > self.threshold, w, own[k], both, state, stream=k))
        return tuple(plans)

    def state_dict(self) -> dict[str, Any]:
        return {"divisions": self.divisions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the number of divisions made so far, which says where the next losses are kept.

        Args:
            state: What `state_dict` returned.
        """
        self.divisions = state["divisions"]


def probably_clean(losses: Tensor) -> Tensor:
    """The posterior of the Gaussian with the smaller mean.

    Args:
        losses: One loss per row.
    """
    return torch.from_numpy(gaussian_posterior(losses.cpu().double().numpy())).to(losses)
