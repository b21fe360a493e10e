"""NCT, noisy concurrent training (Sarfraz et al., 2021, arXiv 2009.08325)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import ratio
from ncsam._errors import bad_value
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.planning import forward_frozen_stats
from ncsam.methods.registry import register
from ncsam.methods.spans import Span, check_spans, in_epochs

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_STEADY = 3  # epochs before labels vary more


@dataclass(frozen=True, kw_only=True)
class Taught(Plan):
    """With what the other model answers, and how much of the loss that is.

    Attributes:
        inputs: As in `Plan`.
        targets: The model's own labels, some of them redrawn.
        index: As in `Plan`.
        teacher: Logits of the other model, (rows, classes).
        alpha: Weight of the other model's predictions in this epoch, in [0, 1].
    """

    teacher: Tensor
    alpha: float


@register
class NCT(Method):
    r"""Two models that teach each other, each on labels of its own of which some are redrawn at random. Neither sees
    one fixed set of labels that it could memorize.

    .. math::
        L_k = (1 - \alpha(e)) \left( -\log p^{(k)}_{y'_k} \right) + \alpha(e)\, T^2\, \mathrm{KL} \left(
        \mathrm{softmax}(z^{(l)} / T) \,\|\, \mathrm{softmax}(z^{(k)} / T) \right), \qquad
        \alpha(e) = \alpha\, e^{-5 (1 - e / R)^2}

    :math:`z^{(k)}` and :math:`p^{(k)}` are logits and prediction of model k, :math:`l` is the other model, :math:`y'_k`
    the labels of model k, :math:`T` the temperature, KL the Kullback-Leibler divergence, and :math:`\alpha(e)` the
    weight in epoch :math:`e`, which grows over the :math:`R` `ramp_epochs`; L is a mean over the batch. Of the labels a
    share v is redrawn, uniformly over all classes. v is `least` for three epochs and then least + (most - least) log(e
    - 3) / log(E - 3), `most` in the last of E epochs. Epochs e are counted from 1 here and from 0 by the authors. Both
    models predict together, as they report.

    Args:
        alpha: Final weight of the other model's predictions, in [0, 1].
        temperature: T of distillation.
        ramp_epochs: Length of the ramp: whole epochs, or a share of the run.
        least: Share of redrawn labels at first, in [0, 1].
        most: Share of redrawn labels in the end, in [0, 1].

    References:
        Sarfraz et al., 2021, arXiv 2009.08325.
    """

    about = "two models that teach each other, on labels that vary"
    needs_warmup = True
    cost = "two models, and an extra forward pass of each"
    networks = 2
    effect = "criterion"
    presets: ClassVar[Presets] = {
        "cifar10-symmetric": {"least": 0.2, "most": 0.7},
        "cifar100-symmetric": {"least": 0.2, "most": 0.7},
        "tiny-imagenet": {"least": 0.2, "most": 0.7},
    }

    def __init__(
        self,
        alpha: float = 0.9,
        temperature: float = 4.0,
        ramp_epochs: Span = 0.1,
        least: float = 0.2,
        most: float = 0.7,
    ) -> None:
        self.alpha, self.least, self.most = ratio("alpha", alpha), ratio("least", least), ratio("most", most)
        if not (math.isfinite(temperature) and temperature > 0):
            raise bad_value("temperature", temperature, "a positive number")
        check_spans(ramp_epochs=ramp_epochs)
        self.temperature = temperature
        self.ramp_epochs = ramp_epochs

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Redraw labels for each model by itself, and give it the other's logits.

        Args:
            batch: One view of each sample.
            networks: Both models.
            state: The state of training, and the source of randomness.
        """
        answers = [forward_frozen_stats(network, batch.views[0]) for network in networks]
        length = in_epochs(self.ramp_epochs, state.epochs)
        alpha = self.alpha * (math.exp(-5.0 * max(0.0, 1 - state.epoch / length) ** 2) if length else 1.0)
        return tuple(
            Taught(batch.views[0], self._varied(batch.labels, state, number), batch.index, teacher=other, alpha=alpha)
            for number, other in enumerate(reversed(answers))
        )

    def share(self, state: State) -> float:
        """v(e).

        Args:
            state: The state of training, of which the epoch counts.

        Returns:
            The share of labels to redraw, in [0, 1].
        """
        if state.epoch <= _STEADY:
            return self.least
        progress = math.log(state.epoch - _STEADY) / math.log(max(2, state.epochs - _STEADY))
        return self.least + (self.most - self.least) * min(1.0, progress)

    def _varied(self, labels: Tensor, state: State, number: int) -> Tensor:
        random = state.random(number)
        redrawn = torch.from_numpy(random.random(len(labels)) < self.share(state)).to(labels.device)
        drawn = torch.from_numpy(random.integers(state.num_classes, size=len(labels))).to(labels)
        return torch.where(redrawn, drawn, labels)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy and distillation, weighted 1 - alpha and alpha.

        Args:
            network: One of the two models.
            plan: A `Taught`.
        """
        assert isinstance(plan, Taught)
        logits = network(plan.inputs)
        taught = distillation(logits, plan.teacher, self.temperature)
        value = (1 - plan.alpha) * F.cross_entropy(logits, plan.targets) + plan.alpha * taught
        return LossOutput(value, logits, plan.targets)


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(logits / T)), the mean over rows.

    Args:
        logits: (rows, classes).
        teacher: Logits of the other model.
        temperature: T; smaller is sharper.
    """
    student = F.log_softmax(logits / temperature, dim=1)
    wanted = F.softmax(teacher.to(logits) / temperature, dim=1)
    return F.kl_div(student, wanted, reduction="batchmean") * temperature**2
