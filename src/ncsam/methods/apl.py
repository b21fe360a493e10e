"""Active-passive losses (Ma et al., 2020, arXiv 2006.13554)."""

from __future__ import annotations

from typing import ClassVar

from ncsam.losses import apl
from ncsam.losses.symmetric import Passive
from ncsam.methods.base import Presets
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.registry import register


@register
class APL(LossMethod):
    r"""Active passive loss: a normalized loss that raises the given label, and a bounded one that lowers the others.
    Each is robust to symmetric noise but underfits by itself; their sum fits better.

    .. math::
        L = \frac1{|B|} \sum_{i \in B} \left[ \alpha \frac{\log p_{y_i}}{\sum_c \log p_c} - \beta A (1 - p_{y_i})
        \right]

    :math:`\alpha` and :math:`\beta` weight normalized cross-entropy and reverse cross-entropy, in which :math:`A = \log
    10^{-4}` stands for :math:`\log 0`. `passive="mae"` puts the mean absolute error in the place of the latter.

    The authors also clip the gradient's norm to 5 and decay the weights little (1e-4 on CIFAR-10, 1e-5 on CIFAR-100).

    Args:
        alpha: Weight of normalized cross-entropy.
        beta: Weight of the passive loss.
        passive: The passive loss, "rce" or "mae".

    References:
        Ma et al., 2020, arXiv 2006.13554.
    """

    about = "normalized cross-entropy and a bounded loss"
    worse_with_sam = ("digits pair flip 40", "all sets together")
    presets: ClassVar[Presets] = {
        "cifar10": {"alpha": 1.0, "beta": 1.0},
        "cifar100": {"alpha": 10.0, "beta": 0.1},
        "cifar10-mae": {"alpha": 1.0, "beta": 1.0, "passive": "mae"},
        "cifar100-mae": {"alpha": 10.0, "beta": 1.0, "passive": "mae"},
    }

    def __init__(self, alpha: float = 1.0, beta: float = 1.0, passive: Passive = "rce") -> None:
        super().__init__(apl, alpha=alpha, beta=beta, passive=passive)
