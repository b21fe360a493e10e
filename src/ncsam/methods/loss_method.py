"""Cross-entropy, and the base of methods that only put another loss in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.methods.base import Method, Plan, State
from ncsam.methods.registry import register

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


@register
class CE(LossMethod):
    r"""Cross-entropy, the baseline that other methods are compared with. Label smoothing is an option.

    .. math:: L = -\frac1{|B|} \sum_{i \in B} \sum_c t_{ic} \log p_{ic}, \qquad t_i = (1 - s)\, e_{y_i} + s / C

    :math:`t_i` is the target of sample i and :math:`s` the smoothing.

    `smoothing` puts (1 - s) on the observed label and s / C on every class; it is a method against label noise in its
    own right, and off by default.

    Args:
        smoothing: Probability in [0, 1) that is spread evenly over all classes.
    """

    about = "cross-entropy, optionally with label smoothing"
    resists_memorization = False

    def __init__(self, smoothing: float = 0.0) -> None:
        if not 0 <= smoothing < 1:
            raise bad_value("smoothing", smoothing, "a number in [0, 1)")
        super().__init__(F.cross_entropy, label_smoothing=smoothing)
