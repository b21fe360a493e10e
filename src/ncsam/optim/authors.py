"""NCSAM as its authors run it, by name, and the control that tells its length from its direction."""

from __future__ import annotations

from typing import Any, Literal

from torch.optim import Optimizer

from ncsam.optim.flipping import Selection, Target
from ncsam.optim.ncsam import NCSAM
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Criterion, register


@register
class AuthorsNCSAM(NCSAM):
    r"""NCSAM as its authors' public code runs it, by name: `NCSAM` with the defaults of `NCSAM.authors`.

    .. math:: \epsilon = \rho\, g_B/\|g_B\| + \kappa \min(1, 2(3-2t)t^2)\, g_n

    :math:`g_B` is the gradient of the batch, :math:`g_n` the mean gradient of the flipped samples, :math:`\kappa` the
    strength and :math:`t` the completed share of training.

    Note:
        Without the projection the perturbation is many times as long as rho. Compare with `LengthMatchedSAM`, which has
        this length without the direction, before you credit a gain to the compensation. Clustering costs time in every
        step.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of SAM's part.
        kappa: gamma of the authors.
        flip_ratio: The largest rate of a cluster.
        projection: See `NCSAM`, as for the following ones.
        selection: Which samples are flipped.
        flip_target: To which label.
        flip_forward: From which graph.
        flip_criterion: By which loss.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> AuthorsNCSAM(torch.optim.SGD(model.parameters(), lr=0.05), total_steps=100).projection
        False
    """

    name = "ncsam-authors"

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.05,
        kappa: float = 0.25,
        flip_ratio: float = 0.4,
        *,
        projection: bool = False,
        selection: Selection = "clusters",
        flip_target: Target = "random",
        flip_forward: Literal["shared", "separate"] = "separate",
        flip_criterion: Literal["ce", "smoothed_ce"] | Criterion | None = "smoothed_ce",
        **options: Any,
    ) -> None:
        own: dict[str, Any] = {"projection": projection, "selection": selection, "flip_target": flip_target}
        own |= {"flip_forward": flip_forward, "flip_criterion": flip_criterion}
        super().__init__(base_optimizer, rho, kappa, flip_ratio, **own, **options)


@register
class LengthMatchedSAM(AuthorsNCSAM):
    r"""SAM with the radius of NCSAM's unprojected perturbation: the control that tells length from direction.

    .. math:: \epsilon = \|v\|\, g_B / \|g_B\|, \qquad v = \rho\, g_B/\|g_B\| + s(t)\, g_n

    :math:`v` is the perturbation of `AuthorsNCSAM` at the same weights, with the same flips (:math:`g_n` is the
    gradient of the flipped samples, :math:`s(t)` its strength); only its length is used. If training with v is better
    than with this, its direction helps; if not, the gain is due to a longer perturbation. Costs what NCSAM does.

    Note:
        A control for experiments, not a recommendation: it pays for NCSAM's gradients and uses only their length.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of SAM's part of v.
        kappa: The strength of the other part of v.
        flip_ratio: The largest rate of a cluster.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = LengthMatchedSAM(torch.optim.SGD(model.parameters(), lr=0.05), total_steps=100)
        >>> x, y = torch.ones(8, 4), torch.tensor([0, 2] * 4)
        >>> loss = optimizer.step(lambda: model(x), y)
    """

    name = "sam-length-matched"
    length_only = True
