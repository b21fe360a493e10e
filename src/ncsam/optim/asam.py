"""Adaptive Sharpness-Aware Minimization, by name."""

from __future__ import annotations

from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options, register
from ncsam.optim.sam import SAM


@register
class ASAM(SAM):
    r"""ASAM: a ball that is round in the coordinates T^-1 w, T = |w| + eta.

    .. math:: \epsilon = \rho\, T^2 g / \|T g\|

    `SAM(adaptive=True)` with the authors' radius and eta. T is |w| + eta for every parameter; the authors leave biases
    and norms unscaled, as a group with `adaptive=False` does here. Costs two forwards, two backwards, a copy of the
    weights and one of the gradients.

    Note:
        Radii are not comparable with those of `SAM`: the default is ten times as large. With an automatic radius it was
        below SAM in our experiments (docs/experiments/settings.md).

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.
        adaptive: Whether to scale by T.
        eta: The offset of T.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = ASAM(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)
        >>> optimizer.rho
        0.5

    References:
        Kwon, Kim, Park, Choi: ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
        Networks. ICML 2021, arXiv 2102.11600.
    """

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.5,
        *,
        adaptive: bool = True,
        eta: float = 0.01,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base_optimizer, rho, adaptive=adaptive, eta=eta, **options)
