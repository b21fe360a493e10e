"""Generalized cross-entropy (Zhang and Sabuncu, 2018, arXiv 1805.07836)."""

from __future__ import annotations

from ncsam.losses import gce
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.registry import register


@register
class GCE(LossMethod):
    """L = (1 - p_y^q) / q; q = .7 is the authors'.

    Args:
        q: In (0, 1]; near 0 the loss is cross-entropy, at 1 the mean absolute error.

    References:
        Zhang and Sabuncu, 2018, arXiv 1805.07836.
    """

    about = "generalized cross-entropy, between cross-entropy and the mean absolute error"

    def __init__(self, q: float = 0.7) -> None:
        super().__init__(gce, q=q)
