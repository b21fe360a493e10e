"""RegCE, regularized cross-entropy (Kang et al., 2023, arXiv 2307.05025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from ncsam.methods.averaging import AveragingMethod
from ncsam.methods.base import Plan, State
from ncsam.methods.registry import register

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class RegCE(AveragingMethod):
    r"""Cross-entropy on strongly augmented images, predicting with averaged weights. Together with a sharp decay of the
    learning rate, regularization that is used anyway stands in for a special method.

    .. math:: L = -\frac1{|B|} \sum_{i \in B} \log p_{y_i}(a(x_i)), \qquad \bar w \leftarrow d\, \bar w + (1 - d)\, w

    :math:`a` is the augmentation, :math:`w` are the weights, :math:`\bar w` their running average, which predicts, and
    :math:`d` is its `decay`.

    `view` names the augmentation ("auto": strong, or only shifts where the run has none; "train": the run's own) and
    `decay` the averaging (see `AveragingMethod`). The learning rate is the run's: `--schedule steps` drops it by 10 at
    half and at three quarters of training. A re-implementation, untuned: the authors' decay factor, averaging rate and
    augmentation policy are not known to us.

    Args:
        view: The augmented view to train on; "train" is the run's own.
        decay: Decay of the running average of the weights, in [0, 1).

    References:
        Kang et al., 2023, arXiv 2307.05025.
    """

    about = "strong augmentation, averaged weights, sharp decay"
    cost = "a copy of the weights"

    def __init__(self, view: str = "auto", decay: float = 0.999) -> None:
        super().__init__(decay)
        self.views = (view,)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the whole batch, in the augmented view, under its observed labels.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: Not used.
        """
        return (Plan(batch.views[0], batch.labels, batch.index),)
