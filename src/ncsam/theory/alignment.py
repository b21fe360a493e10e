"""The direction of the perturbation: SAM's and NCSAM's against the gradient of the correctly labeled samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import _arguments
from ncsam._errors import bad_value
from ncsam.optim.flipping import Flips, Selection, Target, flip_count, flipped_labels, select
from ncsam.theory.batches import Data, with_clean
from ncsam.theory.surface import Criterion, Vector, checked, trainable
from ncsam.vectors.arithmetic import cosine, global_norm
from ncsam.vectors.saved import SavedBuffers

_NAN = float("nan")


@dataclass(frozen=True)
class Alignment:
    """The gradients of one batch (or their mean over several) in lengths and angles; nan where there is none.

    g_B is the batch's gradient, g_clean that of its correctly labeled samples, g_noise that of the mislabeled ones, g*
    the estimate that NCSAM makes of g_noise by flipping labels [eq:sam_perturbation, eq:dw].

    Both perturbations lie in the plane of g_B and g*, and the projection changes only a length. So they depend on the
    ratio q = s ||g*|| / rho alone: eps_NCSAM points along u + q u*, u and u* of length 1, and for any x

        cos(eps, x) = (cos(g_B, x) + q cos(g*, x)) / sqrt(1 + q^2 + 2 q cos(g_B, g*)).

    `at(q)` evaluates it for other strengths.

    Attributes:
        noise_share: lambda_B, the share of the batch that is mislabeled.
        grad_norm: ||g_B||.
        clean_norm: ||g_clean||.
        noise_norm: ||g_noise||.
        estimate_norm: ||g*||.
        cos_clean_noise: cos(g_clean, g_noise); the paper expects it below 0.
        cos_estimate_noise: cos(g*, g_noise), how good an estimate of the direction g* is.
        cos_estimate_clean: cos(g*, g_clean).
        cos_grad_estimate: cos(g_B, g*).
        cos_clean_sam: cos(eps_SAM, g_clean).
        cos_clean: cos(eps_NCSAM, g_clean); the paper claims that it is the larger of the two.
        cos_sam: cos(eps_SAM, eps_NCSAM).
        compensation_ratio: q = s ||g*|| / rho.
        flipped_mislabeled: The share of flipped samples that are truly mislabeled.
    """

    noise_share: float
    grad_norm: float
    clean_norm: float
    noise_norm: float
    estimate_norm: float
    cos_clean_noise: float
    cos_estimate_noise: float
    cos_estimate_clean: float
    cos_grad_estimate: float
    cos_clean_sam: float
    cos_clean: float
    cos_sam: float
    compensation_ratio: float
    flipped_mislabeled: float

    @property
    def gain(self) -> float:
        """How much more NCSAM's perturbation points along the clean gradient than SAM's does."""
        return self.cos_clean - self.cos_clean_sam

    @property
    def slope(self) -> float:
        """d cos(eps, g_clean) / dq at q = 0: above 0, a little compensation turns eps towards the clean gradient."""
        return self.cos_estimate_clean - self.cos_clean_sam * self.cos_grad_estimate

    @property
    def reversal(self) -> float:
        """The q from which on eps points against SAM's, -1 / cos(g_B, g*); inf if that cosine is not negative."""
        return -1.0 / self.cos_grad_estimate if self.cos_grad_estimate < 0 else math.inf

    def at(self, ratio: float, sign: int = 1) -> tuple[float, float]:
        """Angles at another ratio q.

        Args:
            ratio: q.
            sign: -1 subtracts the compensation.

        Returns:
            (cos(eps, g_clean), cos(eps_SAM, eps)).
        """
        return (
            _turned(self.cos_clean_sam, self.cos_estimate_clean, self.cos_grad_estimate, sign * ratio),
            _turned(1.0, self.cos_grad_estimate, self.cos_grad_estimate, sign * ratio),
        )


