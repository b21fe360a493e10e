"""Generalized cross-entropy L_q, plain and truncated."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam._arguments import number
from ncsam.losses.reduction import Loss, Reduction, check_logits, of_target, reduced


def gce(logits: Tensor, targets: Tensor, *, q: float = 0.7, reduction: Reduction = "mean") -> Tensor:
    """Generalized cross-entropy L_q = (1 - p_y^q) / q, between cross-entropy (q to 0) and `mae` (q = 1).

    Its gradient is that of cross-entropy times p_y^q: labels that the model finds unlikely weigh little.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        q: In (0, 1]; the authors have .7.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    Examples:
        >>> import torch
        >>> float(gce(torch.zeros(1, 4), torch.tensor([2]), q=1.0))  # 1 - 1/4
        0.75

    References:
        Zhang and Sabuncu, 2018, Generalized cross entropy loss, arXiv 1805.07836.
    """
    _check_power(q)
    losses = -torch.expm1(q * F.log_softmax(check_logits(logits), dim=1)) / q
    return reduced(of_target(losses, targets), reduction)


def truncated_gce(
    logits: Tensor, targets: Tensor, *, q: float = 0.7, k: float = 0.5, reduction: Reduction = "mean"
) -> Tensor:
    """L_q where p_y > k, and the constant L_q(k), which has no gradient, elsewhere.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        q: In (0, 1].
        k: Probability in (0, 1) below which a sample is ignored.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Zhang and Sabuncu, 2018, arXiv 1805.07836.
    """
    _check_power(q)
    number("k", k, "a probability in (0, 1)", lambda v: 0 < v < 1)
    log_p = F.log_softmax(check_logits(logits), dim=1)
    losses = -torch.expm1(q * log_p) / q
    return reduced(of_target(losses.clamp(max=(1 - k**q) / q), targets), reduction)


class GCE(Loss):
    """`gce` as a module.

    Args:
        q: In (0, 1].
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, q: float = 0.7, reduction: Reduction = "mean") -> None:
        super().__init__(gce, q=q, reduction=reduction)


class TruncatedGCE(Loss):
    """`truncated_gce` as a module.

    Args:
        q: In (0, 1].
        k: Probability in (0, 1) below which a sample is ignored.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, q: float = 0.7, k: float = 0.5, reduction: Reduction = "mean") -> None:
        super().__init__(truncated_gce, q=q, k=k, reduction=reduction)


def _check_power(q: float) -> None:
    number("q", q, "a number in (0, 1]; for q = 0 the loss is cross-entropy", lambda v: 0 < v <= 1)
