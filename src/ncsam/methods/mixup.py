"""Mixup (Zhang et al., 2018, arXiv 1710.09412)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from ncsam._errors import bad_value
from ncsam.methods.base import Method, Plan, State
from ncsam.methods.registry import register

if TYPE_CHECKING:
    from ncsam.data.loader import Batch


@register
class Mixup(Method):
    r"""Inputs and labels are mixed in pairs, with one lambda ~ Beta(alpha, alpha) for a batch.

    .. math::
        \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}, \quad
        L = \lambda\, \ell(f(\tilde x), y) + (1 - \lambda)\, \ell(f(\tilde x), y_\pi),

    pi a random permutation. Cross-entropy is linear in its target, so L is the cross-entropy with the mixed one-hot
    labels, which is how it is computed. alpha = 1 is the authors' default; they use 8 to 32 for corrupted labels.
    Over several ranks lambda is shared, and pairs are formed within each rank's part of the batch.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        if not alpha > 0:
            raise bad_value("alpha", alpha, "a positive number")
        self.alpha = alpha

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        random = state.random()
        share = float(random.beta(self.alpha, self.alpha))
        partner = torch.from_numpy(random.permutation(len(batch))).to(batch.labels.device)
        inputs = torch.lerp(batch.views[0][partner], batch.views[0], share)
        onehot = F.one_hot(batch.labels, state.num_classes).to(inputs.dtype)
        return (Plan(inputs, torch.lerp(onehot[partner], onehot, share)),)
