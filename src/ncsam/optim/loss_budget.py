"""A radius that spends a loss budget: the first-order increase of the loss is the same in every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from ncsam._checks import above_zero, non_negative
from ncsam.optim.radius import BOUND, START, BoundedRadius


class LossBudgetRadius(BoundedRadius):
    r"""The radius at which the loss rises by `budget` to first order.

    .. math:: \epsilon = \tau\, g / \|g\|^2, \qquad \rho = \min(\tau / \|g\|,\ bound\, \|w\|,\ 5), \qquad
        L(w + \epsilon) - L(w) \approx g^\top \epsilon = \tau

    With `adaptive`, the norm is that of T g, which gives the same first-order increase. Where a step does not have the
    norm of its own gradient beforehand (`estimator="fused"`), that of the last step stands in.

    Args:
        budget: tau, in nats.
        bound: The longest perturbation as a share of the norm of the weights; `None` for no bound.
        start: The radius that is reported before the first step.

    Examples:
        >>> import torch
        >>> from ncsam import SAM
        >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> optimizer = SAM(torch.optim.SGD([w], lr=0.1), rho=LossBudgetRadius(0.2))
        >>> loss = optimizer.step(lambda: w.square().sum() / 2)
        >>> optimizer.last_step.rho  # 0.2 / ||(3, 4)||
        0.04

    References:
        LE-SAM, ICML 2026, in its first-order reading.
    """

    def __init__(self, budget: float = 0.5, *, bound: float | None = BOUND, start: float = START) -> None:
        super().__init__(non_negative("start", start), bound)
        self.budget = above_zero("budget", budget)

    def at_norm(self, norm: float) -> float:
        self._rho = min(self.budget / norm, self._largest())
        return self._rho

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        self._refresh_weight_norm(params)

    def __repr__(self) -> str:
        return f"LossBudgetRadius({self.budget}), now {self.rho:.3g}"
