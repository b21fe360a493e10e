"""What a run says of its time, with a clock of the test's own."""

import itertools

import pytest

from ncsam.engine import sinks as progress
from ncsam.engine.sinks import ConsoleSink, duration


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def run(console, clock, steps, seconds, epoch=1):
    for done in range(1, steps + 1):
        clock[0] += seconds
        console.step(epoch, done)


def test_the_estimate_leaves_out_the_first_step_and_counts_what_is_left(clock, capsys):
    console = ConsoleSink(True, epochs=4, batches=100, device="cpu")
    clock[0] = 30.0  # a slow first step
    console.step(1, 1)
    run(console, clock, 3, 1.0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "1 s per batch on cpu: about 2 min per epoch and 7 min in total, without evaluation"


def test_hours_on_a_cpu_come_with_advice_and_not_on_an_accelerator(clock, capsys):
    for device, advised in (("cpu", True), ("cuda:0", False)):
        run(ConsoleSink(True, epochs=60, batches=300, device=device), clock, 4, 2.0)
        said = capsys.readouterr().out
        assert f"2 s per batch on {device}" in said
        assert "10 h" in said
        assert ("smaller model" in said) is advised


def test_slow_steps_are_judged_by_the_second(clock, capsys):
    run(ConsoleSink(True, epochs=60, batches=300, device="cpu"), clock, 2, 9.0)
    assert "9 s per batch on cpu" in capsys.readouterr().out


def test_advice_on_images_begins_with_pretrained_features(clock, capsys):
    for data, advised in (("images", True), ("vectors", False)):
        run(ConsoleSink(True, epochs=60, batches=300, device="cpu", data=data), clock, 4, 2.0)
        said = capsys.readouterr().out
        assert [words in said for words in ("ncsam embed", "freeze backbone", "resnet8")] == [advised] * 3
        assert "fewer epochs" in said


def test_a_short_run_needs_no_estimate(clock, capsys):
    run(ConsoleSink(True, epochs=2, batches=10), clock, 10, 1.0)
    assert "per batch" not in capsys.readouterr().out


def test_a_pipe_hears_of_a_long_epoch_ever_more_seldom(clock, capsys):
    console = ConsoleSink(True, epochs=1, batches=1000)
    run(console, clock, 300, 1.0)
    heard = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    counts = [int(line.split()[2]) for line in heard]
    gaps = [b - a for a, b in itertools.pairwise(counts)]
    assert gaps == [20, 40, 60, 60, 60]
    assert heard[-1] == f"epoch 1/1: {counts[-1]} of 1,000 batches"


def test_quiet_says_nothing(clock, capsys):
    run(ConsoleSink(False, epochs=60, batches=300), clock, 100, 10.0)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(45, "45 s"), (89.4, "89 s"), (700, "12 min"), (3600, "1 h"), (12000, "3 h 20 min"), (86400, "1 day"),
     (190800, "2 days 5 h")],
)  # fmt: skip
def test_durations(seconds, words):
    assert duration(seconds) == words
