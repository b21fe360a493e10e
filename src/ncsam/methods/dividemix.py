"""DivideMix (Li et al., 2020, arXiv 2002.07394)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import Method, Outcome, Plan, Presets, State
from ncsam.methods.mixtures import gaussian_posterior, losses_under, scaled
from ncsam.methods.mixup import mixed
from ncsam.methods.planning import look
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs, ramp

if TYPE_CHECKING:
    from ncsam.data.loader import Batch

_CLEAN = "dividemix_clean"
_LOSSES = "dividemix_losses"


@dataclass(frozen=True, kw_only=True)
class MixMatch(Plan):
    """Mixed rows: the first `labelled` of them under refined labels, the others under guessed ones."""

    labelled: int
    unlabelled_weight: float


@register
class DivideMix(Method):
    r"""Two networks; each treats what the *other* thinks mislabelled as unlabelled, and both train by MixMatch.

    1. Warm-up: cross-entropy, minus the entropy of the predictions with `penalty` (the authors' for asymmetric noise
       only, and off by default).
    2. Co-divide. Before each epoch, the losses of each network on the un-augmented training split (the mean over the
       last `average` epochs; 5 at 90 % noise) are scaled to [0, 1] and fitted by two Gaussians; w_i is the probability
       of the one with the smaller mean. Sample i is labelled for a network if the other's w_i > `threshold`.
    3. Co-refine and co-guess. With two views of each sample: a labelled one has the target w y + (1 - w) p, p the
       network's own mean over the views; an unlabelled one the mean over both networks and views. Both are sharpened,
       p_c^(1/T) normalised. The network itself answers as it trains, the other one in evaluation mode.
    4. MixMatch. All rows are mixed with rows drawn from them all, lambda ~ Beta(alpha, alpha) but at least 1/2, drawn
    for
       each network by itself;
       L = CE on the labelled rows + weight(t) mean (p - target)^2 on the others + sum_c (1/C) log((1/C) / mean p_c).
       The weight rises linearly to `unlabelled_weight` over `ramp_epochs` after warm-up.

    Predictions are by the mean of both networks. The authors draw labelled and unlabelled batches apart; here both come
    as they fall in one batch, and the networks step in turn within it instead of epoch by epoch. NCSAM flips labels of
    the labelled rows.
    """

    about = "two networks divide the samples for each other and train by MixMatch"
    cost = "two networks on twice the rows, eight more forward passes, two predictions of the training split an epoch"
    networks = 2
    views = ("train", "train")
    presets: ClassVar[Presets] = {
        "cifar10-symmetric20": {"plain_epochs": 10, "unlabelled_weight": 0.0},
        "cifar10-symmetric50": {"plain_epochs": 10, "unlabelled_weight": 25.0},
        "cifar10-symmetric80": {"plain_epochs": 10, "unlabelled_weight": 25.0},
        "cifar10-symmetric90": {
            "plain_epochs": 10,
            "unlabelled_weight": 50.0,
            "threshold": 0.6,
            "average": 5,
        },
        "cifar10-asymmetric40": {"plain_epochs": 10, "unlabelled_weight": 0.0, "penalty": True},
        "cifar100-symmetric20": {"plain_epochs": 30, "unlabelled_weight": 25.0},
        "cifar100-symmetric50": {"plain_epochs": 30, "unlabelled_weight": 150.0},
        "cifar100-symmetric80": {"plain_epochs": 30, "unlabelled_weight": 150.0},
    }

    def __init__(
        self,
        plain_epochs: Span = 0.1,
        penalty: bool = False,
        threshold: float = 0.5,
        average: int = 1,
        temperature: float = 0.5,
        alpha: float = 4.0,
        unlabelled_weight: float = 25.0,
        ramp_epochs: Span = 16,
    ) -> None:
        check_spans(plain_epochs=plain_epochs, ramp_epochs=ramp_epochs)
        non_negative(unlabelled_weight=unlabelled_weight)
        if not 0 <= threshold <= 1:
            raise bad_value("threshold", threshold, "a probability in [0, 1]")
        if average < 1:
            raise bad_value("average", average, "a number of epochs from 1")
        for name, value in (("temperature", temperature), ("alpha", alpha)):
            if not value > 0:
                raise bad_value(name, value, "a positive number")
        self.plain_epochs = plain_epochs
        self.penalty = penalty
        self.threshold = threshold
        self.average = average
        self.temperature = temperature
        self.alpha = alpha
        self.unlabelled_weight = unlabelled_weight
        self.ramp_epochs = ramp_epochs
        self.divisions = 0

    def start(self, state: State) -> None:
        state.samples.column(_CLEAN, (2,))
        state.samples.column(_LOSSES, (2, self.average))

    def begin_epoch(self, networks: Sequence[nn.Module], state: State) -> None:
        if state.epoch <= self._warm_up(state):
            return
        trained = slice(None) if state.held_out is None else ~state.held_out
        kept = state.samples[_LOSSES]
        for number, network in enumerate(networks):
            losses = scaled(losses_under(state.predict([network]), state.labels)[trained])
            kept[trained, number, self.divisions % self.average] = losses
            mean = kept[trained, number].sum(dim=1) / min(self.divisions + 1, self.average)
            state.samples[_CLEAN][trained, number] = probably_clean(mean)
        self.divisions += 1

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        if state.epoch <= self._warm_up(state):
            plain = Plan(batch.views[0], batch.labels, batch.index)
            return plain, plain
        own = [mean_answer(network, batch.views) for network in networks]
        steady = [mean_answer(network, batch.views, evaluating=True) for network in networks]
        clean = state.samples[_CLEAN][batch.index].to(own[0].dtype)
        return tuple(
            self._mixmatch(batch, clean[:, 1 - k], own[k], (own[k] + steady[1 - k]) / 2, state, stream=k)
            for k in (0, 1)
        )

    def _mixmatch(self, batch: Batch, clean: Tensor, own: Tensor, both: Tensor, state: State, stream: int) -> MixMatch:
        guess = sharpened(both, self.temperature)
        onehot = F.one_hot(batch.labels, state.num_classes).to(own.dtype)
        refined = sharpened(torch.lerp(own, onehot, clean.unsqueeze(1)), self.temperature)
        labelled = clean > self.threshold
        targets = torch.where(labelled.unsqueeze(1), refined, guess).to(batch.views[0].dtype)
        order = torch.cat((labelled.nonzero().flatten(), (~labelled).nonzero().flatten()))
        count = int(labelled.sum())
        parts = [view[rows] for rows in (order[:count], order[count:]) for view in batch.views]
        labels = torch.cat([targets[rows] for rows in (order[:count], order[count:]) for _ in batch.views])
        epoch = state.epoch - 1 + state.batch / max(1, state.steps_per_epoch)
        risen = ramp(epoch, self._warm_up(state), in_epochs(self.ramp_epochs, state.epochs))
        inputs, mixed_targets = mixed(torch.cat(parts), labels, self.alpha, state, own_part_larger=True, stream=stream)
        weight = risen * self.unlabelled_weight
        return MixMatch(inputs, mixed_targets, labelled=count * len(batch.views), unlabelled_weight=weight)

    def loss(self, network: nn.Module, plan: Plan) -> Outcome:
        logits = network(plan.inputs)
        if not isinstance(plan, MixMatch):
            value = self.criterion(logits, plan.targets)
            if self.penalty:
                log_p = F.log_softmax(logits, dim=1)
                value = value + (log_p.exp() * log_p).sum(dim=1).mean()
            return Outcome(value, logits, plan.targets)
        count, p = plan.labelled, logits.softmax(dim=1)
        mean = p.mean(dim=0)
        value = -(mean * len(mean)).clamp(min=1e-12).log().mean()
        if count:
            value = value + F.cross_entropy(logits[:count], plan.targets[:count])
        if count < len(p):
            value = value + plan.unlabelled_weight * (p[count:] - plan.targets[count:]).square().mean()
        rows = slice(count) if count else slice(None)
        return Outcome(value, logits[rows], plan.targets[rows])

    def _warm_up(self, state: State) -> int:
        return max(1, in_epochs(self.plain_epochs, state.epochs))

    def state_dict(self) -> dict[str, Any]:
        return {"divisions": self.divisions}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.divisions = state["divisions"]


def probably_clean(losses: Tensor) -> Tensor:
    """The posterior of the Gaussian with the smaller mean."""
    return torch.from_numpy(gaussian_posterior(losses.cpu().double().numpy())).to(losses)


def mean_answer(network: nn.Module, views: Sequence[Tensor], *, evaluating: bool = False) -> Tensor:
    """Probabilities by one network, the mean over views."""
    return torch.stack([look(network, view, evaluating=evaluating).softmax(dim=1) for view in views]).mean(dim=0)


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised."""
    powered = probabilities ** (1 / temperature)
    return powered / powered.sum(dim=1, keepdim=True)
