"""The temperature under which logits of held-out samples fit their labels best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG_RANGE = (math.log(1e-4), math.log(1e4))
_STEPS = 50


@torch.no_grad()
def best_scale(logits: Tensor, y: Tensor) -> float:
    """The factor b = 1 / temperature that minimizes the cross-entropy of `softmax(b * logits)` (Guo et al. 2017).

    The loss is convex in b with derivative mean(E_p[z] - z_y), whose root is found by bisection of log b.

    Args:
        logits: scores of held-out samples, (N, K).
        y: their labels, (N,).
    """
    z = logits.double()
    own = z.gather(1, y.unsqueeze(1)).mean()
    low, high = _LOG_RANGE
    for _ in range(_STEPS):
        middle = (low + high) / 2
        expected = ((math.exp(middle) * z).softmax(dim=1) * z).sum(dim=1).mean()
        if expected > own:
            high = middle
        else:
            low = middle
    return math.exp((low + high) / 2)
