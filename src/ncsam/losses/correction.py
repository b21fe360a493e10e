"""Forward and backward correction by a transition matrix T[i, j] = P(given label j | true class i), and its estimate.

References:
    Patrini et al., 2017, Making deep neural networks robust to label noise, arXiv 1609.03683.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import below_one, number
from ncsam._errors import bad_value
from ncsam.losses.reduction import (
    Reduction,
    check_logits,
    check_targets,
    of_target,
    reduced,
    refuse_out_of_range,
)


def forward_corrected(logits: Tensor, targets: Tensor, transition: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """-log (T^T p)_y, the cross-entropy of the prediction of the *given* label. With T = I it is cross-entropy.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        transition: T, (classes, classes), with T[i, j] = P(given label j | true class i).
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Patrini et al., 2017, arXiv 1609.03683.
    """
    targets = check_targets(targets, check_logits(logits))
    log_p, log_t = F.log_softmax(logits, dim=1), check_transition(transition, logits).log()
    # in logarithms, so that T = I is cross-entropy to the last bit
    if targets.is_floating_point():
        return reduced(of_target(-torch.logsumexp(log_p.unsqueeze(2) + log_t, dim=1), targets), reduction)
    if targets.device.type == "cpu" and len(targets):  # an index below 0 would count from the end
        refuse_out_of_range(targets, logits.shape[1])
    return reduced(-torch.logsumexp(log_p + log_t.T[targets], dim=1), reduction)


def backward_corrected(
    logits: Tensor, targets: Tensor, transition: Tensor, *, floor: float = 1e-7, reduction: Reduction = "mean"
) -> Tensor:
    """(T^{-1} l)_y with l_c = -log max(p_c, floor): unbiased, since E[(T^{-1} l)_y | true class i] = l_i.

    Args:
        logits: Real numbers (samples, classes).
        targets: Class numbers (samples,) or probabilities (samples, classes).
        transition: T, (classes, classes). A singular T, as where one sample is the anchor of two classes, has no
            inverse; its pseudo-inverse is used, which cannot tell such classes apart.
        floor: Lower bound of probabilities, in [0, 1). It keeps the loss bounded; 0 turns it off.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or a tensor (samples,) with `reduction="none"`.

    References:
        Patrini et al., 2017, arXiv 1609.03683.
    """
    targets = check_targets(targets, check_logits(logits))
    losses = -F.log_softmax(logits, dim=1)
    if below_one("floor", floor) > 0:
        losses = losses.clamp(max=-math.log(floor))
    inverse = inverse_transition(check_transition(transition, logits))
    return reduced(of_target(losses @ inverse.T, targets), reduction)


def estimate_transition(probabilities: Tensor, *, quantile: float | None = 0.97) -> Tensor:
    """Estimate the transition matrix from predictions, by anchor points.

    Row i of T is the prediction on the sample with the largest p_i, among those whose p_i lies below a quantile of p_i:
    the most certain predictions are outliers. Rows are normalized to sum 1.

    Args:
        probabilities: Predictions for the training samples, (samples, classes).
        quantile: Share in (0, 1]; `None` keeps the outliers.

    Returns:
        T, (classes, classes).

    References:
        Patrini et al., 2017, arXiv 1609.03683.
    """
    if not len(check_logits(probabilities, "probabilities")):
        raise bad_value("probabilities.shape", tuple(probabilities.shape), "(samples, classes), one sample or more")
    if quantile is not None:
        check_quantile(quantile)
    candidates = probabilities.clone()
    if quantile is not None:
        ranked = probabilities.sort(dim=0).values
        limit = ranked[min(len(ranked) - 1, int(quantile * len(ranked)))]
        candidates[(probabilities >= limit) & (ranked[0] < limit)] = -1.0
    rows = probabilities[candidates.argmax(dim=0)]
    return rows / rows.sum(dim=1, keepdim=True)


def check_quantile(quantile: float) -> float:
    """A share of which something is left.

    Args:
        quantile: A share in (0, 1].
    """
    return number("quantile", quantile, "a share in (0, 1], or None", lambda q: 0 < q <= 1)


def inverse_transition(transition: Tensor) -> Tensor:
    """T^{-1}, or the pseudo-inverse of a singular T.

    Args:
        transition: T, (classes, classes).
    """
    matrix = transition.float() if transition.dtype.itemsize < 4 else transition  # half has no inverse
    inverse: Tensor
    inverse, failed = torch.linalg.inv_ex(matrix)
    if bool(failed) or not bool(inverse.isfinite().all()):
        if not bool(matrix.isfinite().all()):
            raise bad_value("transition", "not finite", "a matrix of finite probabilities")
        inverse = torch.linalg.pinv(matrix)
    return inverse.to(transition)


def check_transition(transition: Tensor, like: Tensor) -> Tensor:
    """A square matrix of probabilities, in the type and on the device of the logits.

    Args:
        transition: T, (classes, classes).
        like: The logits.
    """
    classes = like.shape[1]
    if not isinstance(transition, Tensor) or transition.is_complex():
        raise bad_value("transition", type(transition).__name__, "a tensor of probabilities (classes, classes)")
    if transition.shape != (classes, classes):
        raise bad_value(
            "transition.shape", tuple(transition.shape), f"({classes}, {classes}), one row and one column per class"
        )
    return transition.to(like)


class _Corrected(nn.Module):
    transition: Tensor

    def __init__(self, transition: Tensor, reduction: Reduction = "mean") -> None:
        super().__init__()
        if not isinstance(transition, Tensor) or transition.ndim != 2:
            raise bad_value("transition", type(transition).__name__, "a tensor of probabilities (classes, classes)")
        self.register_buffer("transition", transition)
        self.reduction = reduction


class Forward(_Corrected):
    """`forward_corrected` as a module that holds the transition matrix as a buffer.

    Args:
        transition: T, (classes, classes).
        reduction: "mean", "sum" or "none".
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The forward-corrected loss.

        Args:
            logits: (samples, classes).
            targets: Class numbers (samples,), or probabilities (samples, classes).
        """
        return forward_corrected(logits, targets, self.transition, reduction=self.reduction)


class Backward(_Corrected):
    """`backward_corrected` as a module that holds the transition matrix as a buffer.

    Args:
        transition: T, (classes, classes).
        reduction: "mean", "sum" or "none".
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The backward-corrected loss.

        Args:
            logits: (samples, classes).
            targets: Class numbers (samples,), or probabilities (samples, classes).
        """
        return backward_corrected(logits, targets, self.transition, reduction=self.reduction)
