"""Spans of epochs, and ramps along them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from ncsam._errors import bad_value

if TYPE_CHECKING:
    from ncsam.methods.base import State

#: A whole number of epochs, or, as a fraction, a share of the run: one default serves short runs and long ones.
Span: TypeAlias = int | float
#: Of plain training, before a method decides by what the model says. The authors of such methods have thousands, of
#: which the same share of a short run leaves too few.
_LEAST_STEPS = 100
_MOST_EPOCHS = 10**9


def check_spans(**spans: Span) -> None:
    """Refuse what is neither a number of epochs nor a share of the run.

    Args:
        **spans: Spans by the name of their option: whole epochs, 0 or larger, or a share in [0, 1] as a float.

    Raises:
        UsageError: One of them is neither.
    """
    for name, span in spans.items():
        whole = isinstance(span, int) and not isinstance(span, bool) and 0 <= span <= _MOST_EPOCHS
        if not whole and not (isinstance(span, float) and 0 <= span <= 1):
            raise bad_value(
                name, span, "a whole number of epochs, 0 or larger, or a share of the run, a fraction in [0, 1]"
            )


def in_epochs(span: Span, epochs: int) -> int:
    """Whole epochs, a share being rounded.

    Args:
        span: Whole epochs, or a share of the run.
        epochs: Length of the run.
    """
    return span if isinstance(span, int) else round(span * epochs)


def plain_span(span: Span, state: State) -> int:
    """Epochs of warm-up, at least one; a share of the run is at least 100 steps, or half of the run.

    Args:
        span: Whole epochs, or a share of the run.
        state: The state of training.
    """
    least = 1
    if isinstance(span, float):
        least = max(1, min(math.ceil(_LEAST_STEPS / state.steps_per_epoch), state.epochs // 2))
    return max(least, in_epochs(span, state.epochs))


def ramp(epoch: float, start: int, length: int) -> float:
    """0 up to the end of epoch `start`, then linear to 1 over `length` epochs.

    Args:
        epoch: The current epoch, from 1.
        start: Last epoch before the ramp.
        length: Length of the ramp in epochs.
    """
    if epoch <= start:
        return 0.0
    return min(1.0, (epoch - start) / length) if length > 0 else 1.0
