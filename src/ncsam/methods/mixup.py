"""Mixup (Zhang et al., 2018, arXiv 1710.09412)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import Tree, first_leaf, tree_map
from ncsam.methods.base import Method, Plan, State
from ncsam.methods.registry import register

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


@register
class Mixup(Method):
    r"""Inputs and labels are mixed in pairs. A model that is linear between samples memorizes fewer wrong labels.

    .. math::
        L = -\frac1{|B|} \sum_{i \in B} \left[ \lambda \log p_{y_i}(\tilde x_i) + (1 - \lambda) \log p_{y_j}(\tilde
        x_i) \right], \qquad \tilde x_i = \lambda x_i + (1 - \lambda) x_j, \qquad
        \lambda \sim \mathrm{Beta}(\alpha, \alpha)

    :math:`j` is the partner of sample i under a random permutation, :math:`\tilde x_i` the mixed input, and
    :math:`\lambda` is drawn once for a batch. Cross-entropy is linear in its target, so L is the cross-entropy with the
    mixed one-hot labels, which is how it is computed. :math:`\alpha` = 1 is the authors' default; they use 8 to 32 for
    corrupted labels. Over several ranks lambda is shared, and pairs are formed within each rank's part of the batch.

    Args:
        alpha: Parameter of Beta(alpha, alpha).

    References:
        Zhang et al., 2018, arXiv 1710.09412.
    """

    about = "inputs and labels mixed in pairs"
    mixes_inputs = True

    def __init__(self, alpha: float = 1.0) -> None:
        if not alpha > 0:
            raise bad_value("alpha", alpha, "a positive number")
        self.alpha = alpha

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Mix the batch with a permutation of itself.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: The source of randomness.
        """
        onehot = F.one_hot(batch.labels, state.num_classes).to(first_leaf(batch.views[0]).dtype)
        return (Plan(*mixed(batch.views[0], onehot, self.alpha, state)),)


def mixed(
    inputs: Tree,
    targets: Tensor,
    alpha: float,
    state: State,
    *,
    own_part_larger: bool = False,
    stream: int = 0,
) -> tuple[Tree, Tensor]:
    """Mix rows with rows drawn at random, inputs and targets alike.

    Args:
        inputs: A tensor or a tree of tensors.
        targets: Probabilities (rows, classes).
        alpha: Parameter of Beta(alpha, alpha).
        state: The source of randomness.
        own_part_larger: Whether lambda is at least 1/2, so that a row remains mostly itself.
        stream: Number of the random stream.
    """
    random = state.random(stream)
    share = float(random.beta(alpha, alpha))
    if own_part_larger:
        share = max(share, 1 - share)
    partner = torch.from_numpy(random.permutation(len(targets))).to(targets.device)

    def both(values: Tensor) -> Tensor:
        return torch.lerp(values[partner], values, share)

    return tree_map(both, inputs), both(targets)
