"""Early-learning regularization (Liu et al., 2020, arXiv 2007.00151)."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam._checks import non_negative
from ncsam._errors import bad_value
from ncsam.losses.classic import cross_entropy
from ncsam.losses.reduction import Loss, Reduction, check_logits, reduced

_CLOSEST = 1e-4  # <p, t> stays this far from 1, where the logarithm has no bottom


def elr_regularizer(logits: Tensor, memory: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """log(1 - <p, t>), t the running mean of the sample's past predictions: it pulls p towards t."""
    if check_logits(memory, "memory").shape != check_logits(logits).shape:
        raise bad_value("memory.shape", tuple(memory.shape), f"that of the logits, {tuple(logits.shape)}")
    agreement = (logits.softmax(dim=1) * memory.to(logits)).sum(dim=1)
    return reduced(torch.log1p(-agreement.clamp(max=1 - _CLOSEST)), reduction)


def elr(
    logits: Tensor, targets: Tensor, memory: Tensor, *, weight: float = 3.0, reduction: Reduction = "mean"
) -> Tensor:
    """CE + weight log(1 - <p, t>)."""
    weight = non_negative("weight", weight)
    regularizer = elr_regularizer(logits, memory, reduction=reduction)
    return cross_entropy(logits, targets, reduction=reduction) + weight * regularizer


class ELR(Loss):
    """`elr`, called with (logits, targets, memory)."""

    def __init__(self, weight: float = 3.0, reduction: Reduction = "mean") -> None:
        super().__init__(elr, weight=weight, reduction=reduction)
