"""Sharpness-Aware Minimization, with ASAM's scaling as an option."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ncsam.optim.move import Move
from ncsam.optim.position import Radius
from ncsam.optim.sharpness_aware import Criterion, SharpnessAware
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import global_norm, local, multiply_


class SAM(SharpnessAware):
    r"""SAM (Foret et al., 2021) around any optimizer, with one global norm.

    .. math::
        \epsilon = \rho\, g / \|g\|, \quad g = \nabla L_B(w) \quad [eq:sam\_perturbation]; \qquad
        \text{the base optimizer steps at } w \text{ with } \nabla L_B(w + \epsilon).

    With `adaptive` (ASAM, Kwon et al., 2021), T = |w| + eta elementwise, for every parameter:
    :math:`\epsilon = \rho\, T^2 g / \|T g\|`. Weight decay is the base optimizer's business and no part of g.

    A step costs two forwards and two backwards, and a copy of the weights (`adaptive`: and one of the gradients).

    Args:
        base_optimizer: an instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: radius of the perturbation. 0 gives the base optimizer's own step, bit for bit. "auto" lets it follow its
            own effect (`AutoRadius`): in two phases, call `backward(loss)` at the perturbed weights, too.
        target: of the automatic radius: the share of what was learned that a perturbation is to take away.
        guess_loss: of the automatic radius: the loss of guessing, where labels are no classes.
        criterion: `loss(logits, targets)`, a mean over the batch.
        total_steps: length of training, of which `progress` is a share.
        warmup_steps: this many first steps are the base optimizer's own.
        adaptive, eta: ASAM's scaling and its offset.
        perturbation: "synced": all ranks share the perturbation of the joined batch. "local": each rank of a DDP
            model perturbs by its own batch (m-sharpness).
        same_dropout: draw the same random numbers (dropout masks) in every pass of a step.
        model: the network, or several. `step(forward, targets)` finds it behind `forward`; the two-phase way needs it.
        process_group: the ranks that hold different samples; found from DDP or sharded parameters if not given.
        telemetry_every: measure the costly part of `last_step` every so many steps; 0 never.
    """

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Radius = 0.05,
        *,
        target: float = 0.5,
        guess_loss: float | None = None,
        criterion: Criterion = F.cross_entropy,
        total_steps: int | None = None,
        warmup_steps: int = 0,
        adaptive: bool = False,
        eta: float = 0.0,
        perturbation: Literal["synced", "local"] = "synced",
        same_dropout: bool = False,
        model: nn.Module | Iterable[nn.Module] | None = None,
        process_group: dist.ProcessGroup | None = None,
        telemetry_every: int = 0,
    ) -> None:
        super().__init__(
            base_optimizer,
            rho=rho,
            target=target,
            guess_loss=guess_loss,
            criterion=criterion,
            total_steps=total_steps,
            warmup_steps=warmup_steps,
            adaptive=adaptive,
            eta=eta,
            perturbation=perturbation,
            same_dropout=same_dropout,
            model=model,
            process_group=process_group,
            telemetry_every=telemetry_every,
        )

    @torch.no_grad()
    def _moves(self, report: StepReport) -> Iterator[Move]:
        params, directions = self._gradients()
        scaling = self._scaling(params)
        if scaling is not None:
            directions = scaled_gradients(directions, scaling)
        norm = global_norm(directions)
        if not self._may_perturb(norm):
            return
        if scaling is not None:
            multiply_(directions, scaling)
        report.phase = "sam"
        if self._measured():
            report.grad_norm = norm / self._loss_scale
            report.perturbation_norm = self.rho
            report.cos_clean = report.cos_clean_sam = self._cosine_with_clean(params, directions)
        yield Move(params, directions, self.rho / norm)


def scaled_gradients(gradients: list[Tensor], scaling: list[Tensor]) -> list[Tensor]:
    """T g in new tensors, so that g is still there if no perturbation comes of it."""
    scaled = [torch.empty_like(g) for g in gradients]
    torch._foreach_copy_(local(scaled), torch._foreach_mul(local(gradients), scaling))
    return scaled
