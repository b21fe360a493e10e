"""Means, their errors, and the paired test: by hand, and beside scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from ncsam._statistics import Spread, difference, of_differences, t_test


def test_spread_by_hand() -> None:
    spread = Spread.of([1.0, 2.0, None, 6.0, math.nan])
    assert spread is not None
    assert (spread.mean, spread.count) == (3.0, 3)
    assert spread.std == pytest.approx(math.sqrt(7))
    assert spread.error == pytest.approx(math.sqrt(7 / 3))
    assert spread.text(1) == "3.0 ± 2.6"
    assert spread.text(1, error=True, sign=True) == "+3.0 ± 1.5"
    assert Spread.of([4.0]) == Spread(4.0, None, 1)
    assert Spread(4.0, None).text() == "4.00"
    assert Spread.of([None]) is None


@pytest.mark.parametrize("freedom", range(1, 13))
def test_t_test_beside_scipy(freedom: int) -> None:
    for t in (0.0, -0.3, 1.0, 2.5, 8.0):
        assert t_test(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)


def test_differences_are_taken_seed_by_seed() -> None:
    ours, theirs = {1: 1.0, 2: 2.5, 3: 2.0, 4: 9.0}, {4: 7.0, 3: 2.2, 2: 2.0, 1: 0.5, 9: 100.0}
    found = difference(ours, theirs)
    assert found is not None
    assert found.spread.mean == pytest.approx(0.7)
    paired = stats.ttest_rel([1.0, 2.5, 2.0, 9.0], [0.5, 2.0, 2.2, 7.0])
    assert found.p == pytest.approx(paired.pvalue)
    assert found.text(1) == "+0.7 ± 0.5 (p 0.23)"
    assert difference(ours, {9: 1.0}) is None


def test_differences_that_cannot_be_tested() -> None:
    single, alike, none = of_differences([2.0]), of_differences([2.0, 2.0]), of_differences([0.0, 0.0])
    assert single is not None
    assert alike is not None
    assert none is not None
    assert (single.p, alike.p, none.p) == (None, 0.0, 1.0)
    assert single.text() == "+2.00"
