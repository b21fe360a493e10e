"""A short version of the stress tests (`make stress` is the long one): every part except two processes, a few times.

Of inputs every third kind, of calls every second function.
"""

import contextlib
import os
import sys
import time
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.append(str(Path(__file__).parents[2]))  # where the package `stress` is
from ncsam.vectors.saved import SavedWeights
from stress import calls, faults, inputs, interrupts, kills, soak
from stress.data_files import Data
from stress.harness import Tally, repeat

pytestmark = pytest.mark.slow

#: Each part with how often; for inputs and calls, of each kind and function.
PARTS = [(interrupts, 60), (faults, 3), (inputs, 1), (calls, 1), (kills, 1), (soak, 1)]


@pytest.mark.parametrize(("part", "trials"), PARTS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_short_stress_test_holds(part, trials, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setattr(inputs, "KINDS", dict([*inputs.KINDS.items()][::3]))
    some = calls.calls()[::2]
    monkeypatch.setattr(calls, "calls", lambda: some)
    tally = Tally(part.__name__.removeprefix("stress."), seed=12, until=time.monotonic())
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
    assert "code was run" in repeat(inputs.cases(), found.split("'")[1].removeprefix("inputs/"))


def _one_array(draw, top):
    np.save(top / "l.npy", np.arange(24) % 3)
    return top / "l.npy"


def test_a_break_is_counted_and_said(capsys):
    tally = Tally("part", seed=0, until=time.monotonic() + 60)
    assert tally.held(None, "fine")
    assert not tally.held("what happened", "where")
    assert (tally.tried, tally.broke) == (2, ["where: what happened"])
    assert "broke: where: what happened" in capsys.readouterr().out
    assert "tried      2  held      1  broke    1" in tally.line()


def test_parameters_that_stay_perturbed_are_noticed(monkeypatch):
    """Without the restoring, interrupts leave parameters perturbed, and the stress test reports it."""
    case = interrupts.Case("sam", "phases", "rho")
    lines = interrupts.events_of(case)
    interrupts.expected(case)
    monkeypatch.setattr(SavedWeights, "restore", lambda self: None)
    assert any(interrupts.interrupted(case, line) for line in range(lines // 2, lines, 5))


def test_all_pairs_are_killed_in_an_order_that_follows_the_seed(monkeypatch, capsys):
    tried = []
    monkeypatch.setattr(kills, "trial", lambda task, options, moments: tried.append((task, options)) or (1, None))
    count = len(kills.pairs()) * 9 // 8
    kills.run(Tally("kills", 0, 0.0), count)
    first, tried[:] = list(tried), []
    kills.run(Tally("kills", 0, 0.0), count)
    assert first == tried
    assert {task for task, _ in first} == {"train", "auto", "embed", "folds"}
    found = [(options["method"], options["optimizer"]) for task, options in first if task == "train"]
    assert sorted(found) == sorted(kills.pairs())
    monkeypatch.setattr(kills, "trial", lambda *_: (1, "the weights differ"))
    tally = Tally("kills", 2, 0.0)
    kills.run(tally, 1)
    assert tally.broke[0].endswith("the weights differ")


def test_growing_memory_is_noticed():
    steady = [(epoch, 400.0 + epoch / 1024, 9) for epoch in range(200, 2001, 200)]
    assert soak.grown(steady) is None
    assert "memory grew by" in soak.grown([(epoch, memory + epoch / 50, 9) for epoch, memory, _ in steady])
    assert "open files by 5" in soak.grown([(epoch, memory, 9 + epoch // 200) for epoch, memory, _ in steady])


def test_an_interrupt_around_the_first_pass_of_a_one_pass_variant_leaves_nothing_behind() -> None:
    case = interrupts.Case("msam", "phases", "rho")
    inside, places = {"_around_first_pass", "first_move", "generator_context"}, []

    def note(frame: FrameType, number: int) -> None:
        if inside & {each.f_code.co_name for each in (frame, frame.f_back) if each is not None}:
            places.append(number)

    interrupts.watched(interrupts.make(case)[2], None, seen=note)
    assert len(places) > 20
    assert {place: found for place in places if (found := interrupts.interrupted(case, place))} == {}


def test_an_interrupt_right_before_the_first_pass_is_left() -> None:
    """Python then skips the exit of `with`, and MSAM's weights are moved in that pass."""
    case = interrupts.Case("msam", "whole", "rho")
    places: list[int] = []

    def seen(frame: FrameType, number: int) -> None:
        if frame.f_code.co_name == "run_passes":
            places.append(number)

    interrupts.watched(interrupts.make(case)[2], None, seen=seen)
    assert len(places) > 5
    assert [place for place in places if interrupts.interrupted(case, place)] == []
