"""NCSAM's perturbation from two gradients: g_B, and a g* of this batch or of an earlier one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from ncsam.optim.move import Move
from ncsam.optim.sam import SAM, scaled_gradients
from ncsam.optim.telemetry import StepReport
from ncsam.optim.tensors import add_scaled_, cosine, global_norm, multiply_

if TYPE_CHECKING:
    from ncsam.optim.ncsam import NCSAM

_INVISIBLE = 1e-15  # a compensation this much smaller than rho changes no bit of eps that matters


def compensated_moves(optimizer: NCSAM, report: StepReport) -> Iterator[Move]:
    """eps = Proj(rho g_B/||g_B|| + s g*), or SAM's if there is no g*."""
    params, gradients = optimizer._gradients()
    taken = _noise(optimizer, params)
    if taken is None:
        del gradients
        yield from SAM._moves(optimizer, report)
        return
    noise, mean = taken
    rho = optimizer.rho
    raw, keeps_noise = noise, optimizer.estimator == "lazy"
    scaling = optimizer._scaling(params)
    if scaling is not None:
        gradients = scaled_gradients(gradients, scaling)
        if keeps_noise:
            noise = scaled_gradients(noise, scaling)
        else:
            multiply_(noise, scaling)
    norm = global_norm(gradients)
    measured = optimizer._measured()
    remembers = optimizer.estimator in ("fused", "lazy")
    noise_norm = 0.0
    if measured or remembers or optimizer.compensation == "relative":
        noise_norm = global_norm(noise) * mean
    size = optimizer.strength
    if optimizer.compensation == "relative":
        size *= math.nan if not math.isfinite(noise_norm) else rho / noise_norm if noise_norm else 0.0
    weight = optimizer.sign * size * mean
    clean = None
    if measured:
        _report_gradients(optimizer, report, gradients, noise, norm, noise_norm)
        clean = optimizer._take_side_gradient("clean", params)
        if clean is not None:
            report.cos_clean_sam = cosine(_times(gradients, scaling), clean[0])
    if abs(weight) < _INVISIBLE * rho or norm == 0.0:
        yield from SAM._moves(optimizer, report)
        return
    # v = a g_B + weight noise, in one pass over memory: written over the one of the two that is not needed any
    # more, with the factor before the bracket left to the move
    a = rho / norm
    if keeps_noise and scaling is None:
        into, other, inner, outer = gradients, noise, weight / a, a
    else:
        into, other, inner, outer = noise, gradients, a / weight, weight
    if math.isfinite(noise_norm):
        add_scaled_(into, other, inner)
    length = abs(outer) * global_norm(into) if math.isfinite(noise_norm) else math.nan  # ||v||
    if not optimizer._may_perturb(norm, length):
        if into is gradients and math.isfinite(noise_norm) and not optimizer._scaled:
            yield Move.nowhere()  # .grad is not g_B any more: take that, at w
        return
    if remembers:
        _remember(optimizer, params, raw, mean, norm, noise_norm)
    shrink = min(1.0, rho / length) if optimizer.projection else 1.0
    report.phase = "ncsam"
    if measured:
        report.perturbation_norm = length * shrink
        report.projected = shrink < 1.0
        report.cos_sam = (rho + optimizer.sign * size * noise_norm * (report.cos_grad_noise or 0.0)) / length
    if scaling is not None:
        multiply_(into, scaling)
    if clean is not None:
        report.cos_clean = math.copysign(1.0, outer) * cosine(into, clean[0])
    move = Move(params, into, outer * shrink)
    del taken, gradients, noise, raw, into, other  # nothing but w need live through the second pass
    yield move


def _noise(optimizer: NCSAM, params: list[Tensor]) -> tuple[list[Tensor], float] | None:
    """g* as (tensors, factor): this batch's, or the one that is reused; `None` if there is none."""
    if optimizer.estimator == "lazy" and not optimizer._exact:
        return optimizer._memory.kept(params) if optimizer._compensates else None
    taken = optimizer._take_side_gradient("noise", params)
    if taken is not None and optimizer.noise_mean == "batch":
        return taken[0], taken[1] * optimizer._flips.flipped / optimizer._flips.samples
    return taken


def _remember(
    optimizer: NCSAM, params: list[Tensor], noise: list[Tensor], mean: float, norm: float, noise_norm: float
) -> None:
    """Take in what an exact step measured, or count one that reused it."""
    memory = optimizer._memory
    if not optimizer._exact:
        memory.age()
        return
    memory.refresh()
    memory.note_norms(norm / optimizer._loss_scale, noise_norm, optimizer._flips.samples)
    if optimizer.estimator == "lazy":
        memory.keep(params, noise, mean)


def _report_gradients(
    optimizer: NCSAM,
    report: StepReport,
    gradients: list[Tensor],
    noise: list[Tensor],
    norm: float,
    noise_norm: float,
) -> None:
    if optimizer._flips.flipped:
        report.flipped = optimizer._flips.flipped
        report.flipped_mislabelled = optimizer._mislabelled_share()
    report.grad_norm = norm / optimizer._loss_scale
    report.noise_grad_norm = noise_norm
    report.cos_grad_noise = cosine(gradients, noise)
    share = 1.0 if optimizer.compensation == "relative" else noise_norm / optimizer.rho
    report.compensation_ratio = optimizer.strength * share


def _times(tensors: list[Tensor], factors: list[Tensor] | None) -> list[Tensor]:
    return tensors if factors is None else scaled_gradients(tensors, factors)
