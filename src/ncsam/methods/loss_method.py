"""Methods that are cross-entropy's training with another loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ncsam.methods.base import Method, Plan, State

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch


class LossMethod(Method):
    """Trains on each batch as it comes, with `function(logits, targets, **options)`.

    Args:
        function: A loss, such as those of `ncsam.losses`.
        **options: Its options.
    """

    is_loss = True

    def __init__(self, function: Callable[..., Tensor], **options: Any) -> None:
        self.function = partial(function, **options)
        self.criterion(torch.zeros(2, 2), torch.tensor([0, 1]))  # a wrong option is said now

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Plan the whole batch under its observed labels.

        Args:
            batch: One view of each sample.
            networks: Not used.
            state: Not used.
        """
        return (Plan(batch.views[0], batch.labels, batch.index),)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss with the method's options.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,), or probabilities (rows, classes).
        """
        return self.function(logits, targets)
