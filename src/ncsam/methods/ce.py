"""Plain cross-entropy: what everything else is compared with."""

from __future__ import annotations

import torch.nn.functional as F

from ncsam._errors import bad_value
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.registry import register


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
