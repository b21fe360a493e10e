"""AE-SAM: a sharpness-aware step only where the loss surface seems sharp."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import number, ratio
from ncsam._errors import bad_value
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options
from ncsam.optim.sam import ascent
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step
from ncsam.vectors.arithmetic import all_agree, global_norm


class AESAM(SharpnessAware):
    r"""AE-SAM: SAM's step where the gradient is long for its recent past, else the base optimizer's.

    .. math:: \|g_t\|^2 \ge \mu_t + c_t \sigma_t, \qquad \mu_t = \delta \mu_{t-1} + (1-\delta) \|g_t\|^2, \qquad
        \sigma_t^2 = \delta \sigma_{t-1}^2 + (1-\delta) (\|g_t\|^2 - \mu_t)^2

    :math:`\mu_t` and :math:`\sigma_t` are the running mean and standard deviation of the squared norm, with decay
    :math:`\delta`, and :math:`c_t` goes linearly from `first` to `last` over training: SAM's share grows from few
    steps to most.
    Costs one and a half times the base optimizer's step on average, and a copy of the weights. Needs `total_steps`, or
    `progress` set by hand.

    Note:
        The time of a step varies, and which steps perturb depends on gradient norms: gradient clipping before the step,
        or a change of batch size, changes the share of SAM steps.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.
        decay: Decay :math:`\delta` of the running mean and variance.
        first: :math:`c_t` at the start of training.
        last: :math:`c_t` at the end of training.

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = AESAM(torch.optim.SGD(model.parameters(), lr=0.1), total_steps=100)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)

    References:
        Jiang, Yang, Zhang, Kwok: An Adaptive Policy to Employ Sharpness-Aware Minimization. ICLR 2023,
        arXiv 2304.14647.
    """

    passes = 1.5

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.05,
        *,
        decay: float = 0.9,
        first: float = 1.0,
        last: float = -1.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(base_optimizer, rho, **options)
        self.decay = ratio("decay", decay)
        self.first, self.last = number("first", first), number("last", last)
        self._mean: float | None = None  # mu
        self._variance = 0.0

    @torch.no_grad()
    def moves(self, step: Step) -> Iterator[Move]:
        t = self.progress
        if t is None:
            raise bad_value("total_steps", None, "a number, or set optimizer.progress in [0, 1] before each step")
        square = (global_norm(step.gradients()[1]) / step.loss_scale) ** 2
        if math.isfinite(square):
            self._mean = square if self._mean is None else self.decay * self._mean + (1 - self.decay) * square
            self._variance = self.decay * self._variance + (1 - self.decay) * (square - self._mean) ** 2
            threshold = self._mean + ((1 - t) * self.first + t * self.last) * math.sqrt(self._variance)
            if not all_agree(square >= threshold, step.params[0].device, step.local_group):
                step.average_if_local()
                return
        yield from ascent(step, *step.directions(), phase="aesam")

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "mean": self._mean, "variance": self._variance}

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        self._mean = None if own["mean"] is None else float(own["mean"])
        self._variance = float(own["variance"])
