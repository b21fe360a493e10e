"""NCSAM's perturbation from one backward of a sum of losses.

v = rho g_B/||g_B|| + s g* = (rho / ||g_B||) (g_B + beta g*) with beta = s ||g_B|| / rho. The bracket is the gradient of
L_B + beta L*; only the norm must be known beforehand, and a remembered one, N, stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch.distributed as dist

from ncsam.optim.flipping import flip_count
from ncsam.optim.move import Move
from ncsam.optim.sam import scaled_gradients
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import global_norm, multiply_

if TYPE_CHECKING:
    from ncsam.optim.ncsam import NCSAM


def fused_weight(optimizer: NCSAM, size: int) -> float:
    """What the summed loss of flipped samples is multiplied by, so that one backward gives g_B + beta g*.

    The number of micro-batches, each of this size, is taken to be the last step's.
    """
    memory, group = optimizer._memory, optimizer._synced_group()
    ranks = 1 if group is None else dist.get_world_size(group)  # gradients are averaged over them
    samples = memory.micro_batches * size * ranks
    number = max(1, samples if optimizer.noise_mean == "batch" else flip_count(optimizer.flip_ratio, samples))
    against = memory.noise_norm if optimizer.compensation == "relative" else optimizer.rho
    return optimizer.sign * optimizer.strength * memory.norm / against * ranks / number


def fused_moves(optimizer: NCSAM, report: StepReport) -> Iterator[Move]:
    """eps = Proj(v); `.grad` is g_B + beta g*."""
    params, directions = optimizer._gradients()
    scaling = optimizer._scaling(params)
    if scaling is not None:
        directions = scaled_gradients(directions, scaling)
    norm = global_norm(directions)
    if not optimizer._may_perturb(norm):
        if not optimizer._scaled:
            yield Move.nowhere()  # .grad is not g_B: take that, at w
        return
    outer = optimizer.rho / (optimizer._memory.norm * optimizer._loss_scale)
    length = outer * norm  # ||v||
    shrink = min(1.0, optimizer.rho / length) if optimizer.projection else 1.0
    if scaling is not None:
        multiply_(directions, scaling)
    report.phase = "ncsam"
    if optimizer._measured():
        report.perturbation_norm = length * shrink
        report.projected = shrink < 1.0
        report.flipped = optimizer._flips.flipped
        report.flipped_mislabelled = optimizer._mislabelled_share()
        report.cos_clean = optimizer._cosine_with_clean(params, directions)
    yield Move(params, directions, outer * shrink)
