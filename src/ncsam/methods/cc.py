"""CC, centrality and consistency: two-stage clean sample identification (Zhao et al., 2022, arXiv 2207.14476)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Plan, Presets, State
from ncsam.methods.heads import WithHeads, check_backbone
from ncsam.methods.mixmatch import Dividing, MixMatch, apart_from_equal, mean_answer, mixmatch_loss
from ncsam.methods.mixtures import gaussian_posterior, scaled
from ncsam.methods.registry import register
from ncsam.methods.spans import Span
from ncsam.methods.steps import SideOptimizer, sgd

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_CENTRAL = "cc_central"
_LABELED = "cc_labeled"
WIDTH = 128


class Critics(nn.Module):
    """A reduction of the features and two classifiers on it: (reduced | first logits | second logits).

    Args:
        width: Number of features.
        num_classes: Number of classes.
    """

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.reduction = nn.Linear(width, WIDTH)
        self.first, self.second = (
            nn.Sequential(nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, num_classes)) for _ in range(2)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Reduced features and both critics' logits, side by side.

        Args:
            features: (rows, width).

        Returns:
            (rows, 128 + 2 classes).
        """
        reduced = self.reduction(features)
        return torch.cat((reduced, self.first(reduced), self.second(reduced)), dim=1)


@register
class CC(Dividing):
    r"""DivideMix whose labeled samples are central in their class and consistent between two critics. Centrality is
    measured by the angle between features and class centers, consistency by two classifiers that were trained to
    disagree.

    .. math::
        s_i = \langle r_i, m_{y_i} \rangle, \qquad
        D_i = \sum_c \left| p_c^{(1)}(x_i) - p_c^{(2)}(x_i) \right|, \qquad
        L = L_{\mathrm{MixMatch}} + \lambda_D\, \mathrm{mean}_i\, D_i

    :math:`r_i` are the normalized reduced features of sample i, :math:`m_k` is the center of class k, :math:`s_i` the
    centrality, :math:`p^{(1)}` and :math:`p^{(2)}` are the critics' predictions, :math:`D_i` is their discrepancy,
    :math:`\lambda_D` is `agree_weight`, and :math:`L_{\mathrm{MixMatch}}` the loss of `dividemix`.

    Each model has, on its features, a reduction to 128 numbers and two classifiers h1 and h2 on that, the critics.

    1. Centrality. With r_i the reduced features, normalized, and the center of class c the normalized mean of those
       that the critics together predict as c, the score of sample i is <r_i, center of y_i>, scaled to [0, 1]; w_i is
       the probability of the larger component of two Gaussians. i passes if w_i > `threshold`.
    2. Consistency. For `iterations` steps (or as many as an epoch has, where it has fewer; the authors' has some 800)
       on samples that passed, h1 and h2 alone learn to *disagree*:
       D = sum_c |softmax h1 - softmax h2| rises, `apart_weight` times, weighted by the share of the observed class.
       Then, in each observed class, two Gaussians are fitted to D, and i is labeled if the probability of the smaller
       is at least `consistency`.
    3. MixMatch (see `dividemix`), each model on the other's division. The critics learn by the same loss, with half
       of its term for equal shares, from features that are constants for them. After each step the backbone takes one
       more, down `agree_weight` times mean D.

    The step of the backbone is SGD at the run's learning rate with a momentum of its own. In warm-up the critics learn
    by cross-entropy. The mixture of 1 is fitted for up to 100 steps with a tolerance of .1, as the authors' are. They
    measure D on augmented views; here it is measured on the un-augmented split. Their paper's aggregation for
    imbalanced classes is not in their code, nor here.

    Args:
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        penalty: Whether the entropy of predictions is rewarded in warm-up (for asymmetric noise).
        threshold: Probability in [0, 1] of being central, above which a sample passes.
        consistency: Least probability in [0, 1] of being consistent; 0 lets all pass.
        iterations: Steps in which the critics learn to disagree.
        apart_weight: Weight of the discrepancy in these steps.
        agree_weight: Weight of the discrepancy in the backbone's step.
        temperature: T of sharpening; smaller is sharper.
        alpha: Parameter of Beta(alpha, alpha) in mixing.
        unlabeled_weight: Final weight of the loss on unlabeled rows.
        ramp_epochs: Length of the ramp: whole epochs, or a share of the run.

    References:
        Zhao et al., 2022, arXiv 2207.14476.
    """

    about = "DivideMix that takes samples central in their class on which two critics do not differ"
    cost = "as dividemix, two more forward and backward passes in each step, and an inner loop before each epoch"
    views = ("train", "train")
    presets: ClassVar[Presets] = {
        "cifar10": {"warmup_epochs": 30, "threshold": 0.4, "consistency": 0.0},
        "cifar100-instance20": {"warmup_epochs": 30, "threshold": 0.4, "consistency": 0.0},
        "cifar100-instance40": {"warmup_epochs": 30, "threshold": 0.5, "consistency": 0.0},
        "cifar100-instance60": {"warmup_epochs": 30, "threshold": 0.3, "consistency": 0.3},
    }

    def __init__(
        self,
        warmup_epochs: Span = 0.1,
        penalty: bool = False,
        threshold: float = 0.4,
        consistency: float = 0.0,
        iterations: int = 100,
        apart_weight: float = 0.1,
        agree_weight: float = 0.1,
        temperature: float = 0.5,
        alpha: float = 4.0,
        unlabeled_weight: float = 25.0,
        ramp_epochs: Span = 16,
    ) -> None:
        super().__init__(warmup_epochs, penalty, temperature, alpha, unlabeled_weight, ramp_epochs)
        non_negative(apart_weight=apart_weight, agree_weight=agree_weight)
        for name, value in (("threshold", threshold), ("consistency", consistency)):
            if not 0 <= value <= 1:
                raise bad_value(name, value, "a probability in [0, 1]")
        if iterations < 0:
            raise bad_value("iterations", iterations, "a number of steps, 0 or larger")
        self.threshold = threshold
        self.consistency = consistency
        self.iterations = iterations
        self.apart_weight = apart_weight
        self.agree_weight = agree_weight
        self.sides: list[dict[str, SideOptimizer]] = []
        self.saved: list[dict[str, Any]] = []

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """Build two backbones, each with its critics as a head.

        Args:
            create: Builds a model of the run, which must be a `Backbone`.
        """
        backbones = [check_backbone(create()) for _ in range(self.networks)]
        return [WithHeads(b, {"critics": Critics(b.num_features, b.head.out_features)}) for b in backbones]

    def on_train_start(self, state: State) -> None:
        """Create the columns of centrality and of who is labeled, one value for each model.

        Args:
            state: The state of training.
        """
        state.samples.column(_CENTRAL, (2,))
        state.samples.column(_LABELED, (2,), torch.bool)

    # --- who is labeled

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """After warm-up, find central samples, drive the critics apart on them, and label the consistent ones.

        Args:
            networks: Both models; the critics of each are trained here.
            state: The state of training.
        """
        if not self.warm(state):
            return
        rows = state.trained
        for number, network in enumerate(networks):
            answer = state.predict([network], output="critics")[rows]
            w = centrality(answer, state.labels[rows], state.num_classes)
            passed = rows[w > self.threshold]
            state.samples[_CENTRAL][rows, number] = w
            self._drive_apart(networks, number, passed, state)
            kept = torch.zeros_like(state.labels, dtype=torch.bool)
            if len(passed):
                differ = discrepancy(state.predict([network], output="critics")[passed], state.num_classes)
                kept[passed] = consistent(differ, state.labels[passed], self.consistency)
            state.samples[_LABELED][:, number] = kept

    def _drive_apart(self, networks: Sequence[nn.Module], number: int, passed: Tensor, state: State) -> None:
        counts = torch.bincount(state.labels[passed], minlength=state.num_classes).float()
        side = self._sides(networks)[number]["critics"]
        for batch in self._inner(passed, number, state):
            weight = counts[batch.labels] / counts[batch.labels].sum()
            with torch.enable_grad():
                answer = networks[number](batch.views[0], "detached:critics")
                differ = discrepancy(answer["critics"], state.num_classes)
                value = -self.apart_weight * (weight.to(differ) * differ).mean()
                side.step(value + 0.0 * answer["logits"].sum(), state, lr=state.lr)

    def _inner(self, passed: Tensor, number: int, state: State) -> Iterator[Batch]:
        """As many batches as steps, in as many passes as it takes; none of one sample, for BatchNorm's sake."""
        done, wanted = 0, min(self.iterations, state.steps_per_epoch)
        for stream in range(wanted):
            before = done
            for batch in state.batches(passed, "train", stream=2 * stream + number):
                if done < wanted and len(batch) > 1:
                    done += 1
                    yield batch
            if done in (before, wanted):
                return

    # --- steps

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Cross-entropy on the first view in warm-up; then MixMatch, each model on the other's division.

        Args:
            batch: Two views of each sample.
            networks: Both models, which refine and guess labels.
            state: The state of training.
        """
        if not self.warm(state):
            plain = Plan(batch.views[0], batch.labels, batch.index)
            self.plans: tuple[Plan, ...] = (plain, plain)
            return self.plans
        own = [mean_answer(network, batch.views) for network in networks]
        steady = [mean_answer(network, batch.views, evaluating=True) for network in networks]
        w, labeled = state.samples[_CENTRAL][batch.index], state.samples[_LABELED][batch.index]
        self.plans = tuple(
            self.mixmatch(
                batch,
                batch.views,
                labeled[:, 1 - k],
                w[:, 1 - k],
                own[k],
                (own[k] + steady[1 - k]) / 2,
                state,
                stream=k,
            )
            for k in (0, 1)
        )
        return self.plans

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The loss of the model plus those of its critics, which see the features as constants.

        Args:
            network: A model with critics.
            plan: A `MixMatch`, or in warm-up a `Plan`.
        """
        answer = network(plan.inputs, "detached:critics")
        critics = critics_of(answer["critics"], answer["logits"].shape[1])
        if not isinstance(plan, MixMatch):
            outcome = self.warm_up_loss(answer["logits"], plan.targets)
            others = [F.cross_entropy(critic, plan.targets) for critic in critics]
            return outcome._replace(loss=outcome.loss + sum(others))
        outcome = mixmatch_loss(answer["logits"], plan)
        others = [mixmatch_loss(critic, plan).loss - apart_from_equal(critic.softmax(dim=1)) / 2 for critic in critics]
        return outcome._replace(loss=outcome.loss + sum(others))

    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        """Take the backbones' further step, down the discrepancy of the critics; none in warm-up.

        Args:
            networks: Both models.
            state: The state of training, whose `lr` the step has.
        """
        for network, plan, sides in zip(networks, self.plans, self._sides(networks), strict=True):
            if isinstance(plan, MixMatch) and self.agree_weight:
                answer = network(plan.inputs, "critics")
                value = self.agree_weight * discrepancy(answer["critics"], state.num_classes).mean()
                sides["backbone"].step(value + 0.0 * answer["logits"].sum(), state, lr=state.lr)

    def _sides(self, networks: Sequence[nn.Module]) -> list[dict[str, SideOptimizer]]:
        if not self.sides:
            for network in networks:
                whole = next(module for module in network.modules() if isinstance(module, WithHeads))
                critics = whole.heads["critics"]
                assert isinstance(critics, Critics)
                drivers = [*critics.first.parameters(), *critics.second.parameters()]
                backbone = list(whole.backbone.parameters())
                self.sides.append({"critics": sgd(drivers, lr=1.0), "backbone": sgd(backbone, lr=1.0)})
            for sides, saved in zip(self.sides, self.saved, strict=False):
                for name, side in sides.items():
                    side.load_state_dict(saved[name])
        return self.sides

    def state_dict(self) -> dict[str, Any]:
        return {"sides": [{name: side.state_dict() for name, side in sides.items()} for sides in self.sides]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the state of the side optimizers until they are built.

        Args:
            state: What `state_dict` returned.
        """
        self.saved = state["sides"]


def critics_of(answer: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The logits of h1 and of h2.

    Args:
        answer: Output of the critics: reduced features and both logits.
        num_classes: Number of classes.
    """
    return answer[:, -2 * num_classes : -num_classes], answer[:, -num_classes:]


def discrepancy(answer: Tensor, num_classes: int) -> Tensor:
    """D = sum_c |softmax h1 - softmax h2| of each row.

    Args:
        answer: Output of the critics: reduced features and both logits.
        num_classes: Number of classes.
    """
    first, second = critics_of(answer, num_classes)
    return (first.softmax(dim=1) - second.softmax(dim=1)).abs().sum(dim=1)


def centrality(answer: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """How probably each sample is central in its observed class.

    Args:
        answer: Output of the critics: reduced features and both logits.
        labels: Observed labels.
        num_classes: Number of classes.
    """
    first, second = critics_of(answer, num_classes)
    reduced = F.normalize(answer[:, : answer.shape[1] - 2 * num_classes], dim=1)
    predicted = F.one_hot((first + second).argmax(dim=1), num_classes).to(reduced)
    centers = F.normalize(predicted.T @ reduced, dim=1)  # of a sum as of a mean; a class never predicted has none
    score = scaled((reduced * centers[labels]).sum(dim=1))
    far = (1 - score).cpu().double().numpy()
    return torch.from_numpy(gaussian_posterior(far, steps=100, tol=1e-1)).to(answer)


def consistent(differ: Tensor, labels: Tensor, least: float) -> Tensor:
    """Whether each sample is of the smaller component of its class's discrepancies with probability `least`.

    Args:
        differ: D of each sample.
        labels: Observed labels.
        least: Least probability.
    """
    result = torch.ones_like(labels, dtype=torch.bool)
    if least == 0:
        return result
    for label in range(int(labels.max()) + 1):
        rows = labels == label
        if int(rows.sum()) > 1:
            values = scaled(differ[rows]).cpu().double().numpy()
            result[rows] = torch.from_numpy(gaussian_posterior(values)).to(differ) >= least
    return result
