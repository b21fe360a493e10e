"""Early-learning regularization (Liu et al., 2020, arXiv 2007.00151)."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam._arguments import non_negative
from ncsam._errors import bad_value
from ncsam.losses.classic import cross_entropy
from ncsam.losses.reduction import Loss, Reduction, check_logits, reduced

_CLOSEST = 1e-4  # <p, t> stays this far from 1, where the logarithm has no bottom


def elr_regularizer(logits: Tensor, memory: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """log(1 - <p, t>), where t is the running mean of a sample's past predictions; it pulls p towards t.

    Args:
        logits: Real numbers (samples, classes).
        memory: t, (samples, classes).
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Liu et al., 2020, Early-learning regularization, arXiv 2007.00151.
    """
    if check_logits(memory, "memory").shape != check_logits(logits).shape:
        raise bad_value("memory.shape", tuple(memory.shape), f"the shape of the logits, {tuple(logits.shape)}")
    agreement = (logits.softmax(dim=1) * memory.to(logits)).sum(dim=1)
    return reduced(torch.log1p(-agreement.clamp(max=1 - _CLOSEST)), reduction)


def elr(
    logits: Tensor, targets: Tensor, memory: Tensor, *, weight: float = 3.0, reduction: Reduction = "mean"
) -> Tensor:
    """-log p_y + weight log(1 - <p, t>), where t is the running mean of a sample's past predictions.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        memory: t, (samples, classes).
        weight: Weight of the regularizer, 0 or larger; the authors have 3 on CIFAR-10 and 7 on CIFAR-100.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Liu et al., 2020, Early-learning regularization, arXiv 2007.00151.
    """
    weight = non_negative("weight", weight)
    regularizer = elr_regularizer(logits, memory, reduction=reduction)
    return cross_entropy(logits, targets, reduction=reduction) + weight * regularizer


class ELR(Loss):
    """`elr` as a module, called with (logits, targets, memory).

    Args:
        weight: Weight of the regularizer, 0 or larger.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, weight: float = 3.0, reduction: Reduction = "mean") -> None:
        super().__init__(elr, weight=weight, reduction=reduction)
