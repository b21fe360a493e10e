"""When held-out loss falls no more."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ncsam.engine.held_out import HeldOutLoss

LABELS = np.arange(40) % 2  # L_0 = log 2


def saying(p: float) -> np.ndarray:
    """Probability p for every observed label."""
    return np.where(np.eye(2)[LABELS] == 1, p, 1 - p)


def watched(values: list[float], patience: int = 100) -> list[bool]:
    loss = HeldOutLoss(patience)
    return [loss.still_falls(LABELS, saying(p)) for p in values]


def averages(values: list[float]) -> list[float]:
    found = values[:1]
    for value in values[1:]:
        found.append(0.6 * found[-1] + 0.4 * value)
    return found


def test_it_falls_and_then_rises_by_more_than_two_hundredths_of_what_was_learned() -> None:
    values = [0.6, 0.7, 0.8, 0.78, 0.76, 0.74, 0.70, 0.66]
    losses = [-math.log(q) for q in averages(values)]
    expected = [
        loss - min(losses[: i + 1]) <= 0.02 * (math.log(2) - min(losses[: i + 1])) for i, loss in enumerate(losses)
    ]
    assert expected == [True] * 6 + [False] * 2
    assert watched(values) == expected  # all samples alike: no standard error


@pytest.mark.parametrize("patience", [3, 5])
def test_it_rests_when_it_falls_too_little_for_long(patience: int) -> None:
    assert watched([0.8] * 9, patience) == [True] * patience + [False] * (9 - patience)


def test_small_gains_count_together() -> None:
    slow = [0.8 * 1.004**i for i in range(9)]
    gains = np.diff(np.log(averages(slow)))
    assert gains.max() < 0.02 * (math.log(2) + math.log(0.8)) < gains[:4].sum()
    assert all(watched(slow, 5))
    assert watched(slow, 2)[:3] == [True, True, False]


def test_a_rise_within_two_standard_errors_is_none() -> None:
    """Three samples of forty that changed their mind are chance; ten are not."""
    loss = HeldOutLoss(100)
    assert loss.still_falls(LABELS, saying(0.8))
    few = saying(0.8)
    few[:3] = saying(0.2)[:3]
    rise = np.where(np.arange(40) < 3, math.log(0.8 / (0.6 * 0.8 + 0.4 * 0.2)), 0.0)
    assert 0.02 * (math.log(2) + math.log(0.8)) < rise.mean() < 2 * rise.std() / math.sqrt(40)
    assert loss.still_falls(LABELS, few)

    loss = HeldOutLoss(100)
    assert loss.still_falls(LABELS, saying(0.8))
    many = saying(0.8)
    many[:10] = saying(0.2)[:10]
    assert not loss.still_falls(LABELS, many)


def test_it_goes_on_from_its_state() -> None:
    values = [0.6, 0.7, 0.75, 0.76, 0.75, 0.74, 0.73, 0.72]
    for at in range(len(values)):
        first, second = HeldOutLoss(4), HeldOutLoss(4)
        for p in values[:at]:
            first.still_falls(LABELS, saying(p))
        second.load_state_dict(first.state_dict())
        expected = watched(values, 4)[at:]
        assert [second.still_falls(LABELS, saying(p)) for p in values[at:]] == expected
