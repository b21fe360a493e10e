"""A slice of the campaign (`make torture` is the whole): interrupts and faults, a few times."""

import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # where the campaign lies
from torture import faults, interrupts
from torture.tally import Tally

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("part", "trials"), [(interrupts, 400), (faults, 6)], ids=["interrupts", "faults"])
def test_a_slice_of_the_campaign_holds(part, trials):
    tally = Tally(part.__name__, seed=11, until=time.monotonic())
    part.run(tally, trials)
    assert tally.tried >= trials
    assert tally.broke == []


def test_a_break_is_counted_and_said(capsys):
    tally = Tally("part", seed=0, until=time.monotonic() + 60)
    assert tally.held(True, "fine")
    assert not tally.held(False, "what happened")
    assert (tally.tried, tally.broke) == (2, ["what happened"])
    assert "broke: what happened" in capsys.readouterr().out
    assert "tried      2  held      1  broke    1" in tally.line()


def test_the_campaign_notices_weights_that_stay_moved(monkeypatch):
    """With the restoring taken out, interrupts leave weights moved, and the campaign says so."""
    from ncsam.vectors.saved import SavedWeights

    case = ("sam", "phases", "rho")
    lines = interrupts.lines_of(*case)
    interrupts.expected(*case)
    monkeypatch.setattr(SavedWeights, "restore", lambda self: None)
    assert not all(interrupts.interrupted(*case, line).later for line in range(lines // 2, lines, 5))
