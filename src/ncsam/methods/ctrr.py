"""CTRR, contrastive regularization (Yi et al., 2022, arXiv 2203.01785)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses.reduction import non_negative
from ncsam.methods.averaging import load_as_saved
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.heads import WithHeads, check_backbone, projector
from ncsam.methods.planning import forward_frozen_stats
from ncsam.methods.registry import register

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

_FLOOR = 1e-4


@dataclass(frozen=True, kw_only=True)
class Contrasted(Plan):
    """The classifier's view and a contrastive one, with the other's projections z and the pairs' weights w.

    Attributes:
        inputs: The classifier's view, then one contrastive view.
        targets: Labels of the classifier's view, (samples,).
        index: Which sample each row of a view is.
        projections: z, the normalized outputs of the trailing encoder, (samples, 128).
        pairs: w, (samples, samples); rows sum to 1.
    """

    projections: Tensor
    pairs: Tensor


class Encoder(nn.Module):
    """A backbone's features, projected.

    Args:
        backbone: A `Backbone`.
        projection: Module on its features.
    """

    def __init__(self, backbone: nn.Module, projection: nn.Module) -> None:
        super().__init__()
        self.backbone = check_backbone(backbone)
        self.projection = projection

    def forward(self, inputs: Tensor) -> Tensor:
        """Projections of a batch, not normalized.

        Args:
            inputs: A batch of images.
        """
        projected: Tensor = self.projection(self.backbone.features(inputs))
        return projected


@register
class CTRR(Method):
    r"""Cross-entropy, and similar representations for samples that the model predicts alike. The contrastive term keeps
    representations from encoding wrong labels.

    .. math::
        L = L_{\mathrm{CE}} + \frac{\lambda}{|B|} \sum_{i,j} w_{ij}\, h_{ij}, \qquad
        h_{ii} = 2 - \langle q_i, z_i \rangle, \qquad h_{ij} = 2 + \log(1 - \langle q_i, z_j \rangle) \quad (i \ne j)

    :math:`L_{\mathrm{CE}}` is cross-entropy and :math:`\lambda` the `weight` of the contrast. :math:`q_i` is the
    predictor's output for one contrastive view of sample i, :math:`z_j` that of a trailing encoder for another view of
    sample j, both normalized; the products are kept 1e-4 away from 0 and 1. The weight of a pair is :math:`w_{ij} =
    \langle p_i, p_j \rangle` where that is at least `threshold`, else 0, and :math:`w_{ii} = 1`, divided by its sum
    over j; :math:`p` is the prediction on the classifier's view. The terms :math:`h_{ij}` pull such pairs together. The
    trailing encoder, backbone and projection, moves to the present one by 1 - `decay` in each step. Projection d ->
    2048 -> 128, predictor 128 -> 512 -> 128.

    w and z are fixed before the step, so that each pass of a sharpness-aware optimizer sees the same pairs. Both views
    that need a gradient go through the model together and share BatchNorm's statistics; the authors pass them apart.
    Their variant with generalized cross-entropy is not offered. Over several ranks pairs are formed within each rank's
    part of the batch.

    Args:
        weight: lambda, the weight of the contrast.
        threshold: Least similarity of predictions, in [0, 1], that makes a pair.
        decay: Decay of the trailing encoder, in [0, 1).

    References:
        Yi et al., 2022, arXiv 2203.01785.
    """

    about = "cross-entropy, and alike representations for samples that are predicted alike"
    cost = "two views in each step, a forward pass of a third and one more of the first"
    images_only = True
    views = ("auto:resized", "auto:simclr", "auto:simclr")
    presets: ClassVar[Presets] = {
        "cifar10-symmetric20": {"weight": 50.0, "threshold": 0.4},
        "cifar10-symmetric40": {"weight": 90.0, "threshold": 0.4},
        "cifar10-symmetric60": {"weight": 170.0, "threshold": 0.8},
        "cifar10-symmetric80": {"weight": 130.0, "threshold": 0.4},
        "cifar100": {"weight": 130.0, "threshold": 0.05},
    }

    def __init__(self, weight: float = 50.0, threshold: float = 0.4, decay: float = 0.99) -> None:
        non_negative(weight=weight)
        if not 0 <= threshold <= 1:
            raise bad_value("threshold", threshold, "a similarity in [0, 1]")
        if not 0 <= decay < 1:
            raise bad_value("decay", decay, "a number in [0, 1)")
        self.weight = weight
        self.threshold = threshold
        self.decay = decay

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """Build a backbone with projection and predictor as its head, and the trailing encoder as a frozen copy.

        Args:
            create: Builds a model of the run, which must be a `Backbone`.
        """
        backbone = check_backbone(create())
        projection = projector(backbone.num_features, 2048, 128, norm=True)
        self.target: nn.Module = copy.deepcopy(Encoder(backbone, projection)).requires_grad_(False)
        head = nn.Sequential(projection, projector(128, 512, 128, norm=True))
        return [WithHeads(backbone, {"predictor": head})]

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Fix the pairs' weights and the trailing encoder's projections for this step.

        Args:
            batch: The classifier's view and two contrastive ones.
            networks: The model, whose predictions weight the pairs.
            state: Not used.
        """
        plain, first, second = batch.views
        p = forward_frozen_stats(networks[0], plain).float().softmax(dim=1)
        self.target.to(second)
        z = F.normalize(self.target(second).float(), dim=1).clamp(_FLOOR, 1 - _FLOOR)
        inputs = torch.cat((plain, first))
        return (Contrasted(inputs, batch.labels, batch.index, projections=z, pairs=pair_weights(p, self.threshold)),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """Cross-entropy of the classifier's view plus `weight` times the contrast.

        Args:
            network: The model with its predictor.
            plan: A `Contrasted`.
        """
        assert isinstance(plan, Contrasted)
        answer = network(plan.inputs, "predictor")
        count = len(plan.targets)
        logits = answer["logits"][:count]
        q = F.normalize(answer["predictor"][count:].float(), dim=1).clamp(_FLOOR, 1 - _FLOOR)
        apart = contrast(q @ plan.projections.to(q).T, plan.pairs.to(q))
        return LossOutput(F.cross_entropy(logits, plan.targets) + self.weight * apart, logits, plan.targets)

    @torch.no_grad()
    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        """Move the trailing encoder towards the present one, by 1 - `decay`.

        Args:
            networks: The model, as a sequence of one.
            state: Not used.
        """
        whole = next(module for module in networks[0].modules() if isinstance(module, WithHeads))
        head = whole.heads["predictor"]
        assert isinstance(head, nn.Sequential)
        now = [*whole.backbone.parameters(), *head[0].parameters()]
        for trailing, present in zip(self.target.parameters(), now, strict=True):
            trailing.data = trailing.to(present).lerp(present, 1 - self.decay)

    def state_dict(self) -> dict[str, Any]:
        return {"target": self.target.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the trailing encoder.

        Args:
            state: What `state_dict` returned.
        """
        load_as_saved(self.target, state["target"])


def pair_weights(p: Tensor, threshold: float) -> Tensor:
    """<p_i, p_j> where it is at least the threshold, 1 on the diagonal; each row divided by its sum.

    Args:
        p: Probabilities (rows, classes).
        threshold: Least similarity of a pair.
    """
    alike = (p @ p.T).fill_diagonal_(1.0)
    alike = alike * (alike >= threshold)
    return alike / alike.sum(dim=1, keepdim=True)


def contrast(similarity: Tensor, pairs: Tensor) -> Tensor:
    """mean_i sum_j w_ij (2 - c_ii for i = j, 2 + log(1 - c_ij) for the others).

    Args:
        similarity: c, (rows, rows).
        pairs: w, (rows, rows).
    """
    same = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    terms = torch.where(same, -similarity, (1 - similarity).clamp(min=1e-6).log())
    return (pairs * (2 + terms)).sum(dim=1).mean()
