"""JoCoR, joint training with co-regularization (Wei et al., 2020, arXiv 2003.02752)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import Tree
from ncsam.methods.base import LossOutput, Plan, State
from ncsam.methods.planning import SubsetPlan, forward_frozen_stats, train_on
from ncsam.methods.registry import register
from ncsam.methods.small_loss import TwoNetworks, smallest
from ncsam.methods.spans import Span

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


class Pair(nn.Module):
    """Two models as one: the logits of both.

    Args:
        first: The model that predicts alone with `ensemble=False`.
        second: The other model.
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, inputs: Tree) -> tuple[Tensor, Tensor]:
        """The logits of both models, each (rows, classes).

        Args:
            inputs: A batch of inputs.
        """
        return self.first(inputs), self.second(inputs)


@register
class JoCoR(TwoNetworks):
    r"""Two models under one loss and one optimizer, which asks them to agree. Each batch is trained on its samples of
    smallest joint loss.

    .. math::
        l_i = (1 - \lambda) \left( -\log p^{(1)}_{y_i} - \log p^{(2)}_{y_i} \right) + \lambda \left(
        \mathrm{KL}(p^{(1)}_i \| p^{(2)}_i) + \mathrm{KL}(p^{(2)}_i \| p^{(1)}_i) \right), \qquad
        L = \frac{1}{|S|} \sum_{i \in S} l_i

    :math:`p^{(k)}` is the prediction of model k, :math:`l_i` the joint loss of sample i, :math:`\lambda` is
    `agreement`, and :math:`S` is the R(e) share of the batch with the smallest :math:`l_i` (see `SmallLoss`; for
    asymmetric noise the authors forget half of the noise rate). KL is the Kullback-Leibler divergence. `agreement` is
    .1 in their code; their paper tunes it by setting. NCSAM flips labels of the mean logits. Both predict together, or
    one alone: see `TwoNetworks`.

    Args:
        agreement: lambda, the weight of agreement, in [0, 1].
        forget_rate: tau, the share of samples to drop in the end; None takes the noise rate of the run, or an estimate.
        ramp_epochs: E, after which the full rate is dropped: whole epochs, or a share of the run.
        exponent: c, the power of the epoch in the ramp.
        ensemble: Whether both models predict together; False predicts with the first alone.

    References:
        Wei et al., 2020, arXiv 2003.02752.
    """

    about = "two models under one loss that asks them to agree"
    cost = "two models under one step, and an extra forward pass"

    def __init__(
        self,
        agreement: float = 0.1,
        forget_rate: float | None = None,
        ramp_epochs: Span = 10,
        exponent: float = 1.0,
        ensemble: bool = True,
    ) -> None:
        super().__init__(forget_rate, ramp_epochs, exponent, ensemble)
        if not 0 <= agreement <= 1:
            raise bad_value("agreement", agreement, "a share in [0, 1]")
        self.agreement = agreement

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """Join two models into one `Pair`, which one optimizer trains.

        Args:
            create: Builds a model of the run; called twice.
        """
        return [Pair(create(), create())]

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the rows of smallest joint loss.

        Args:
            batch: One view of each sample.
            networks: The `Pair`, as a sequence of one.
            state: The state of training, which decides the share that is kept.
        """
        losses = self.joint(forward_frozen_stats(networks[0], batch.views[0]), batch.labels)
        return (train_on(batch, smallest(losses, self.remember_rate(state))),)

    def joint(self, answers: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        """l_i of each row.

        Args:
            answers: Logits of both models, each (rows, classes).
            targets: Class numbers (rows,).
        """
        first, second = (F.log_softmax(z.float(), dim=1) for z in answers)
        supervised = F.nll_loss(first, targets, reduction="none") + F.nll_loss(second, targets, reduction="none")
        apart = ((first.exp() - second.exp()) * (first - second)).sum(dim=1)  # the two divergences together
        return (1 - self.agreement) * supervised + self.agreement * apart

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The mean joint loss of the chosen rows; the outcome has the mean logits of both models.

        Args:
            network: The `Pair`.
            plan: A `SubsetPlan`.
        """
        assert isinstance(plan, SubsetPlan)
        first, second = (z[plan.rows] for z in network(plan.inputs))
        return LossOutput(self.joint((first, second), plan.targets).mean(), (first + second) / 2, plan.targets)

    def predict(self, networks: Sequence[nn.Module], inputs: Tree) -> Tensor:
        """The mean logits of both models, or those of the first with `ensemble=False`.

        Args:
            networks: The `Pair`, as a sequence of one.
            inputs: A batch of inputs.
        """
        first: Tensor
        first, second = networks[0](inputs)
        return (first + second) / 2 if self.ensemble else first
