"""Stochastic label noise: targets disturbed anew in every step (Chen et al., 2021, ICLR)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam.losses.classic import cross_entropy
from ncsam.losses.reduction import Loss, Reduction, non_negative


def noisy_targets(
    labels: Tensor, num_classes: int, sigma: float = 1.0, *, generator: torch.Generator | None = None
) -> Tensor:
    """e_y + sigma z, z standard normal: targets for `cross_entropy`, not probabilities."""
    non_negative(sigma=sigma)
    z = torch.randn(len(labels), num_classes, generator=generator).to(labels.device)
    return F.one_hot(labels, num_classes) + sigma * z


def sln(
    logits: Tensor,
    targets: Tensor,
    *,
    sigma: float = 1.0,
    generator: torch.Generator | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """-sum_c (e_y + sigma z)_c log p_c, with z drawn in every call; `noisy_targets` to draw once."""
    disturbed = noisy_targets(targets, logits.shape[1], sigma, generator=generator)
    return cross_entropy(logits, disturbed.to(logits.dtype), reduction=reduction)


class SLN(Loss):
    """`sln`."""

    def __init__(self, sigma: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(sln, sigma=sigma, reduction=reduction)
