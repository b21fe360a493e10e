"""Forward correction, or F-correction (Patrini et al., 2017, arXiv 1609.03683)."""

from __future__ import annotations

from ncsam.losses import forward_corrected
from ncsam.methods.registry import register
from ncsam.methods.transition import TransitionMethod


@register
class Forward(TransitionMethod):
    """L = -log (T^T p)_y, with T given or estimated: see `TransitionMethod`."""

    about = "loss corrected forward by a transition matrix, given or estimated"
    cost = "predicts the training split before each plain epoch"

    corrected = staticmethod(forward_corrected)
