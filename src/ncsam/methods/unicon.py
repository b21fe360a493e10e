"""UNICON, uniform selection and contrastive learning (Karim et al., 2022, arXiv 2203.14542)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Plan, Presets, State
from ncsam.methods.contrastive import nt_xent
from ncsam.methods.heads import WithHeads, check_backbone
from ncsam.methods.mixmatch import Dividing, MixMatch, mean_answer, mixmatch_loss
from ncsam.methods.registry import register
from ncsam.methods.spans import Span

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_DIVERGENCE = "unicon_divergence"
_LABELED = "unicon_labeled"


@dataclass(frozen=True, kw_only=True)
class Contrasted(MixMatch):
    """MixMatch's rows, followed by two strong views of each unlabeled sample: `contrasted` rows in all.

    Attributes:
        inputs: Mixed rows, then two strong views of each unlabeled sample.
        targets: Mixed probabilities of the mixed rows, (rows, classes).
        index: None, because rows are mixtures.
        labeled: Number of labeled rows, which come first.
        unlabeled_weight: Weight of the loss on the other mixed rows in this step.
        contrasted: Number of rows at the end that are contrasted, both views together.
    """

    contrasted: int


@register
class UNICON(Dividing):
    r"""DivideMix that selects as many labeled samples of each class, trains on strong views, and adds contrastive
    learning. Equal shares of the classes keep easy ones from taking over.

    .. math::
        d_i = \mathrm{JSD}(p_i, e_{y_i}), \qquad L = L_{\mathrm{MixMatch}} + \lambda_c L_{\mathrm{NT\text{-}Xent}}

    :math:`d_i` is the Jensen-Shannon divergence between label and prediction by which samples are selected,
    :math:`L_{\mathrm{MixMatch}}` the loss of `dividemix`, :math:`L_{\mathrm{NT\text{-}Xent}}` the contrastive loss of
    the unlabeled samples, and :math:`\lambda_c` is `contrast_weight`.

    1. Warm-up: cross-entropy, minus the entropy of the predictions with `penalty` (for asymmetric noise). 2. Before
    each epoch d_i = JSD(p_i, y_i) in bits, p_i the mean of both models' predictions. The cut-off is the mean of d, or,
    where that exceeds `adjust_above`, mean - (mean - min) / `adjustment`. With R the share of d below it, the R N / C
    samples of smallest d of each observed class are labeled. 3. Targets come from two weak views: sharpened w y + (1 -
    w) p for the labeled, p the model's own mean and w = 1 where d is below .5 nats, else 1 - d in nats, as in the
    authors' code; the sharpened mean of both models for the others. 4. MixMatch on two strong views (see
    `ncsam.methods.mixmatch`), and `contrast_weight` times NT-Xent between the projections of the unlabeled samples'
    strong views: one linear layer to 128 numbers, and BatchNorm.

    The authors' code differs in this: it takes d for the cut-off in nats, too, where d ends at .69 and its mean never
    exceeds .7; it divides again for the second model, after the epoch of the first, where here both share a division;
    it takes labeled and unlabeled samples from two loaders, where here they come as they fall in one batch; and it
    passes each view through the model separately, where here all rows of a step share BatchNorm's statistics. As there,
    the other model guesses in evaluation mode, and predictions are the mean of both. NCSAM flips labels of the labeled
    rows.

    Args:
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        penalty: Whether the entropy of predictions is rewarded in warm-up (for asymmetric noise).
        adjust_above: Mean divergence in bits above which the cut-off is lowered.
        adjustment: Divisor of that correction.
        temperature: T of sharpening; smaller is sharper.
        alpha: Parameter of Beta(alpha, alpha) in mixing.
        unlabeled_weight: Final weight of the loss on unlabeled rows.
        contrast_weight: Weight of NT-Xent.
        contrast_temperature: Temperature of NT-Xent.
        ramp_epochs: Length of the ramp: whole epochs, or a share of the run.

    References:
        Karim et al., 2022, arXiv 2203.14542.
    """

    about = "DivideMix that selects uniformly over classes, trains on strong views, and contrasts the unlabeled"
    worse_with_sam = ("digits pair flip 40",)
    cost = "two models on twice the rows and more, eight more forward passes, two predictions of the split an epoch"
    images_only = True
    views = ("train", "train", "auto:autoaugment", "auto:autoaugment")
    presets: ClassVar[Presets] = {
        "cifar10": {"warmup_epochs": 10},
        "cifar10-asymmetric": {"warmup_epochs": 10, "penalty": True},
        "cifar100": {"warmup_epochs": 30},
        "tiny-imagenet": {"warmup_epochs": 15, "alpha": 0.5, "unlabeled_weight": 50.0},
    }

    def __init__(
        self,
        warmup_epochs: Span = 0.05,
        penalty: bool = False,
        adjust_above: float = 0.7,
        adjustment: float = 5.0,
        temperature: float = 0.5,
        alpha: float = 4.0,
        unlabeled_weight: float = 30.0,
        contrast_weight: float = 0.025,
        contrast_temperature: float = 0.05,
        ramp_epochs: Span = 16,
    ) -> None:
        super().__init__(warmup_epochs, penalty, temperature, alpha, unlabeled_weight, ramp_epochs)
        non_negative(contrast_weight=contrast_weight, adjust_above=adjust_above)
        for name, value in (("adjustment", adjustment), ("contrast_temperature", contrast_temperature)):
            if not value > 0:
                raise bad_value(name, value, "a positive number")
        self.adjust_above = adjust_above
        self.adjustment = adjustment
        self.contrast_weight = contrast_weight
        self.contrast_temperature = contrast_temperature

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """Build two backbones, each with a projector as its head.

        Args:
            create: Builds a model of the run, which must be a `Backbone`.
        """
        backbones = [check_backbone(create()) for _ in range(self.networks)]
        return [WithHeads(b, {"projector": projection(b.num_features)}) for b in backbones]

    def on_train_start(self, state: State) -> None:
        """Create the columns of divergences and of who is labeled.

        Args:
            state: The state of training.
        """
        state.samples.column(_DIVERGENCE)
        state.samples.column(_LABELED, dtype=torch.bool)

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """After warm-up, select as many labeled samples of each class by their divergence.

        Args:
            networks: Both models, which predict the training split.
            state: The state of training.
        """
        if not self.warm(state):
            return
        rows = state.trained
        p = torch.stack([state.predict([network])[rows] for network in networks]).mean(dim=0)
        divergence = jensen_shannon(p, state.labels[rows])
        cut = cut_off(divergence, self.adjust_above, self.adjustment)
        state.samples[_DIVERGENCE][rows] = divergence
        state.samples[_LABELED][rows] = uniform_selection(divergence, state.labels[rows], cut, state.num_classes)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Cross-entropy on the first weak view in warm-up; then MixMatch on the strong views, with the contrasted rows.

        Args:
            batch: Two weak and two strong views of each sample.
            networks: Both models, which refine and guess labels on the weak views.
            state: The state of training.
        """
        weak, strong = batch.views[:2], batch.views[2:]
        if not self.warm(state):
            plain = Plan(weak[0], batch.labels, batch.index)
            return plain, plain
        own = [mean_answer(network, weak) for network in networks]
        steady = [mean_answer(network, weak, evaluating=True) for network in networks]
        divergence, labeled = state.samples[_DIVERGENCE][batch.index], state.samples[_LABELED][batch.index]
        trust = refinement_weight(divergence)
        contrasted = torch.cat([view[~labeled] for view in strong])
        plans = []
        for k in (0, 1):
            both = (own[k] + steady[1 - k]) / 2
            plan = self.mixmatch(batch, strong, labeled, trust, own[k], both, state, stream=k)
            plans.append(
                Contrasted(
                    torch.cat((plan.inputs, contrasted)),
                    plan.targets,
                    labeled=plan.labeled,
                    unlabeled_weight=plan.unlabeled_weight,
                    contrasted=len(contrasted),
                )
            )
        return tuple(plans)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The loss of MixMatch plus `contrast_weight` times NT-Xent, or that of warm-up.

        Args:
            network: One of the two models, with its projector.
            plan: A `Contrasted`, or in warm-up a `Plan`.
        """
        if not isinstance(plan, Contrasted):
            return self.warm_up_loss(network(plan.inputs), plan.targets)
        answer = network(plan.inputs, "projector")
        count = len(plan.targets)
        outcome = mixmatch_loss(answer["logits"][:count], plan)
        apart = 0.0 * answer["projector"].sum()
        if plan.contrasted:
            first, second = answer["projector"][count:].chunk(2)
            apart = apart + nt_xent(first, second, self.contrast_temperature)
        return outcome._replace(loss=outcome.loss + self.contrast_weight * apart)


def projection(width: int) -> nn.Sequential:
    """Where the contrast is taken.

    Args:
        width: Number of features.
    """
    return nn.Sequential(nn.Linear(width, 128), nn.BatchNorm1d(128))


def jensen_shannon(p: Tensor, labels: Tensor) -> Tensor:
    """JSD(p, e_y) in bits, in [0, 1]: half of KL(p | m) + KL(e_y | m), m = (p + e_y) / 2.

    Args:
        p: Probabilities (rows, classes).
        labels: Class numbers (rows,).
    """
    own = p.gather(1, labels.unsqueeze(1)).squeeze(1)
    # off the label m = p / 2, so that KL(p | m) takes 1 bit of each such share
    middle = (1 + own) / 2
    of_p = (1 - own) + torch.special.xlogy(own, own / middle) / math.log(2)
    divergence: Tensor = (of_p - middle.log2()) / 2
    return divergence


def refinement_weight(divergence: Tensor) -> Tensor:
    """The weight of the given label: 1 where the divergence is below .5 nats, else 1 minus it; bits are given.

    Args:
        divergence: In bits, one per sample.
    """
    nats = divergence * math.log(2)
    return torch.where(nats < 0.5, 1.0, 1 - nats)


def cut_off(divergence: Tensor, adjust_above: float, adjustment: float) -> float:
    """The mean, or less where it is large.

    Args:
        divergence: In bits, one per sample.
        adjust_above: Mean above which it is lowered.
        adjustment: Divisor of the correction.
    """
    mean = float(divergence.mean())
    return mean - (mean - float(divergence.min())) / adjustment if mean > adjust_above else mean


def uniform_selection(divergence: Tensor, labels: Tensor, cut: float, num_classes: int) -> Tensor:
    """True for the R N / C samples of smallest divergence of each observed class, R the share below the cut-off.

    Args:
        divergence: In bits, one per sample.
        labels: Class numbers (rows,).
        cut: The cut-off.
        num_classes: Number of classes.
    """
    each = int(float((divergence < cut).sum()) / num_classes)
    chosen = torch.zeros_like(labels, dtype=torch.bool)
    for label in range(num_classes):
        rows = (labels == label).nonzero().flatten()
        chosen[rows[divergence[rows].argsort(stable=True)[:each]]] = True
    return chosen
