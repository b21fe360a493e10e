"""Symmetric cross-entropy and the active-passive losses."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from ncsam._arguments import choice, non_negative, number
from ncsam.losses.classic import cross_entropy, mae
from ncsam.losses.reduction import Loss, Reduction, check_logits, of_target, reduced

#: log 0 in the reverse cross-entropy, as the authors' code has it.
LOG_ZERO = math.log(1e-4)
Passive = Literal["mae", "rce"]


def rce(logits: Tensor, targets: Tensor, *, log_zero: float = LOG_ZERO, reduction: Reduction = "mean") -> Tensor:
    """Reverse cross-entropy -sum_c p_c log e_y[c] = -A (1 - p_y), where A stands for log 0.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        log_zero: A, a negative number; the authors have log 1e-4.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Wang et al., 2019, Symmetric cross entropy, arXiv 1908.06112.
    """
    log_zero = number("log_zero", log_zero, "a negative number", lambda v: v < 0)
    return -log_zero * mae(logits, targets, reduction=reduction)


def nce(logits: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Normalized cross-entropy log p_y / sum_c log p_c: in (0, 1), and 1 when summed over all labels.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Ma et al., 2020, Normalized loss functions, arXiv 2006.13554.
    """
    log_p = F.log_softmax(check_logits(logits), dim=1)
    return reduced(of_target(log_p / log_p.sum(dim=1, keepdim=True), targets), reduction)


def symmetric(
    logits: Tensor,
    targets: Tensor,
    *,
    alpha: float = 0.1,
    beta: float = 1.0,
    log_zero: float = LOG_ZERO,
    reduction: Reduction = "mean",
) -> Tensor:
    """Symmetric cross-entropy: alpha CE + beta RCE.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        alpha: Weight of cross-entropy, 0 or larger.
        beta: Weight of reverse cross-entropy, 0 or larger.
        log_zero: A negative number that stands for log 0 in reverse cross-entropy.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Wang et al., 2019, Symmetric cross entropy, arXiv 1908.06112.
    """
    alpha, beta = non_negative("alpha", alpha), non_negative("beta", beta)
    reverse = rce(logits, targets, log_zero=log_zero, reduction=reduction)
    return alpha * cross_entropy(logits, targets, reduction=reduction) + beta * reverse


def apl(
    logits: Tensor,
    targets: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    passive: Passive = "rce",
    reduction: Reduction = "mean",
) -> Tensor:
    """Active-passive loss: alpha NCE + beta MAE, or alpha NCE + beta RCE.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        alpha: Weight of the active part, normalized cross-entropy, 0 or larger.
        beta: Weight of the passive part, 0 or larger.
        passive: "mae" or "rce".
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Ma et al., 2020, Normalized loss functions, arXiv 2006.13554.
    """
    alpha, beta = non_negative("alpha", alpha), non_negative("beta", beta)
    choice("passive", passive, get_args(Passive))
    second = mae if passive == "mae" else rce
    return alpha * nce(logits, targets, reduction=reduction) + beta * second(logits, targets, reduction=reduction)


class RCE(Loss):
    """`rce` as a module.

    Args:
        log_zero: A negative number that stands for log 0.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, log_zero: float = LOG_ZERO, reduction: Reduction = "mean") -> None:
        super().__init__(rce, log_zero=log_zero, reduction=reduction)


class NCE(Loss):
    """`nce` as a module.

    Args:
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__(nce, reduction=reduction)


class Symmetric(Loss):
    """`symmetric` as a module.

    Args:
        alpha: Weight of cross-entropy, 0 or larger.
        beta: Weight of reverse cross-entropy, 0 or larger.
        log_zero: A negative number that stands for log 0.
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self, alpha: float = 0.1, beta: float = 1.0, log_zero: float = LOG_ZERO, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(symmetric, alpha=alpha, beta=beta, log_zero=log_zero, reduction=reduction)


class APL(Loss):
    """`apl` as a module.

    Args:
        alpha: Weight of the active part, 0 or larger.
        beta: Weight of the passive part, 0 or larger.
        passive: "mae" or "rce".
        reduction: "mean", "sum" or "none".
    """

    def __init__(
        self, alpha: float = 1.0, beta: float = 1.0, passive: Passive = "rce", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(apl, alpha=alpha, beta=beta, passive=passive, reduction=reduction)
