"""Mean and standard deviation over seeds: the one way in which the project sums up repeated numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1 in the denominator; `None` for a single value)."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are there; `None` if there is none."""
        known = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None)

    def text(self, digits: int = 2) -> str:
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"
