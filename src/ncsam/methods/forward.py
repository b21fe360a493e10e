"""Forward correction, or F-correction (Patrini et al., 2017, arXiv 1609.03683)."""

from __future__ import annotations

from ncsam.losses import forward_corrected
from ncsam.methods.registry import register
from ncsam.methods.transition import TransitionMethod


@register
class Forward(TransitionMethod):
    r"""Cross-entropy of the prediction as the noise would change it. The model then learns the probabilities of the
    true labels.

    .. math:: L = -\frac1{|B|} \sum_{i \in B} \log \left( T^\top p_i \right)_{y_i}

    :math:`T_{jk} = P(\text{observed } k \mid \text{true } j)` is the transition matrix, given or estimated: see
    `TransitionMethod`.

    Args:
        transition: T as rows of P(observed | true); None estimates it.
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        quantile: Predictions above this quantile are outliers and no anchors; None keeps all.

    References:
        Patrini et al., 2017, arXiv 1609.03683.
    """

    about = "loss corrected forward by a transition matrix, given or estimated"
    cost = "predicts the training split before each warm-up epoch"

    corrected = staticmethod(forward_corrected)