def alignments(
    model: nn.Module,
    data: Data,
    *,
    rho: float = 0.05,
    strength: float = 0.1,
    flip_ratio: float = 0.4,
    criterion: Criterion = F.cross_entropy,
    sign: Literal[1, -1] = 1,
    compensation: Literal["absolute", "relative"] = "absolute",
    noise_mean: Literal["flipped", "batch"] = "flipped",
    selection: Selection = "gap",
    flip_target: Target = "not_observed",
    generator: torch.Generator | None = None,
) -> list[Alignment]:
    """Measure the alignment of each batch; `mean_alignment` averages them.

    The numbers are those that NCSAM's telemetry reports for the same batch and draws. All gradients come from one
    graph, in the mode the model is in: with `model.train()` BatchNorm sees the batch, as in training. Weights, buffers
    and `.grad` are left as they were.

    Args:
        model: The model.
        data: Batches (inputs, observed labels, clean labels).
        rho: Radius of the perturbation.
        strength: s(t), NCSAM's compensation strength.
        flip_ratio: Share of the batch whose labels are flipped.
        criterion: Mean loss of (logits, labels).
        sign: 1 adds the compensation, -1 subtracts it.
        compensation: "absolute" adds s g*, "relative" s rho g* / ||g*||.
        noise_mean: Whether g* is a mean over the flipped samples or over the batch.
        selection: How samples to flip are selected, as in NCSAM.
        flip_target: What labels are flipped to, as in NCSAM.
        generator: Random numbers for the selection; by default from seed 0.

    Returns:
        One `Alignment` for each batch.
    """
    _arguments.above_zero("rho", rho)
    _arguments.non_negative("strength", strength)
    _arguments.number("sign", sign, "1 or -1", lambda v: v in (1, -1))
    _arguments.ratio("flip_ratio", flip_ratio)
    for name, value, allowed in (
        ("compensation", compensation, ("absolute", "relative")),
        ("noise_mean", noise_mean, ("flipped", "batch")),
        ("selection", selection, ("gap", "uniform", "lowest_gap")),
        ("flip_target", flip_target, ("not_observed", "second")),
    ):
        _arguments.choice(name, value, allowed)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    _arguments.instance("generator", generator, torch.Generator, "a torch.Generator, or None")
    criterion = checked(criterion)
    found = []
    for inputs, observed, clean in with_clean(data, trainable(model)[0].device):
        buffers = SavedBuffers([model])
        try:
            with torch.enable_grad():
                logits = model(inputs)
                seen = logits.detach()
                flips = select(seen, flip_count(flip_ratio, len(seen)), selection, generator)
                flipped = Flips(flips, flipped_labels(seen[flips], observed[flips], flip_target))
                measured = _measured(model, logits, observed, clean, flipped, criterion)
        finally:
            buffers.restore()
        length = measured.estimate_norm * (len(flips) / len(seen) if noise_mean == "batch" else 1.0)
        ratio = strength if compensation == "relative" else strength * length / rho
        ratio = ratio if length > 0 else 0.0  # nothing flipped: NCSAM is SAM
        cos_clean, cos_sam = measured.at(ratio, sign)
        found.append(replace(measured, cos_clean=cos_clean, cos_sam=cos_sam, compensation_ratio=ratio))
    if not found:
        raise bad_value("data", "0 batches", "at least one batch")
    return found


def _measured(
    model: nn.Module, logits: Tensor, observed: Tensor, clean: Tensor, flips: Flips, criterion: Criterion
) -> Alignment:
    """All but what depends on rho and the strength; that is SAM's for now."""
    params = trainable(model)

    def gradient(which: Tensor, labels: Tensor) -> Vector:
        """Of the mean loss of some samples; 0 if there are none."""
        if not len(labels):
            return [torch.zeros_like(p) for p in params]
        loss = criterion(logits[which], labels)
        return list(torch.autograd.grad(loss, params, retain_graph=True, materialize_grads=True))

    right = observed == clean
    mixed = gradient(torch.ones_like(right), observed)
    g_clean, g_noise = gradient(right, observed[right]), gradient(~right, observed[~right])
    estimate = gradient(flips.index, flips.labels)
    cos_clean_sam = cosine(mixed, g_clean)
    return Alignment(
        noise_share=1.0 - float(right.float().mean()),
        grad_norm=global_norm(mixed),
        clean_norm=global_norm(g_clean),
        noise_norm=global_norm(g_noise),
        estimate_norm=global_norm(estimate),
        cos_clean_noise=cosine(g_clean, g_noise),
        cos_estimate_noise=cosine(estimate, g_noise),
        cos_estimate_clean=cosine(estimate, g_clean),
        cos_grad_estimate=cosine(mixed, estimate),
        cos_clean_sam=cos_clean_sam,
        cos_clean=cos_clean_sam,
        cos_sam=1.0,
        compensation_ratio=0.0,
        flipped_mislabeled=float((~right)[flips.index].float().mean()) if len(flips.index) else _NAN,
    )


def mean_alignment(alignments: Sequence[Alignment]) -> Alignment:
    """Field by field the mean over the batches where it is finite.

    Args:
        alignments: The result of `alignments`.
    """
    if not isinstance(alignments, (list, tuple)) or not all(isinstance(each, Alignment) for each in alignments):
        raise bad_value("alignments", alignments, "the result of `alignments`")
    rows = [asdict(each) for each in alignments]
    means = {}
    for field in fields(Alignment):
        known = [row[field.name] for row in rows if math.isfinite(row[field.name])]
        means[field.name] = statistics.fmean(known) if known else _NAN
    return Alignment(**means)


def _turned(along_grad: float, along_estimate: float, between: float, ratio: float) -> float:
    """cos(u + q u*, x) from cos(u, x), cos(u*, x), cos(u, u*) and q; nan if u + q u* vanishes."""
    if ratio == 0:
        return along_grad
    length = 1.0 + ratio * ratio + 2.0 * ratio * between
    return (along_grad + ratio * along_estimate) / math.sqrt(length) if length > 0 else _NAN
