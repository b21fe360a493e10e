"""The exponents of benchmarks/scaling.py, on made-up values."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

SIZES = [1_000, 3_000, 10_000, 30_000, 100_000]


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "benchmarks"), *sys.path])
    import scaling

    return scaling


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 1.7])
def test_a_power_law_has_its_exponent(scaling: ModuleType, power: float) -> None:
    values = [3e-4 * size**power for size in SIZES]
    assert scaling.exponent(SIZES, values) == pytest.approx(power)
    assert scaling.last_decade(SIZES, values) == pytest.approx(power)
    assert scaling.extrapolate(SIZES, values, 10**6) == pytest.approx(3e-4 * 1e6**power)


def test_the_fit_is_by_least_squares(scaling: ModuleType) -> None:
    # in decades: (0, 0), (1, 1), (2, 5); slope = (-1 * 0 + 0 * 1 + 1 * 5) / 2
    assert scaling.exponent([1, 10, 100], [1, 10, 1e5]) == pytest.approx(2.5)


def test_the_last_decade_leaves_fixed_costs_out(scaling: ModuleType) -> None:
    values = [1.0, 1.0, 1.0, 3.0, 10.0]  # constant, then linear from 10^4
    assert scaling.exponent(SIZES, values) < 0.6
    assert scaling.last_decade(SIZES, values) == pytest.approx(1.0, abs=0.01)
    assert scaling.extrapolate(SIZES, values, 10**6) == pytest.approx(100, rel=0.02)
    assert scaling.last_decade([2, 10, 100, 10_000], [1, 1, 1, 100]) == pytest.approx(1.0)  # no pair within a decade


def test_extrapolations_are_marked(scaling: ModuleType) -> None:
    row = {"work": "fit", "grows": "samples", "sizes": [10**4, 10**5], "seconds": [0.0123, 4.56], "mb": [1.0, 2048.0]}
    row |= {"ratio": [1.0, 1.0], "exponent": 2.57, "last_decade": 2.57, "extrapolated_seconds": 1690.0}
    assert scaling.line(row) == ("| fit | 10,000, 10^5 samples | 12 ms, 4.6 s |  | 2,048 MB | 2.57 | 2.57 | ~1,700 s |")
