"""Generalized cross-entropy, L_q, plain and truncated (Zhang and Sabuncu, 2018, arXiv 1805.07836)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam._checks import number
from ncsam.losses.reduction import Loss, Reduction, check_logits, of_target, reduced


def gce(logits: Tensor, targets: Tensor, *, q: float = 0.7, reduction: Reduction = "mean") -> Tensor:
    r"""L_q = (1 - p_y^q) / q, between cross-entropy (q to 0) and the mean absolute error (q = 1).

    Its gradient is that of cross-entropy times p_y^q: what the network does not believe weighs little.
    """
    _check_power(q)
    losses = -torch.expm1(q * F.log_softmax(check_logits(logits), dim=1)) / q
    return reduced(of_target(losses, targets), reduction)


def truncated_gce(
    logits: Tensor, targets: Tensor, *, q: float = 0.7, k: float = 0.5, reduction: Reduction = "mean"
) -> Tensor:
    """L_q where p_y > k, and the constant L_q(k), without a gradient, elsewhere."""
    _check_power(q)
    number("k", k, "a probability in (0, 1)", lambda v: 0 < v < 1)
    log_p = F.log_softmax(check_logits(logits), dim=1)
    losses = -torch.expm1(q * log_p) / q
    return reduced(of_target(losses.clamp(max=(1 - k**q) / q), targets), reduction)


class GCE(Loss):
    """`gce`."""

    def __init__(self, q: float = 0.7, reduction: Reduction = "mean") -> None:
        super().__init__(gce, q=q, reduction=reduction)


class TruncatedGCE(Loss):
    """`truncated_gce`."""

    def __init__(self, q: float = 0.7, k: float = 0.5, reduction: Reduction = "mean") -> None:
        super().__init__(truncated_gce, q=q, k=k, reduction=reduction)


def _check_power(q: float) -> None:
    number("q", q, "a number in (0, 1]; for q = 0 the loss is cross-entropy", lambda v: 0 < v <= 1)
