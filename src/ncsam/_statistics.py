"""Numbers that were measured several times: their mean, how far it may be off, and whether two of them differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n - 1 in the denominator; `None` for a single value) of `count` values."""

    mean: float
    std: float | None
    count: int = 1

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are known and finite; `None` if there is none."""
        known = [float(v) for v in values if v is not None and math.isfinite(v)]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))

    @property
    def error(self) -> float | None:
        """The standard error of the mean, std / sqrt(count)."""
        return None if self.std is None else self.std / math.sqrt(self.count)

    def text(self, digits: int = 2, *, error: bool = False, sign: bool = False) -> str:
        """`mean ± std`, or with `error` `mean ± standard error`; the mean alone of a single value."""
        width = self.error if error else self.std
        mean = f"{self.mean:{'+' if sign else ''}.{digits}f}"
        return mean if width is None else f"{mean} ± {width:.{digits}f}"


@dataclass(frozen=True)
class Difference:
    """Of two settings, seed by seed: the spread of the differences, and p of the paired t-test (two-sided)."""

    spread: Spread
    p: float | None

    def text(self, digits: int = 2) -> str:
        """`+mean ± standard error (p 0.03)`."""
        p = "" if self.p is None else f" (p {self.p:.2f})"
        return self.spread.text(digits, error=True, sign=True) + p


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """Ours minus theirs over the seeds that both have; `None` if they share none."""
    return of_differences([value - theirs[seed] for seed, value in ours.items() if seed in theirs])


def of_differences(values: Sequence[float]) -> Difference | None:
    """What differences say; p is not known from a single one."""
    spread = Spread.of(values)
    if spread is None:
        return None
    if not spread.error:  # one value, or all of them alike
        return Difference(spread, None if spread.error is None else float(spread.mean == 0))
    return Difference(spread, t_test(spread.mean / spread.error, spread.count - 1))


def t_test(t: float, freedom: int) -> float:
    """P(|T| >= |t|) of Student's t with a whole number of degrees of freedom.

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4, in theta = atan(|t| / sqrt(freedom)).
    """
    theta = math.atan2(abs(t), math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(theta) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(theta) ** 2
        total += term
    within = 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
    return max(0.0, 1 - within)
