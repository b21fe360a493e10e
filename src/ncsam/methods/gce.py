"""Generalized cross-entropy (Zhang and Sabuncu, 2018, arXiv 1805.07836)."""

from __future__ import annotations

from ncsam.losses import gce
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.registry import register


@register
class GCE(LossMethod):
    r"""Generalized cross-entropy, between cross-entropy and the mean absolute error. Its gradient is that of
    cross-entropy times :math:`p_y^q`, so labels that the model finds unlikely weigh little.

    .. math:: L = \frac1{|B|} \sum_{i \in B} \frac{1 - p_{y_i}^q}{q}

    :math:`q` in (0, 1] is .7 in the authors' experiments.

    Args:
        q: In (0, 1]; near 0 the loss is cross-entropy, at 1 the mean absolute error.

    References:
        Zhang and Sabuncu, 2018, arXiv 1805.07836.
    """

    about = "generalized cross-entropy, between cross-entropy and the mean absolute error"

    def __init__(self, q: float = 0.7) -> None:
        super().__init__(gce, q=q)
