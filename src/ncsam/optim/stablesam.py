"""StableSAM: SAM's gradient at the length of the plain one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ncsam.optim.registry import register
from ncsam.optim.sam import ascent
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step
from ncsam.vectors.arithmetic import average_over_ranks, global_norm, scale_


@register
class StableSAM(SharpnessAware):
    r"""SSAM: SAM whose gradient is rescaled to the length of the gradient at w.

    .. math:: d = \frac{\|g\|}{\|g'\|}\, g', \qquad g = \nabla L(w),\ g' = \nabla L(w + \rho\, g/\|g\|)

    A guard for large radii and learning rates, where g' may be much longer than g. Costs two forwards, two backwards
    and a copy of the weights.

    Note:
        The step has another length than SAM's, so a learning rate that was tuned for SAM is to be tuned again.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = StableSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)

    References:
        Tan, Zhang, Liu, Wang, Hao: Stabilizing Sharpness-Aware Minimization Through A Simple Renormalization Strategy.
        JMLR 26, 2025, arXiv 2401.07250.
    """

    @torch.no_grad()
    def moves(self, step: Step) -> Iterator[Move]:
        at_w = step.gradients()[1]
        norm = global_norm(at_w)
        if step.local_group is not None:  # the descent is on averaged gradients, and so is its length
            averaged = [g.clone() for g in at_w]
            average_over_ranks(averaged, step.local_group)
            norm = global_norm(averaged)
        del at_w
        for move in ascent(step, *step.directions(), phase="stablesam"):
            yield move
            gradients = step.gradients()[1]
            length = global_norm(gradients)
            if length > 0:
                scale_(gradients, norm / length)
