"""A slice of the campaign (`make stress` is the whole): every part but two processes, a few times."""

import os
import random
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # where the campaign lies
from stress import calls, faults, inputs, interrupts, kills, soak
from stress.tally import Tally

pytestmark = pytest.mark.slow


#: By itself, on one core, about two minutes.
SLICE = [
    (interrupts, 3000),
    (faults, 40),
    (inputs, 20 * len(inputs.KINDS)),
    (calls, 10_000),
    (kills, 6),
    (soak, 1),
]


@pytest.mark.parametrize(("part", "trials"), SLICE, ids=lambda part: getattr(part, "__name__", ""))
def test_a_slice_of_the_campaign_holds(part, trials, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it remembers what it has killed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
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
    lines = interrupts.events_of(*case)
    interrupts.expected(*case)
    monkeypatch.setattr(SavedWeights, "restore", lambda self: None)
    assert not all(interrupts.interrupted(*case, line).later for line in range(lines // 2, lines, 5))


def test_pairs_that_were_never_killed_come_first(tmp_path, monkeypatch):
    memory, tried = tmp_path / "pairs.json", []
    everything = kills.pairs()
    assert len(everything) == len(set(everything)) >= 288
    outcome = None

    def trial(folder, work, options, moments):
        tried.append((options["method"], options["optimizer"]) if work == "train" else work)
        return 1, outcome

    monkeypatch.setattr(kills, "trial", trial)
    for seed in (0, 1):
        kills.run(Tally("kills", seed, 0.0), 90, memory)
    assert {"race", "embed"} < set(tried)
    assert len(set(tried) & set(everything)) == 160  # of nine, eight are runs; and none twice
    outcome = "the weights"
    tally = Tally("kills", 2, 0.0)
    kills.run(tally, 1, tmp_path / "another.json")
    assert len(tally.broke) == 1
    assert not (tmp_path / "another.json").exists()  # what broke was not got through


def test_a_slow_starter_is_not_killed_before_it_lives(tmp_path, monkeypatch):
    """Three processes: one dies before it has done anything, one works and is killed, one ends."""
    events = []

    class Process:
        pid = 1

        def __init__(self, codes):
            self.codes, self.exitcode = codes, None

        def join(self, seconds=None):
            if seconds is None:
                self.exitcode = self.codes

    made = iter([Process(-9), Process(-9), Process(0)])
    monkeypatch.setattr(soak, "start", lambda out, epochs: next(made))
    monkeypatch.setattr(soak, "_wait", lambda process, alive: events.append("waited") or len(events) > 1)
    seconds = iter(range(9))
    monkeypatch.setattr(soak, "cpu_seconds", lambda pid: 9.0 * next(seconds))
    monkeypatch.setattr(soak.os, "kill", lambda pid, number: events.append("killed"))
    kills_, found = soak.killed(tmp_path, 5, random.Random(0))
    assert found is None
    assert events == ["waited", "waited", "killed", "waited", "killed"]
    assert kills_ == 2


def test_cpu_time_is_that_of_a_process():
    before, until = soak.cpu_seconds(os.getpid()), time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert 0.03 < soak.cpu_seconds(os.getpid()) - before < 1
    assert soak.cpu_seconds(0) == float("inf")
