"""A mean over random draws, with how far it may be off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ncsam._errors import bad_value


class Estimate(NamedTuple):
    """A mean and its standard error, which is not known (nan) from a single draw."""

    mean: float
    error: float

    @classmethod
    def of(cls, draws: Sequence[float]) -> Estimate:
        if not draws:
            raise bad_value("draws", 0, "a whole number from 1")
        spread = statistics.stdev(draws) / math.sqrt(len(draws)) if len(draws) > 1 else math.nan
        return cls(statistics.fmean(draws), spread)
