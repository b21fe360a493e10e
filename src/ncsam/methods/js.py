"""The Jensen-Shannon loss (Englesson and Azizpour, 2021, arXiv 2105.04522)."""

from __future__ import annotations

from ncsam.losses import js
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.registry import register


@register
class JS(LossMethod):
    """L = Z (pi KL(y | m) + (1 - pi) KL(p | m)), m = pi y + (1 - pi) p, Z = -1 / ((1 - pi) log(1 - pi)).

    The more noise, the larger pi would be by theory; the authors' tuned values are in GJS's presets.
    """

    def __init__(self, pi: float = 0.3) -> None:
        super().__init__(js, pi=pi)
