"""Checks of single arguments: numbers, flags, words. Each returns the value or raises a `UsageError`.

Numbers of numpy count as numbers, and come back as Python's own; flags do not, nor do text and tensors.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, TypeVar

from ncsam._errors import bad_value, did_you_mean

LARGEST = 3.4e38  # a little below that of float32, in which weights and radii are used
_MOST = 2**63 - 1
_T = TypeVar("_T")


def number(
    name: str, value: float, allowed: str = "a finite number", fine: Callable[[Any], bool] | None = None
) -> float:
    """A finite number that single precision holds, and that `fine` agrees with."""
    if isinstance(value, bool | Fraction) or not isinstance(value, numbers.Real):
        raise bad_value(name, value, allowed)
    plain = value if isinstance(value, int) else float(value)  # of half precision, too, which has no LARGEST
    if LARGEST < abs(plain) < math.inf:
        raise bad_value(name, value, f"{allowed}, at most {LARGEST} in size")
    if not abs(plain) <= LARGEST or (fine is not None and not fine(plain)):
        raise bad_value(name, value, allowed)
    return float(plain)


def non_negative(name: str, value: float) -> float:
    """A finite number that is not negative."""
    return number(name, value, "a finite number, 0 or larger", lambda v: v >= 0)


def above_zero(name: str, value: float) -> float:
    """A finite number above 0."""
    return number(name, value, "a finite number above 0", lambda v: v > 0)


def ratio(name: str, value: float) -> float:
    """A number in [0, 1]."""
    return number(name, value, "a number in [0, 1]", lambda v: 0 <= v <= 1)


def below_one(name: str, value: float) -> float:
    """A number in [0, 1)."""
    return number(name, value, "a number in [0, 1)", lambda v: 0 <= v < 1)


def count(name: str, value: int, least: int = 0, most: int = _MOST) -> int:
    """A whole number, 0 or larger."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise bad_value(name, value, f"a whole number, {least} or larger")
    if value > most:
        raise bad_value(name, value, f"a whole number from {least} to {most:,}")
    return int(value)


def positive(name: str, value: int, most: int = _MOST) -> int:
    """A whole number, 1 or larger."""
    return count(name, value, 1, most)


def flag(name: str, value: bool) -> bool:
    """True or false, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise bad_value(name, value, "True or False")
    return value


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    names = tuple(allowed)
    if not isinstance(value, str) or value not in names:
        raise bad_value(name, value, f"one of {', '.join(map(repr, names))}{did_you_mean(value, names, '. ')}")
    return value


def function(name: str, value: _T, allowed: str = "a function of (logits, targets)") -> _T:
    """Something that can be called."""
    if not callable(value):
        raise bad_value(name, value, allowed)
    return value


def instance(name: str, value: Any, kind: type[_T], allowed: str) -> _T:
    """An object of a class."""
    if not isinstance(value, kind):
        raise bad_value(name, value, allowed)
    return value
