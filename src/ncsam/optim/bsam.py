"""Bilateral Sharpness-Aware Minimization."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.optim.distributed import average_over_ranks
from ncsam.optim.move import Move
from ncsam.optim.position import Radius
from ncsam.optim.sharpness_aware import Criterion, SharpnessAware
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import add_scaled_, global_norm


class BSAM(SharpnessAware):
    r"""Bilateral SAM (Deng et al., 2024, arXiv 2409.13173): flat above and below.

    .. math::
        g = \nabla L(w),\quad g_+ = \nabla L(w + \rho\, g/\|g\|),\quad g_- = \nabla L(w - \rho_{min}\, g/\|g\|),

        d = g_+ + g - \frac{\|g_+\|}{\|g_-\|}\, g_-,

    and the base optimizer steps at w with d. In the authors' code rho_min follows the learning rate down,
    rho_min(t) = rho lr(t) / lr(0), which is the default here. (Not bSAM, the Bayesian reading of SAM by Moellenhoff
    and Khan.)

    A step costs three forwards and three backwards, a copy of the weights and two of the gradients. The arguments are
    those of `SAM`, and `rho_min`: a constant, or "follow_lr".
    """

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Radius = 0.05,
        *,
        target: float = 0.5,
        guess_loss: float | None = None,
        rho_min: float | Literal["follow_lr"] = "follow_lr",
        criterion: Criterion = F.cross_entropy,
        total_steps: int | None = None,
        warmup_steps: int = 0,
        perturbation: Literal["synced", "local"] = "synced",
        same_dropout: bool = False,
        model: nn.Module | Iterable[nn.Module] | None = None,
        process_group: dist.ProcessGroup | None = None,
        telemetry_every: int = 0,
    ) -> None:
        if isinstance(rho_min, str):
            if rho_min != "follow_lr":
                raise bad_value("rho_min", rho_min, "a number, 0 or larger, or 'follow_lr'")
        else:
            validate.non_negative("rho_min", rho_min)
        self.rho_min = rho_min
        super().__init__(
            base_optimizer,
            rho=rho,
            target=target,
            guess_loss=guess_loss,
            criterion=criterion,
            total_steps=total_steps,
            warmup_steps=warmup_steps,
            adaptive=False,
            eta=0.0,
            perturbation=perturbation,
            same_dropout=same_dropout,
            model=model,
            process_group=process_group,
            telemetry_every=telemetry_every,
        )
        self._first_lr = self._lr()

    @torch.no_grad()
    def _moves(self, report: StepReport) -> Iterator[Move]:
        params, gradients = self._gradients()
        norm = global_norm(gradients)
        if not self._may_perturb(norm):
            return
        report.phase = "bsam"
        if self._measured():
            report.grad_norm = norm / self._loss_scale
            report.perturbation_norm = self.rho
            report.cos_clean = report.cos_clean_sam = self._cosine_with_clean(params, gradients)

        here = dict(zip(params, gradients, strict=True))
        yield Move(params, list(gradients), self.rho / norm)
        above = dict(zip(*self._gradients(), strict=True))
        yield Move(params, gradients.copy(), -self._lower_radius() / norm)
        below = dict(zip(*self._gradients(), strict=True))

        if (group := self._local_group()) is not None:
            average_over_ranks(gradients, group)
        below_norm = global_norm(list(below.values()))
        ratio = global_norm(list(above.values())) / below_norm if below_norm > 0 else 0.0
        touched = [p for p in self._params() if p in here or p in above or p in below]
        step = _filled(here, touched)
        add_scaled_(step, _filled(above, touched), 1.0)
        add_scaled_(step, _filled(below, touched), -ratio)
        for p, d in zip(touched, step, strict=True):
            p.grad = d

    def _lr(self) -> float:
        return float(self.param_groups[0].get("lr", 0.0))

    def _lower_radius(self) -> float:
        """rho_min(t): given, or rho times the share of the first learning rate that is left."""
        if not isinstance(self.rho_min, str):
            return self.rho_min
        first = float(self.param_groups[0].get("initial_lr", self._first_lr))
        return self.rho * self._lr() / first if first > 0 else self.rho

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "first_lr": self._first_lr}

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        self._first_lr = own.get("first_lr", self._first_lr)


def _filled(gradients: dict[Tensor, Tensor], params: list[Tensor]) -> list[Tensor]:
    """A gradient for each parameter, zero where a pass did not reach it."""
    return [gradients[p] if p in gradients else torch.zeros_like(p) for p in params]
