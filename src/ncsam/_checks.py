"""Checks of single arguments: numbers, flags, words. Each returns the value, or raises and says what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ncsam._errors import bad_value


def non_negative(name: str, value: float) -> float:
    """A finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise bad_value(name, value, "a finite number, 0 or larger")
    return float(value)


def ratio(name: str, value: float) -> float:
    """A number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise bad_value(name, value, "a number in [0, 1]")
    return float(value)


def count(name: str, value: int) -> int:
    """A whole number, 0 or larger."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise bad_value(name, value, "a whole number, 0 or larger")
    return value


def positive(name: str, value: int) -> int:
    """A whole number, 1 or larger."""
    if count(name, value) == 0:
        raise bad_value(name, value, "a whole number, 1 or larger")
    return value


def flag(name: str, value: bool) -> bool:
    """True or false, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise bad_value(name, value, "True or False")
    return value


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    names = tuple(allowed)
    if not isinstance(value, str) or value not in names:
        raise bad_value(name, value, f"one of {', '.join(map(repr, names))}")
    return value
