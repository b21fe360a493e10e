"""Friendly Sharpness-Aware Minimization."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import non_negative, ratio
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options, register
from ncsam.optim.sam import ascent
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step
from ncsam.vectors.arithmetic import add_scaled_, scale_


@register
class FriendlySAM(SharpnessAware):
    r"""F-SAM: perturb along what is specific to this batch.

    .. math:: d_t = g_t - \sigma m_{t-1}, \qquad \epsilon = \rho\, d_t/\|d_t\|, \qquad
        m_t = \lambda m_{t-1} + (1 - \lambda) g_t, \quad m_1 = g_1,\ d_1 = g_1

    as in the authors' code; with m_t in place of m_{t-1}, as in their paper, sigma = 1 gives the same direction.
    Costs two forwards and two backwards, a copy of the weights and m, which is saved with the state.

    Note:
        The running mean takes as much memory as the weights. It describes recent batches only if these are alike:
        shuffle. In our trial it was as good as SAM, not better (docs/experiments/real_noise.md).

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.
        sigma: Share of the running mean that is subtracted.
        decay: lambda, of the running mean.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = FriendlySAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)
        >>> optimizer.steps
        1

    References:
        Li, Zhou, He, Cheng, Huang: Friendly Sharpness-Aware Minimization. CVPR 2024, arXiv 2403.12350.
    """

    def __init__(
        self, base_optimizer: Optimizer, rho: RadiusLike = 0.05, *, sigma: float = 1.0, decay: float = 0.9,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self.sigma = non_negative("sigma", sigma)
        self.decay = ratio("decay", decay)
        super().__init__(base_optimizer, rho, **options)

    @torch.no_grad()
    def moves(self, step: Step) -> Iterator[Move]:
        params, gradients = step.directions()
        average = self.vectors.setdefault("average", {})
        directions = [g.clone() if p in average else g for p, g in zip(params, gradients, strict=True)]
        known = [(average[p], d, g) for p, d, g in zip(params, directions, gradients, strict=True) if p in average]
        add_scaled_([d for _, d, _ in known], [m for m, _, _ in known], -self.sigma * step.loss_scale)
        for move in ascent(step, params, directions, phase="friendlysam"):
            scale_([m for m, _, _ in known], self.decay)
            add_scaled_([m for m, _, _ in known], [g for _, _, g in known], (1 - self.decay) / step.loss_scale)
            average |= {p: g / step.loss_scale for p, g in zip(params, gradients, strict=True) if p not in average}
            del known, gradients
            yield move
