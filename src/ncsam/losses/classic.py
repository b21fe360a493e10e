"""Cross-entropy, label smoothing and the mean absolute error."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from ncsam._arguments import below_one
from ncsam.losses.reduction import Loss, Reduction, check_logits, of_target, reduced


def cross_entropy(logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, reduction: Reduction = "mean") -> Tensor:
    """Cross-entropy -log p_y; with smoothing s, that of the target (1 - s) e_y + s / C.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        smoothing: Probability in [0, 1) that is spread evenly over all classes.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    Raises:
        UsageError: An argument has the wrong type, shape or value.
    """
    smoothing = below_one("smoothing", smoothing)
    losses = -F.log_softmax(check_logits(logits), dim=1)
    values = of_target(losses, targets)
    if smoothing:
        values = (1 - smoothing) * values + smoothing * losses.mean(dim=1)
    return reduced(values, reduction)


def mae(logits: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """Mean absolute error 1 - p_y, half of the distance sum_c |e_y - p|_c.

    It is bounded and symmetric: summed over all labels it is C - 1 for every p, which makes it robust.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Ghosh et al., 2017, Robust loss functions under label noise, arXiv 1712.09482.
    """
    return reduced(of_target(1 - check_logits(logits).softmax(dim=1), targets), reduction)


class CE(Loss):
    """`cross_entropy` as a module.

    Args:
        smoothing: Probability in [0, 1) that is spread evenly over all classes.
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, smoothing: float = 0.0, reduction: Reduction = "mean") -> None:
        super().__init__(cross_entropy, smoothing=smoothing, reduction=reduction)


class LabelSmoothing(CE):
    """`cross_entropy` with label smoothing, as a module.

    Args:
        smoothing: Probability in [0, 1) that is spread evenly over all classes.
        reduction: "mean", "sum" or "none".

    References:
        Szegedy et al., 2016, Rethinking the Inception architecture, arXiv 1512.00567.
    """

    def __init__(self, smoothing: float = 0.1, reduction: Reduction = "mean") -> None:
        super().__init__(smoothing, reduction)


class MAE(Loss):
    """`mae` as a module.

    Args:
        reduction: "mean", "sum" or "none".
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__(mae, reduction=reduction)
