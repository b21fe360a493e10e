"""Stochastic label noise: targets with fresh Gaussian noise in every step."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam._arguments import non_negative, positive
from ncsam._errors import bad_value
from ncsam.losses.classic import cross_entropy
from ncsam.losses.reduction import (
    Loss,
    Reduction,
    as_weights,
    check_generator,
    check_logits,
    check_targets,
)

_MOST_CLASSES = 1_000_000
_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def noisy_targets(
    labels: Tensor, num_classes: int, sigma: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """e_y + sigma z with z standard normal: targets for `cross_entropy`, not probabilities.

    Args:
        labels: Class numbers (samples,).
        num_classes: Number of classes.
        sigma: Standard deviation of the noise, 0 or larger.
        generator: Random numbers for z.

    Returns:
        Targets (samples, classes).

    References:
        Chen et al., 2021, Noise against noise: stochastic label noise helps combat inherent label noise, ICLR.
    """
    sigma = non_negative("sigma", sigma)
    check_generator(generator)
    num_classes = positive("num_classes", num_classes, _MOST_CLASSES)
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.dtype not in _WHOLE:
        raise bad_value("labels", labels, "a tensor of class numbers, one per sample")
    z = torch.randn(len(labels), num_classes, generator=generator).to(labels.device)
    return as_weights(labels, z) + sigma * z


def sln(
    logits: Tensor,
    targets: Tensor,
    *,
    sigma: float = 1.0,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """-sum_c (e_y + sigma z)_c log p_c, with z drawn in every call; `noisy_targets` draws once.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,).
        sigma: Standard deviation of the noise, 0 or larger.
        generator: Random numbers for z.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Chen et al., 2021, Noise against noise, ICLR.
    """
    if check_targets(targets, check_logits(logits)).is_floating_point():
        raise bad_value("targets.dtype", str(targets.dtype), "class numbers, to which the noise is added")
    disturbed = noisy_targets(targets, logits.shape[1], sigma, generator=generator)
    return cross_entropy(logits, disturbed.to(logits.dtype), reduction=reduction)


class SLN(Loss):
    """`sln` as a module.

    Args:
        sigma: Standard deviation of the noise, 0 or larger.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, sigma: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(sln, sigma=sigma, reduction=reduction)
