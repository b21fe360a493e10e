"""The generalized Jensen-Shannon loss over two views (Englesson and Azizpour, 2021, arXiv 2105.04522)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from ncsam._trees import join_rows
from ncsam.losses import gjs, js
from ncsam.methods.base import LossOutput, Method, Plan, Presets, State
from ncsam.methods.registry import register

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class GJS(Method):
    r"""Jensen-Shannon divergence between the label and the predictions on two augmented views of an image. It is
    bounded like `js`, and also asks the two predictions to agree.

    .. math::
        L = Z \left( \pi\, \mathrm{KL}(e_y \| m) + \frac{1 - \pi}{2} \sum_{k=1}^{2} \mathrm{KL}(p^{(k)} \| m) \right),
        \qquad m = \pi e_y + \frac{1 - \pi}{2} \sum_k p^{(k)}, \qquad Z = \frac{-1}{(1 - \pi) \log(1 - \pi)}

    :math:`p^{(k)}` is the prediction on view k, :math:`m` the mixture, :math:`\pi` the weight of the label, :math:`Z` a
    constant and KL the Kullback-Leibler divergence; the mean is taken over the batch.

    Both views are augmented strongly (as by the authors: one operation of RandAugment at magnitude 3 of 30, and
    Cutout), or only shifted where the run has no augmentation. `view` names another recipe; "train" is the run's own.
    Labels that NCSAM flips enter through `js` on the mean of the two views' logits. The presets are the authors'
    settings, which they tuned for each noise.

    Args:
        pi: Weight of the label, in (0, 1).
        view: The augmented view to train on; "train" is the run's own.

    References:
        Englesson and Azizpour, 2021, arXiv 2105.04522.
    """

    about = "Jensen-Shannon divergence between the label and two strongly augmented views"
    worse_with_sam = ("digits symmetric 40", "digits pair flip 40")
    cost = "two views in each step"
    presets: ClassVar[Presets] = {
        "cifar10-symmetric20": {"pi": 0.3},
        "cifar10-symmetric40": {"pi": 0.9},
        "cifar10-symmetric60": {"pi": 0.1},
        "cifar10-symmetric80": {"pi": 0.1},
        "cifar10-asymmetric": {"pi": 0.3},
        "cifar100-symmetric20": {"pi": 0.3},
        "cifar100-symmetric40": {"pi": 0.5},
        "cifar100-symmetric60": {"pi": 0.9},
        "cifar100-symmetric80": {"pi": 0.1},
        "cifar100-asymmetric20": {"pi": 0.5},
        "cifar100-asymmetric40": {"pi": 0.1},
    }

    def __init__(self, pi: float = 0.3, view: str = "auto:light") -> None:
        self.pi = pi
        self.views = (view, view)
        self.criterion(torch.zeros(2, 2), torch.tensor([0, 1]))  # a wrong pi is said now

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the rows of the first view, then those of the second.

        Args:
            batch: Two views of each sample.
            networks: Not used.
            state: Not used.
        """
        return (Plan(join_rows(batch.views), batch.labels, batch.index),)

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The divergence between label and both predictions; the outcome has the mean logits of the views.

        Args:
            network: The model.
            plan: Rows of two views, with one label for each pair.
        """
        first, second = network(plan.inputs).chunk(2)
        return LossOutput(gjs((first, second), plan.targets, pi=self.pi), (first + second) / 2, plan.targets)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean `js` of one set of logits.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,), or probabilities (rows, classes).
        """
        return js(logits, targets, pi=self.pi)
