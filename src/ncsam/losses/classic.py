"""Cross-entropy, label smoothing and the mean absolute error."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ncsam._checks import below_one
from ncsam.losses.reduction import Loss, Reduction, check_logits, of_target, reduced


def cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, reduction: Reduction = "mean") -> Tensor:
    """-log p_y; with `smoothing` s, of the target (1 - s) e_y + s / C."""
    smoothing = below_one("smoothing", smoothing)
    losses = -F.log_softmax(check_logits(logits), dim=1)
    values = of_target(losses, targets)
    if smoothing:
        values = (1 - smoothing) * values + smoothing * losses.mean(dim=1)
    return reduced(values, reduction)


def mae(logits: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """1 - p_y: half of the distance sum_c |e_y - p|_c (Ghosh et al., 2017, arXiv 1712.09482).

    Bounded and symmetric: summed over all labels it is C - 1 whatever p is, which is what makes it robust.
    """
    return reduced(of_target(1 - check_logits(logits).softmax(dim=1), targets), reduction)


class CE(Loss):
    """`cross_entropy`."""

    def __init__(self, smoothing: float = 0.0, reduction: Reduction = "mean") -> None:
        super().__init__(cross_entropy, smoothing=smoothing, reduction=reduction)


class LabelSmoothing(CE):
    """`cross_entropy` with smoothing, .1 by default (Szegedy et al., 2016, arXiv 1512.00567)."""

    def __init__(self, smoothing: float = 0.1, reduction: Reduction = "mean") -> None:
        super().__init__(smoothing, reduction)


class MAE(Loss):
    """`mae`."""

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__(mae, reduction=reduction)
