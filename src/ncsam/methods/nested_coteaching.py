"""Nested Co-teaching, compressed features and then co-teaching (Chen et al., 2021, arXiv 2104.13766)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import ratio
from ncsam._errors import bad_value
from ncsam.methods.base import LossOutput, Method, Plan, Presets, Stage, State
from ncsam.methods.heads import check_backbone
from ncsam.methods.planning import forward_frozen_stats, losses_of
from ncsam.methods.registry import register
from ncsam.methods.small_loss import smallest
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_SHORTER = 1e-5  # what a channel more costs, in accuracy, when the width is chosen


class Nested(nn.Module):
    """A backbone whose head, without bias, sees the first `width` features alone, or the first k when asked.

    Args:
        backbone: A `Backbone`, whose head loses its bias.
    """

    width: Tensor

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = check_backbone(backbone)
        self.backbone.head.register_parameter("bias", None)
        self.register_buffer("width", torch.tensor(self.backbone.num_features))

    def forward(self, inputs: Tensor, k: int | None = None) -> Tensor:
        """Logits from the first features alone.

        Args:
            inputs: A batch of inputs.
            k: Number of features to use, from 1; None takes the stored `width`.
        """
        features = self.backbone.features(inputs)
        kept = torch.arange(features.shape[1], device=features.device) < (self.width if k is None else k)
        logits: Tensor = self.backbone.head(features * kept)
        return logits


@dataclass(frozen=True, kw_only=True)
class NestedPlan(Plan):
    """The rows to train on, and how many features they pass through.

    Attributes:
        inputs: The whole batch.
        targets: Labels of the rows to train on.
        index: Which sample each of these rows is.
        rows: Their positions in the batch.
        k: Number of features, from 1.
    """

    rows: Tensor
    k: int


@register
class NestedCoteaching(Method):
    r"""Two models with nested dropout, then co-teaching of the two. Nested dropout orders the features of a model, and
    a few ordered features cannot memorize.

    .. math::
        L = -\frac1{|B|} \sum_{i \in B} \log \mathrm{softmax}(W_{:k} f_{:k}(x_i))_{y_i}, \qquad
        P(k) \propto e^{-(k / \sigma)^2}

    :math:`f` are the features, :math:`W` is the last layer, of which only the first :math:`k` features are used, k is
    drawn for each batch, and :math:`\sigma` is the width of its distribution. Then, for `tune_epochs`, with BatchNorm's
    statistics frozen and the learning rate times `tune_lr`, each model trains on the 1 - `forget_rate` of the batch
    whose losses the other finds smallest, again with nested dropout, now with one k for both.

    Each model answers, and chooses, with as many features as are best for it on held-out samples with their noisy
    labels, each feature costing 1e-5 of accuracy; with all of them if nothing is held out. The authors take one width
    for both, the best on the test set, which also tells them the epoch to tune from. They give each model half of the
    batch to choose from; here both see all of it. They freeze BatchNorm's weights, too, and take a best width of 1 for
    all features. Their second nested layer for VGG is left out. The first stage's learning rate follows the run's own
    schedule; theirs rises over 6,000 steps.

    Args:
        sigma: Width of the distribution of k.
        forget_rate: Share of the batch, in [0, 1], that is dropped while tuning.
        tune_epochs: Length of the second stage: whole epochs, or a share of the run.
        tune_lr: Its learning rate, as a factor of the run's.

    References:
        Chen et al., 2021, arXiv 2104.13766.
    """

    name = "nested_coteaching"
    about = "models of few ordered features, which then choose small losses for each other"
    worse_with_sam = ("digits symmetric 40", "digits pair flip 40", "all sets together")
    needs_warmup = True
    cost = "two models; while they tune, an extra forward pass of each"
    networks = 2
    presets: ClassVar[Presets] = {
        "cifar10": {"sigma": 10.0, "tune_lr": 0.01},
        "cifar100": {"sigma": 100.0, "tune_lr": 0.01},
        "animal10n": {"sigma": 100.0, "tune_lr": 0.04},
    }

    def __init__(
        self, sigma: float = 10.0, forget_rate: float = 0.2, tune_epochs: Span = 0.25, tune_lr: float = 0.01
    ) -> None:
        for name, value in (("sigma", sigma), ("tune_lr", tune_lr)):
            if not value > 0:
                raise bad_value(name, value, "a positive number")
        check_spans(tune_epochs=tune_epochs)
        self.sigma, self.tune_lr = sigma, tune_lr
        self.forget_rate = ratio("forget_rate", forget_rate)
        self.tune_epochs = tune_epochs

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        """Nested dropout, then tuning with a smaller learning rate and frozen BatchNorm statistics.

        Args:
            epochs: Length of the run; tuning takes at most all but one of them.
        """
        tuned = min(in_epochs(self.tune_epochs, epochs), epochs - 1)
        if tuned < 1:
            return (Stage(epochs),)
        return Stage(epochs - tuned), Stage(tuned, lr=self.tune_lr, frozen_norms=True)

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """Build two models whose heads see their first features alone.

        Args:
            create: Builds a model of the run, which must be a `Backbone`.
        """
        return [Nested(network) for network in super().build(create)]

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Choose each model's width by the noisy labels of the held-out samples; nothing if none are held out.

        Args:
            networks: Both models.
            state: The state of training.
        """
        if state.held_out is None:
            return
        labels = state.labels[state.held_out]
        for network in networks:
            nested = next(module for module in network.modules() if isinstance(module, Nested))
            nested.width.fill_(nested.backbone.num_features)
            features = state.predict([network], output="features")[state.held_out]
            nested.width.fill_(best_width(features, nested.backbone.head.weight.detach(), labels))

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Draw the number of features; while tuning, also give each model the rows that the other finds easiest.

        Args:
            batch: One view of each sample.
            networks: Both models.
            state: The state of training, whose `stage` decides, and the source of randomness.
        """
        nested = next(module for module in networks[0].modules() if isinstance(module, Nested))
        chances = widths(nested.backbone.num_features, self.sigma)
        kept = [1 + int(state.random(number).choice(len(chances), p=chances)) for number in range(len(networks))]
        rows = [torch.arange(len(batch), device=batch.labels.device)] * 2
        if state.stage > 0:
            share = 1 - self.forget_rate
            answers = [losses_of(forward_frozen_stats(network, batch.views[0]), batch.labels) for network in networks]
            rows = [smallest(losses, share).sort().values for losses in reversed(answers)]
            kept[1] = kept[0]
        pairs = zip(rows, kept, strict=True)
        return tuple(NestedPlan(batch.views[0], batch.labels[r], batch.index[r], rows=r, k=k) for r, k in pairs)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy of the chosen rows, through the first k features.

        Args:
            network: One of the two models.
            plan: A `NestedPlan`.
        """
        assert isinstance(plan, NestedPlan)
        logits = network(plan.inputs, plan.k)[plan.rows]
        return LossOutput(F.cross_entropy(logits, plan.targets), logits, plan.targets)


def widths(features: int, sigma: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """P(k) of k = 1 ... features, proportional to exp(-(k / sigma)^2).

    Args:
        features: Number of features.
        sigma: Width of the distribution.
    """
    weights = np.exp(-((np.arange(1, features + 1) / sigma) ** 2))
    chances: np.ndarray[tuple[int], np.dtype[np.float64]] = weights / weights.sum()
    return chances


def best_width(features: Tensor, weight: Tensor, labels: Tensor) -> int:
    """The k whose first k features are right most often, each costing 1e-5; all k from one running sum.

    Args:
        features: (samples, features).
        weight: Weights of the head, (classes, features).
        labels: Class numbers (rows,).
    """
    right = torch.zeros(features.shape[1], device=features.device)
    for rows, wanted in zip(torch.split(features, 64), torch.split(labels, 64), strict=True):
        logits = (rows.unsqueeze(2) * weight.T.to(rows)).cumsum(dim=1)  # (rows, k, classes)
        right += (logits.argmax(dim=2) == wanted.unsqueeze(1)).sum(dim=0)
    penalty = _SHORTER * torch.arange(len(right), device=right.device)
    return 1 + int((right / len(labels) - penalty).argmax())
