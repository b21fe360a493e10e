"""A short version of the stress tests (`make stress` is the long one): every part except two processes, a few times."""

import contextlib
import os
import random
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.append(str(Path(__file__).parents[2]))  # where the package `stress` is
from stress import calls, faults, inputs, interrupts, kills, soak
from stress.datasets import Data
from stress.tally import Tally

pytestmark = pytest.mark.slow


#: Each part with how often; for inputs and calls, of each kind and function.
PARTS = [(interrupts, 600), (faults, 6), (inputs, 2), (calls, 4), (kills, 2), (soak, 1)]


@pytest.mark.parametrize(("part", "trials"), PARTS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_short_stress_test_holds(part, trials, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where it remembers what it has killed
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    tally = Tally(part.__name__, seed=12, until=time.monotonic())
    part.run(tally, trials)
    assert tally.tried >= trials
    assert tally.broke == []


def test_a_planted_break_is_found_and_repeated(monkeypatch, capsys):
    """With unsafe loading, a label file executes code; the message says how to repeat it."""
    real = CliRunner.invoke

    def careless(self, main, arguments, **options):
        for word in arguments:
            if word.endswith(".npy"):
                with contextlib.suppress(Exception):
                    np.load(word, allow_pickle=True)
        return real(self, main, arguments, **options)

    monkeypatch.setattr(CliRunner, "invoke", careless)
    kind = Data(_one_array, "*.npy", ["noise inspect {data}"])
    monkeypatch.setattr(inputs, "KINDS", {"planted": kind})
    tally = Tally("inputs", seed=3, until=time.monotonic())
    inputs.run(tally, 60)
    found = next(broke for broke in tally.broke if "code was run" in broke)
    _, kind, seed, number = re.search(r"'(.*?)'", found)[1].split("/")
    assert inputs.repeat(kind, seed, int(number)) is not None


def _one_array(draw, top):
    np.save(top / "l.npy", np.arange(24) % 3)
    return top / "l.npy"


def test_a_break_is_counted_and_said(capsys):
    tally = Tally("part", seed=0, until=time.monotonic() + 60)
    assert tally.held(True, "fine")
    assert not tally.held(False, "what happened")
    assert (tally.tried, tally.broke) == (2, ["what happened"])
    assert "broke: what happened" in capsys.readouterr().out
    assert "tried      2  held      1  broke    1" in tally.line()


def test_parameters_that_stay_perturbed_are_noticed(monkeypatch):
    """Without the restoring, interrupts leave parameters perturbed, and the stress test reports it."""
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

    def trial(folder, task, options, moments):
        tried.append((options["method"], options["optimizer"]) if task == "train" else task)
        return 1, outcome

    monkeypatch.setattr(kills, "trial", trial)
    for seed in (0, 1):
        kills.run(Tally("kills", seed, 0.0), 90, memory)
    assert {"auto", "embed"} < set(tried)
    assert len(set(tried) & set(everything)) == 160  # eight of nine are runs, none twice
    outcome = "the weights"
    tally = Tally("kills", 2, 0.0)
    kills.run(tally, 1, tmp_path / "another.json")
    assert len(tally.broke) == 1
    assert not (tmp_path / "another.json").exists()  # a pair that broke is tried again


def test_a_process_is_not_killed_before_it_made_progress(tmp_path, monkeypatch):
    """Three processes: one dies before it has done anything, one works and is killed, one finishes."""
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
    monkeypatch.setattr(soak, "_has_progress", lambda process, out: events.append("waited") or len(events) > 1)
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
