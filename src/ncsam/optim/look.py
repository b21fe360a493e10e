"""LookSAM's reuse: what a perturbation adds to the gradient changes slowly, so it is measured now and then.

Most steps have g_B alone, and with it the norm that a fused measurement (`fused.py`) must know beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from ncsam.optim.compensated import compensated_moves
from ncsam.optim.estimators import LOOK
from ncsam.optim.fused import fused_moves
from ncsam.optim.move import Move
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import add_scaled_, global_dot, global_norm, scale_

if TYPE_CHECKING:
    from ncsam.optim.ncsam import NCSAM


def look_moves(optimizer: NCSAM, report: StepReport) -> Iterator[Move]:
    """Measuring steps keep the part g_v of their gradient that is orthogonal to the one at w; others add it to g_B."""
    memory = optimizer._memory
    params, gradients = optimizer._gradients()
    norm = global_norm(gradients)
    mixed = optimizer._mixes and optimizer._flips.flipped > 0
    if math.isfinite(norm) and norm > 0 and not mixed:
        memory.follow(norm / optimizer._loss_scale)
    if not memory.due:
        kept, scale = memory.kept(params)
        if optimizer._may_perturb(norm):
            add_scaled_(gradients, kept, scale * norm)
            memory.age()
            report.phase = "look"
        return
    for move in fused_moves(optimizer, report) if mixed else compensated_moves(optimizer, report):
        yield move
        if move.params:
            _keep(optimizer, params, gradients, norm)


def _keep(optimizer: NCSAM, params: list[Tensor], gradients: list[Tensor], norm: float) -> None:
    """Keep g_v = g' - (g'.g / |g|^2) g, with g' now in `.grad` and g that of w; it is written over g."""
    there = {p: p.grad for p in params if p.grad is not None}
    kept = [g for p, g in zip(params, gradients, strict=True) if p in there]
    descent = list(there.values())
    along = global_dot(descent, kept) / norm**2
    scale_(kept, -along)
    add_scaled_(kept, descent, 1.0)
    length = global_norm(kept)
    if math.isfinite(length) and length > 0:
        optimizer._memory.keep(list(there), kept, LOOK / length)
        optimizer._memory.refresh()
