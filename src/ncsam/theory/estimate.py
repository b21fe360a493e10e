"""A mean over random draws, with how far it may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ncsam._errors import bad_value
from ncsam._statistics import Spread


class Estimate(NamedTuple):
    """A mean and its standard error, which is not known (nan) from a single draw."""

    mean: float
    error: float

    @classmethod
    def of(cls, draws: Sequence[float]) -> Estimate:
        if not draws:
            raise bad_value("draws", 0, "a whole number from 1")
        spread = Spread.of(draws)
        if spread is None or spread.count < len(draws):  # a loss that is not finite is no finite mean
            return cls(math.fsum(draws) / len(draws), math.nan)
        return cls(spread.mean, math.nan if spread.error is None else spread.error)
