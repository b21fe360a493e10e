"""Backward correction (Patrini et al., 2017, arXiv 1609.03683)."""

from __future__ import annotations

from ncsam.losses import backward_corrected
from ncsam.methods.registry import register
from ncsam.methods.transition import TransitionMethod


@register
class Backward(TransitionMethod):
    """L = (T^{-1} l)_y, l_c = -log max(p_c, 1e-7): unbiased, and of large variance where T is near singular.

    T is given or estimated: see `TransitionMethod`.
    """

    corrected = staticmethod(backward_corrected)
