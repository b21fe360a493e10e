"""The temperature under which logits of held-out samples fit their labels best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_RANGE = (math.log(1e-4), math.log(1e4))
_STEPS = 60
_CLOSE = 1e-9  # a Newton's step this short ends the search: the next would be of the order of its square


@torch.no_grad()
def best_scale(logits: Tensor, y: Tensor) -> float:
    """The factor b = 1 / temperature that minimizes the cross-entropy of `softmax(b * logits)` (Guo et al. 2017).

    The loss is convex in b with derivative g = mean(E_p[z] - z_y), which rises with the mean variance of z under p.
    Its root is found by Newton's steps on log b, and by bisection where these leave the bracket or shrink slowly.

    Args:
        logits: scores of held-out samples, (N, K).
        y: their labels, (N,).
    """
    z = logits.double()
    own = z.gather(1, y.unsqueeze(1)).mean()
    low, high = _LOG_RANGE
    at = 0.0  # log b
    last, before = high - low, high - low  # lengths of the last two steps
    for _ in range(_STEPS):
        p = (math.exp(at) * z).softmax(dim=1)
        expected = (p * z).sum(dim=1)
        slope = float(expected.mean() - own)
        if slope > 0:
            high = at
        else:
            low = at
        curvature = math.exp(at) * float((p * z.square()).sum(dim=1).sub_(expected.square()).mean())
        step = -slope / curvature if curvature > 0 else math.inf
        if abs(step) < _CLOSE:
            return math.exp(at + step)
        if not (low < at + step < high and abs(step) < before / 2):
            step = (low + high) / 2 - at
        at, last, before = at + step, abs(step), last
    return math.exp(at)
