"""The stress test of calls from Python notices what it should."""

import re
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[2]))  # where the package `stress` is
from ncsam import losses
from ncsam._arguments import ratio
from stress import calls
from stress.callables import Call
from stress.callables import calls as everything
from stress.harness import Tally, each, repeat
from stress.wrong_values import odd_data, refused, shown, wrong


def test_what_is_public_is_called():
    names = {call.name for call in everything()}
    assert {f"losses.{name}" for name in losses.__all__} <= names
    assert {"optim.ncsam", "optim.sam.step", "methods.create.dividemix", "noise.symmetric", "data.Loader"} <= names
    assert {"train", "auto", "compare", "find_label_issues", "as_dataset"} <= names


def answered(function, wrong, hints=None):
    hints = hints or {"rate": float}
    call = Call("noise.planted", function, hints, lambda: {"rate": 0.5}, {})
    return calls.answer(call, {"rate": wrong}, {"rate": wrong})


def test_a_cryptic_error_of_another_library_is_noticed():
    assert "not ours, RuntimeError: Boolean value of Tensor" in answered(lambda rate: bool(rate), torch.zeros(2))
    assert "not ours, TypeError: unsupported operand" in answered(lambda rate: rate + 1, None)
    assert "AttributeError" in answered(lambda rate: rate.shape, "x")


def test_a_wrong_value_that_is_accepted_is_noticed():
    for value in (True, None, "abc", float("nan"), [0.5], {}, np.zeros(2)):
        assert answered(lambda rate: rate, value).endswith("rate is accepted")
    for right in (0.25, 1, np.float32(0.1), np.int64(3)):
        assert answered(lambda rate: rate, right) is None


def test_an_error_of_ours_holds_and_one_that_names_no_argument_breaks():
    assert answered(lambda rate: ratio("rate", rate), "abc") is None
    assert "it names no argument" in answered(lambda rate: ratio("other", rate), "abc")


def test_a_number_of_numpy_must_be_accepted():
    def picky(rate):
        if type(rate) is not float:
            raise TypeError("rate")

    assert answered(picky, np.float32(0.5)).endswith("TypeError: rate")


def test_a_call_that_does_not_end_is_noticed(monkeypatch):
    monkeypatch.setattr(calls, "_PATIENCE", 0.1)
    assert "no answer in 0.1 s" in answered(lambda rate: time.sleep(5), 0.5)


def test_a_planted_break_is_found_and_repeated(monkeypatch, capsys):
    """Without its check, a loss accepts what it should not; the message says how to repeat it."""
    monkeypatch.setattr("ncsam.losses.generalized.number", lambda name, value, *_: value)
    call = next(call for call in everything() if call.name == "losses.gce")
    monkeypatch.setattr(calls, "calls", lambda: (call,))
    tally = Tally("calls", seed=3, until=time.monotonic())
    calls.run(tally, 100)
    example, problem = re.fullmatch(r"--repeat 'calls/(\S+)': (.*)", tally.broke[0], re.DOTALL).groups()
    assert repeat(calls.cases(), example) == problem


def test_wrong_values_follow_the_seed():
    drawn = [[], []]
    for several in drawn:
        for batch in range(4):
            for values in (wrong("q", 0.7), odd_data()):
                each(f"{batch}", lambda draw, _, some=several, v=values: some.append(shown(draw(v))) or True)
    first, second = ([re.sub("0x[0-9a-f]+", "", value) for value in several] for several in drawn)
    assert first == second
    assert len(set(drawn[0])) > 30


def test_what_must_be_rejected_is_told_by_the_type():
    assert refused(float, "abc", strict=True)
    assert refused(int | None, 0.5, strict=True)
    assert refused(float, 1e300, strict=True)
    assert not refused(float, np.float32(0.5), strict=True)
    assert not refused(float, 1e300, strict=False)
    assert not refused(torch.Tensor | None, None, strict=True)


def test_errors_of_a_model_are_its_own_and_those_of_a_loss_are_ours(monkeypatch):
    given = {"rate": torch.zeros(2, 2)}
    network = Call("noise.planted", lambda rate: torch.nn.Linear(3, 1)(rate), {"rate": float}, dict, {})
    assert calls.answer(network, given, given) is None
    monkeypatch.setattr("ncsam.losses.generalized.check_logits", lambda logits: logits)
    loss = Call("noise.planted", lambda rate: losses.GCE()(rate, rate), {"rate": float}, dict, {})
    assert "AttributeError" in calls.answer(loss, {"rate": "x"}, {"rate": "x"})
