"""The Jensen-Shannon loss (Englesson and Azizpour, 2021, arXiv 2105.04522)."""

from __future__ import annotations

from typing import ClassVar

from ncsam.losses import js
from ncsam.methods.base import Presets
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.registry import register


@register
class JS(LossMethod):
    r"""Jensen-Shannon divergence between the label and the prediction. It is bounded, and lies between cross-entropy
    (small weight of the label) and the mean absolute error (large weight).

    .. math::
        L = Z \left( \pi\, \mathrm{KL}(e_y \| m) + (1 - \pi)\, \mathrm{KL}(p \| m) \right), \qquad
        m = \pi e_y + (1 - \pi) p, \qquad Z = \frac{-1}{(1 - \pi) \log(1 - \pi)}

    :math:`m` is the mixture of label and prediction, :math:`\pi` the weight of the label, :math:`Z` a constant and KL
    the Kullback-Leibler divergence; the mean is taken over the batch.

    By theory pi grows with the noise; the presets are the authors' settings, which they tuned for each noise. Their
    models train on strong views: one operation of RandAugment at magnitude 3 of 30 and Cutout. `view` names the
    recipe ("auto:light": this one, or shifts alone where the run has no augmentation; "train": the run's own).

    Args:
        pi: Weight of the label, in (0, 1).
        view: The augmented view to train on; "train" is the run's own.

    References:
        Englesson and Azizpour, 2021, arXiv 2105.04522.
    """

    about = "Jensen-Shannon divergence between label and prediction"
    worse_with_sam = ("digits symmetric 40", "digits pair flip 40")
    presets: ClassVar[Presets] = {
        "cifar10-symmetric20": {"pi": 0.7},
        "cifar10-symmetric40": {"pi": 0.7},
        "cifar10-symmetric60": {"pi": 0.9},
        "cifar10-symmetric80": {"pi": 0.9},
        "cifar10-asymmetric": {"pi": 0.3},
        "cifar100-symmetric40": {"pi": 0.3},
        "cifar100-asymmetric40": {"pi": 0.5},
    }

    def __init__(self, pi: float = 0.3, view: str = "auto:light") -> None:
        super().__init__(js, pi=pi)
        self.views = (view,)
