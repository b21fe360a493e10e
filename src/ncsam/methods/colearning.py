"""Co-learning (Tan et al., 2021, arXiv 2108.04063)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses.reduction import non_negative
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.contrastive import nt_xent
from ncsam.methods.heads import WithHeads, check_backbone, projector
from ncsam.methods.mixup import mixed
from ncsam.methods.registry import register
from ncsam.methods.steps import SideOptimizer, sgd

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_EPS = 1e-12


@register
class Colearning(Method):
    r"""A shared encoder learns from the labels and from itself, and the two must agree on the structure of a batch.
    Labels enter through mixup, self-supervision through a contrastive loss.

    .. math::
        L = L_{\mathrm{sup}} + L_{\mathrm{int}}, \qquad
        L_{\mathrm{str}} = -\frac1{|B|^2} \sum_{i,j} e^{-\|g_i - g_j\|^2} \log \left( e^{-\|f_i - f_j\|^2} + 10^{-12}
        \right)

    :math:`L_{\mathrm{sup}}` is mixup's cross-entropy with :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)`;
    :math:`L_{\mathrm{int}}` is NT-Xent at `temperature` between the projections, of 512 numbers, of two contrastive
    views; :math:`L_{\mathrm{str}}` asks the logits :math:`f` to have the pairwise structure of the projections
    :math:`g`, which are constants in it, and steps on the classifier alone.

    That step is an SGD step of its own after each step of the run's optimizer, at `structure_rate` times its learning
    rate. (The authors step by Adam, before it; their code means a fifth of the rate, and overwrites it with the whole.)
    The three views of L go through the model together and share BatchNorm's statistics; the authors pass them apart. As
    theirs, the view of L_sup is a resized crop. Their contrastive crops cover 8 to 100 % of the image, ours (SimCLR's
    for small images) 20 to 100 %; their Adam lowers beta1 to .1 when the rate starts to decay. NCSAM flips labels of
    the mixed rows. Over several ranks views are contrasted within each rank's part.

    Args:
        alpha: Parameter of Beta(alpha, alpha) in mixup.
        temperature: Temperature of NT-Xent.
        structure_rate: Learning rate of the structure step, as a factor of the run's; 0 skips it.

    References:
        Tan et al., 2021, arXiv 2108.04063.
    """

    about = "a shared encoder under mixup, contrastive learning and a common structure of both"
    cost = "three views in each step, and a further step on one of them"
    images_only = True
    views = ("auto:resized", "auto:simclr", "auto:simclr")
    presets: ClassVar[Presets] = {"cifar": {"alpha": 5.0, "temperature": 0.5}}

    def __init__(self, alpha: float = 5.0, temperature: float = 0.5, structure_rate: float = 1.0) -> None:
        non_negative(structure_rate=structure_rate)
        for name, value in (("alpha", alpha), ("temperature", temperature)):
            if not value > 0:
                raise bad_value(name, value, "a positive number")
        self.alpha = alpha
        self.temperature = temperature
        self.structure_rate = structure_rate
        self.side: SideOptimizer | None = None
        self.saved: dict[str, Any] | None = None

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """Build a backbone with a projector as its head.

        Args:
            create: Builds a model of the run, which must be a `Backbone`.
        """
        backbone = check_backbone(create())
        width = backbone.num_features
        return [WithHeads(backbone, {"projector": projector(width, width, 512, bias=False)})]

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Mix the first view; its rows are followed by those of the two contrastive views.

        Args:
            batch: Three views of each sample.
            networks: Not used.
            state: The source of randomness.
        """
        self.raw = batch.views[0]
        onehot = F.one_hot(batch.labels, state.num_classes).to(self.raw.dtype)
        inputs, targets = mixed(self.raw, onehot, self.alpha, state)
        return (Plan(torch.cat((inputs, *batch.views[1:])), targets),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy of the mixed rows plus NT-Xent between the contrastive views.

        Args:
            network: The model with its projector.
            plan: Rows of three views; targets for the first third.
        """
        answer = network(plan.inputs, "projector")
        logits = answer["logits"][: len(plan.targets)]
        _, first, second = answer["projector"].chunk(3)
        value = F.cross_entropy(logits, plan.targets) + nt_xent(first, second, self.temperature)
        return LossOutput(value, logits, plan.targets)

    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        """Take the structure step on the classifier; none if `structure_rate` is 0.

        Args:
            networks: The model, as a sequence of one.
            state: The state of training, whose `lr` is multiplied by `structure_rate`.
        """
        if not self.structure_rate:
            return
        side = self._side(networks)
        answer = networks[0](self.raw, "projector")
        value = structure(answer["projector"].detach(), answer["logits"]) + 0.0 * answer["projector"].sum()
        side.step(value, state, lr=self.structure_rate * state.lr)

    def _side(self, networks: Sequence[nn.Module]) -> SideOptimizer:
        if self.side is None:
            backbone = next(module for module in networks[0].modules() if isinstance(module, WithHeads)).backbone
            self.side = sgd(backbone.head.parameters(), lr=1.0, decay=0.0)
            if self.saved is not None:
                self.side.load_state_dict(self.saved)
        return self.side

    def state_dict(self) -> dict[str, Any]:
        return {"side": None if self.side is None else self.side.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep the state of the side optimizer until it is built.

        Args:
            state: What `state_dict` returned.
        """
        self.saved = state["side"]


def structure(projections: Tensor, logits: Tensor) -> Tensor:
    """-mean_ij exp(-|g_i - g_j|^2) log(exp(-|f_i - f_j|^2) + 1e-12).

    Args:
        projections: g, (rows, width).
        logits: f, (rows, classes).
    """
    target, found = (torch.exp(-squared_distances(rows.float())) for rows in (projections, logits))
    return -(target * (found + _EPS).log()).mean()


def squared_distances(rows: Tensor) -> Tensor:
    """|a_i - a_j|^2 for all pairs.

    Args:
        rows: (rows, width).
    """
    return (rows.unsqueeze(1) - rows.unsqueeze(0)).square().sum(dim=2)
