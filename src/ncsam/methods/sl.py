"""Symmetric cross-entropy learning (Wang et al., 2019, arXiv 1908.06112)."""

from __future__ import annotations

from typing import ClassVar

from ncsam.losses import symmetric
from ncsam.losses.symmetric import LOG_ZERO
from ncsam.methods.base import Presets
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.registry import register


@register
class SL(LossMethod):
    r"""Symmetric cross-entropy: cross-entropy, and the reverse of it, which is bounded. The first learns hard classes,
    the second tolerates noise.

    .. math:: L = \frac1{|B|} \sum_{i \in B} \left[ -\alpha \log p_{y_i} - \beta A (1 - p_{y_i}) \right]

    :math:`\alpha` and :math:`\beta` weight the two, and :math:`A` (`log_zero`) stands for :math:`\log 0`, :math:`\log
    10^{-4}` in the authors' code.

    Args:
        alpha: Weight of cross-entropy.
        beta: Weight of reverse cross-entropy.
        log_zero: A negative number that stands for log 0.

    References:
        Wang et al., 2019, arXiv 1908.06112.
    """

    about = "cross-entropy and reverse cross-entropy"
    presets: ClassVar[Presets] = {"cifar10": {"alpha": 0.1, "beta": 1.0}, "cifar100": {"alpha": 6.0, "beta": 0.1}}

    def __init__(self, alpha: float = 0.1, beta: float = 1.0, log_zero: float = LOG_ZERO) -> None:
        super().__init__(symmetric, alpha=alpha, beta=beta, log_zero=log_zero)
