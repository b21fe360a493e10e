"""Backward correction (Patrini et al., 2017, arXiv 1609.03683)."""

from __future__ import annotations

import torch
from torch import Tensor

from ncsam.losses import backward_corrected
from ncsam.losses.correction import inverse_transition
from ncsam.methods.registry import register
from ncsam.methods.transition import TransitionMethod


@register
class Backward(TransitionMethod):
    r"""Cross-entropy corrected by the inverse of the transition matrix. The corrected loss is unbiased: its expectation
    over noisy labels is the loss on clean ones, at a large variance where T is close to singular.

    .. math::
        L = \frac1{|B|} \sum_{i \in B} \frac{(T^{-1} l_i)_{y_i}}{\|T^{-1}\|_\infty}, \qquad
        l_{ic} = -\log \max(p_{ic}, 10^{-7})

    :math:`T_{jk} = P(\text{observed } k \mid \text{true } j)` is the transition matrix, and :math:`l_i` the vector of
    losses of sample i under each label.

    T is given or estimated: see `TransitionMethod`. The divisor is ours: the largest sum of absolute values in a row of
    T^{-1}. The gradient at the logits is p - (T^{-1})_y, whose absolute values sum to at most 1 + |T^{-1}|, where
    cross-entropy's sum to at most 2; and |T^{-1}| of an estimated T is easily above ten. Steps that much longer throw
    the model beyond the floor of 1e-7, where the gradient is zero for good; without the floor the loss has no bottom,
    and weights overflow. Divided, the gradient is bounded as cross-entropy's is. With T = I nothing changes. An
    estimated T may be singular, where one sample is the anchor of two classes; then its pseudo-inverse is used instead.

    Args:
        transition: T as rows of P(observed | true); None estimates it.
        warmup_epochs: Length of warm-up with cross-entropy: whole epochs, or a share of the run.
        quantile: Predictions above this quantile are outliers and no anchors; None keeps all.

    References:
        Patrini et al., 2017, arXiv 1609.03683.
    """

    about = "loss corrected backward by the inverse of a transition matrix"
    cost = "predicts the training split before each warm-up epoch"

    @staticmethod
    def corrected(logits: Tensor, targets: Tensor, transition: Tensor) -> Tensor:
        """The mean corrected loss, divided by the norm of the inverse.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,), or probabilities (rows, classes).
            transition: T, (classes, classes): rows of P(observed | true).
        """
        largest = torch.linalg.matrix_norm(inverse_transition(transition), ord=float("inf"))
        loss: Tensor = backward_corrected(logits, targets, transition) / largest.to(logits)
        return loss
