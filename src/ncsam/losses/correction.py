"""Forward and backward correction by a transition matrix, and its estimate (Patrini et al., 2017, arXiv 1609.03683).

T[i, j] = P(observed label j | true class i).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.losses.reduction import Reduction, of_target, reduced


def forward_corrected(logits: Tensor, targets: Tensor, transition: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """-log (T^T p)_y: the cross-entropy of what the network says the *observed* label will be. With T = I it is CE."""
    log_p, log_t = F.log_softmax(logits, dim=1), check_transition(transition, logits).log()
    # in logarithms, so that T = I is cross-entropy to the last bit
    if targets.is_floating_point():
        return reduced(of_target(-torch.logsumexp(log_p.unsqueeze(2) + log_t, dim=1), targets), reduction)
    return reduced(-torch.logsumexp(log_p + log_t.T[targets], dim=1), reduction)


def backward_corrected(
    logits: Tensor, targets: Tensor, transition: Tensor, *, floor: float = 1e-7, reduction: Reduction = "mean"
) -> Tensor:
    r"""(T^{-1} l)_y with l_c = -log max(p_c, floor): unbiased, E[T^{-1} l]_{y | i} = l_i, but not bounded below.

    `floor` keeps it bounded; the authors' code has the same. A singular T (two classes with one row, as where one
    sample is the anchor of both) has no inverse: its pseudo-inverse stands in, which tells such classes apart no more.
    """
    losses = -F.log_softmax(logits, dim=1)
    if floor > 0:
        losses = losses.clamp(max=-math.log(floor))
    inverse = inverse_transition(check_transition(transition, logits))
    return reduced(of_target(losses @ inverse.T, targets), reduction)


def estimate_transition(probabilities: Tensor, *, quantile: float | None = 0.97) -> Tensor:
    """T from a network's predictions (samples, classes), by anchor points.

    Row i is the prediction on the sample with the largest p_i, among those whose p_i lies below the given quantile of
    p_i (the most certain ones are outliers; `None` keeps them). Rows are normalised.
    """
    if probabilities.ndim != 2 or len(probabilities) == 0:
        raise bad_value("probabilities.shape", tuple(probabilities.shape), "(samples, classes), one sample or more")
    if quantile is not None and not 0 < quantile <= 1:
        raise bad_value("quantile", quantile, "a share in (0, 1], or None")
    candidates = probabilities.clone()
    if quantile is not None:
        ranked = probabilities.sort(dim=0).values
        limit = ranked[min(len(ranked) - 1, int(quantile * len(ranked)))]
        candidates[(probabilities >= limit) & (ranked[0] < limit)] = -1.0
    rows = probabilities[candidates.argmax(dim=0)]
    return rows / rows.sum(dim=1, keepdim=True)


def inverse_transition(transition: Tensor) -> Tensor:
    """T^{-1}, or the pseudo-inverse of a singular T."""
    inverse: Tensor
    inverse, failed = torch.linalg.inv_ex(transition)
    return torch.linalg.pinv(transition) if bool(failed) or not bool(inverse.isfinite().all()) else inverse


def check_transition(transition: Tensor, like: Tensor) -> Tensor:
    """A square matrix of probabilities, in the type and on the device of the logits."""
    classes = like.shape[1]
    if transition.shape != (classes, classes):
        raise bad_value("transition.shape", tuple(transition.shape), f"({classes}, {classes}), as there are classes")
    return transition.to(like)


class _Corrected(nn.Module):
    transition: Tensor

    def __init__(self, transition: Tensor, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.register_buffer("transition", transition)
        self.reduction = reduction


class Forward(_Corrected):
    """`forward_corrected` with a transition matrix kept as a buffer."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return forward_corrected(logits, targets, self.transition, reduction=self.reduction)


class Backward(_Corrected):
    """`backward_corrected` with a transition matrix kept as a buffer."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return backward_corrected(logits, targets, self.transition, reduction=self.reduction)
