"""Bilateral Sharpness-Aware Minimization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._arguments import non_negative
from ncsam._errors import bad_value
from ncsam.optim.radii import RadiusLike
from ncsam.optim.registry import Options, register
from ncsam.optim.sharpness_aware import SharpnessAware
from ncsam.optim.step import Move, Step
from ncsam.vectors.arithmetic import add_scaled_, average_over_ranks, global_norm


@register
class BSAM(SharpnessAware):
    r"""Bilateral SAM: flat above and below.

    .. math::
        g = \nabla L(w), \qquad g_+ = \nabla L(w + \rho\, g/\|g\|), \qquad g_- = \nabla L(w - \rho_{min}\, g/\|g\|),

        d = g_+ + g - \frac{\|g_+\|}{\|g_-\|}\, g_-,

    and the base optimizer steps at w with d. In the authors' code rho_min follows the learning rate,
    rho_min(t) = rho lr(t) / lr(0), which is the default here. (Not bSAM, the Bayesian reading of SAM by Moellenhoff
    and Khan.)

    A step costs three forwards and three backwards, a copy of the weights and two of the gradients.

    Note:
        Three gradients a step, the most of all variants that do not flip labels, and we have no result that pays for
        the third. With rho_min="follow_lr" the effect changes with the learning-rate schedule.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation, as for `SAM`.
        rho_min: Radius of the descent, a number or "follow_lr".

    Examples:
        >>> import torch
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = BSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.05)
        >>> x, y = torch.ones(2, 4), torch.tensor([0, 2])
        >>> loss = optimizer.step(lambda: model(x), y)
        >>> optimizer.steps
        1

    References:
        Deng, Pang, Zhang, Huang: Bilateral Sharpness-Aware Minimization for Flatter Minima. arXiv 2409.13173.
    """

    passes = 3

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: RadiusLike = 0.05,
        *,
        rho_min: float | Literal["follow_lr"] = "follow_lr",
        **options: Unpack[Options],
    ) -> None:
        if isinstance(rho_min, str):
            if rho_min != "follow_lr":
                raise bad_value("rho_min", rho_min, "a number, 0 or larger, or 'follow_lr'")
        else:
            rho_min = non_negative("rho_min", rho_min)
        self.rho_min = rho_min
        super().__init__(base_optimizer, rho, **options)
        self._first_lr = self._lr()

    @torch.no_grad()
    def moves(self, step: Step) -> Iterator[Move]:
        here = dict(zip(*step.gradients(), strict=True))
        params, gradients = step.directions()
        norm = global_norm(gradients)
        step.fit_radius(norm)
        if not step.may_perturb(norm):
            return
        report = step.report
        report.phase = "bsam"
        if step.measured:
            report.grad_norm = norm / step.loss_scale
            report.perturbation_norm = step.rho
            report.cos_clean = report.cos_clean_sam = step.cosine_with_clean(params, gradients)

        yield Move(params, list(gradients), step.scaled_by_radius(params, step.rho / norm))
        above = dict(zip(*step.gradients(), strict=True))
        yield Move(params, gradients.copy(), step.scaled_by_radius(params, -self._lower_radius(step.rho) / norm))
        below = dict(zip(*step.gradients(), strict=True))

        if step.local_group is not None:
            average_over_ranks(list(here.values()), step.local_group)
        below_norm = global_norm(list(below.values()))
        ratio = global_norm(list(above.values())) / below_norm if below_norm > 0 else 0.0
        touched = [p for p in step.params if p in here or p in above or p in below]
        descent = _filled(here, touched)
        add_scaled_(descent, _filled(above, touched), 1.0)
        add_scaled_(descent, _filled(below, touched), -ratio)
        for p, d in zip(touched, descent, strict=True):
            p.grad = d

    def _lr(self) -> float:
        return float(self.param_groups[0].get("lr", 0.0))

    def _lower_radius(self, rho: float) -> float:
        """rho_min(t): given, or rho times the share of the first learning rate that is left."""
        if not isinstance(self.rho_min, str):
            return self.rho_min
        first = float(self.param_groups[0].get("initial_lr", self._first_lr))
        return rho * self._lr() / first if first > 0 else rho

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "first_lr": self._first_lr}

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        self._first_lr = own.get("first_lr", self._first_lr)


def _filled(gradients: dict[Tensor, Tensor], params: list[Tensor]) -> list[Tensor]:
    """A gradient for each parameter, zero where a pass did not reach it."""
    return [gradients[p] if p in gradients else torch.zeros_like(p) for p in params]
