"""SANER: sharpness-aware steps that shorten the coordinates which noise dominates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import ratio
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options, register
from ncsam.optim.sam import ascent
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step
from ncsam.vectors.arithmetic import average_over_ranks, local


@register
class SANER(SharpnessAware):
    r"""SANER: SAM with some coordinates of its gradient made shorter.

    .. math:: d_j = \alpha\, g'_j \text{ where } 0 < g'_j / g_j < 1, \text{ else } g'_j; \qquad
        g = \nabla L(w),\ g' = \nabla L(w + \rho\, g/\|g\|)

    These are the coordinates that SAM shrinks without turning; the authors find that noisy samples dominate them.
    alpha = 1 is SAM. Costs two forwards, two backwards, a copy of the weights and one of the gradients.

    Note:
        Which coordinates are shortened depends on two gradients of one batch, so small batches decide by noise. In our
        trial it was as good as SAM, not better (docs/experiments/real_noise.md).

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.
        alpha: Factor of these coordinates.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = SANER(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)
        >>> optimizer.steps
        1

    References:
        Luong, Nguyen-Quang, Tran: Improving Resistance to Noisy Label Fitting by Reweighting Gradient in SAM. 2024,
        arXiv 2411.17132.
    """

    def __init__(
        self, base_optimizer: Optimizer, rho: RadiusLike = 0.05, *, alpha: float = 0.5, **options: Unpack[Options]
    ) -> None:
        self.alpha = ratio("alpha", alpha)
        super().__init__(base_optimizer, rho, **options)

    @torch.no_grad()
    def moves(self, step: Step) -> Iterator[Move]:
        params, gradients = step.directions()
        for move in ascent(step, params, list(gradients), phase="saner"):
            yield move
            if step.local_group is not None:  # the second pass averaged its gradients, the first did not
                average_over_ranks(gradients, step.local_group)
            here = {p: g for p, g in zip(params, gradients, strict=True) if p.grad is not None}
            for g, there in zip(local(here.values()), local(p.grad for p in here if p.grad is not None), strict=True):
                ratio = there / g
                there.copy_(torch.where((ratio > 0) & (ratio < 1), self.alpha * there, there))
