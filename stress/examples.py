"""Reproducible examples: Hypothesis draws them, and a seed with a number repeats one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

#: Draws a value from a strategy.
Draw = Callable[[st.SearchStrategy[Any]], Any]
#: How many examples belong to one seed. The first of them is always the simplest one.
BATCH = 10


class _Enough(BaseException):
    """Ends the examples of a seed."""


def each(seed: str, act: Callable[[Draw, int], bool]) -> None:
    """Call `act(draw, number)` for the examples of a seed, while it returns true.

    What `act` draws may depend on nothing but what it drew before, so that the same seed gives the same examples.
    """
    numbers = count()

    @hypothesis.seed(seed)
    @settings(
        database=None,
        deadline=None,
        max_examples=BATCH,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def example(data: st.DataObject) -> None:
        if not act(data.draw, next(numbers)):
            raise _Enough

    with suppress(_Enough):
        example()


def pick(draw: Draw, *values: Any) -> Any:
    """One of several values."""
    return draw(st.sampled_from(values))


def one_in(draw: Draw, number: int) -> bool:
    """True once in so many times; false in the simplest example."""
    return bool(draw(st.integers(0, number - 1)) == number - 1)
