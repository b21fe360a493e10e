"""Plain cross-entropy: what everything else is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import Method, Plan, State
from ncsam.methods.registry import register

if TYPE_CHECKING:
    from ncsam.data.loader import Batch


@register
class CE(Method):
    r"""L = mean over the batch of -log softmax(z_i)[y_i], y_i the observed label.

    `smoothing` puts (1 - s) on the observed label and s / C on every class; it is a method against label noise in its
    own right, and off by default.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        if not 0 <= smoothing < 1:
            raise bad_value("smoothing", smoothing, "a number in [0, 1)")
        self.smoothing = smoothing

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        return (Plan(batch.views[0], batch.labels, batch.index),)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, label_smoothing=self.smoothing)
