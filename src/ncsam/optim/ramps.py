"""The strength of the compensation along training: s(t) = kappa * ramp(t), t in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable

from ncsam._errors import unknown_name

Ramp = Callable[[float], float]


def smooth(t: float) -> float:
    """min(1, r(t)), r(t) = 2 (3 - 2t) t^2 [eq:dynamic_schedule]; 1 from half of training on.

    Args:
        t: Progress of training, in [0, 1].
    """
    return min(1.0, 2.0 * (3.0 - 2.0 * t) * t * t)


def linear(t: float) -> float:
    """min(1, 2t): the plain ramp that reaches 1 where `smooth` does.

    Args:
        t: Progress of training, in [0, 1].
    """
    return min(1.0, 2.0 * t)


def cosine(t: float) -> float:
    """(1 - cos(pi min(1, 2t))) / 2: half a cosine wave, 1 from half of training on.

    Args:
        t: Progress of training, in [0, 1].
    """
    return 0.5 * (1.0 - math.cos(math.pi * min(1.0, 2.0 * t)))


def constant(t: float) -> float:
    """1 from the start: the paper's ablation.

    Args:
        t: Progress of training; not used.
    """
    return 1.0


RAMPS: dict[str, Ramp] = {"smooth": smooth, "linear": linear, "cosine": cosine, "constant": constant}


def ramp_by_name(ramp: str | Ramp) -> Ramp:
    """A ramp by name, or the caller's own function of t.

    Args:
        ramp: "smooth", "linear", "cosine", "constant", or a function from t in [0, 1] to a share of kappa.

    Raises:
        UsageError: For another name.
    """
    if callable(ramp):
        return ramp
    if not isinstance(ramp, str) or ramp not in RAMPS:
        raise unknown_name("ramp", ramp, RAMPS)
    return RAMPS[ramp]
