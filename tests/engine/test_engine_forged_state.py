"""Checkpoints whose checksum fits and whose parts no run writes: one sentence, before anything is trained."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine_resume import small_config, small_data, stop_after_two_epochs

from ncsam.engine import RunError, train
from ncsam.engine.checkpoint import load_checkpoint, save_checkpoint
from ncsam.engine.label_issues import SampleTable
from ncsam.engine.learner import is_plain, matches_structure, refuse_other_method, refuse_other_optimizer
from ncsam.engine.predictor import load_predictor
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task

_GROUP = ("learners", 0, "optimizer", "param_groups", 0)
_STATE = ("learners", 0, "optimizer", "state", 0)
_OWN = ("learners", 0, "optimizer", "sharpness_aware")
_FITS = "does not match this model, method or optimizer"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Runs of three epochs that stand after two, by their base."""
    found = {}
    for base in ("sgd", "adamw"):
        with pytest.MonkeyPatch.context() as patch:
            top = tmp_path_factory.mktemp(base)
            stop_after_two_epochs(top, patch, config(base))
        state = load_checkpoint(top / "run/checkpoints")
        assert state is not None
        found[base] = (top / "run", state)
    return found


def config(base: str) -> Any:
    return small_config(epochs=3, base=base, lr=0.01, optimizer="sam", rho="validation")


@pytest.mark.parametrize(
    ("base", "path", "value", "said"),
    [
        ("sgd", (*_STATE, "momentum_buffer"), 3, _FITS),
        ("sgd", (*_STATE, "momentum_buffer"), torch.zeros(2), _FITS),
        ("sgd", _STATE, [], _FITS),
        ("adamw", (*_STATE, "exp_avg"), None, _FITS),
        ("adamw", (*_STATE, "step"), torch.zeros(3), _FITS),
        ("sgd", (*_GROUP, "momentum"), "much", _FITS),
        ("sgd", (*_GROUP, "dampening"), 10**30, _FITS),
        ("sgd", (*_GROUP, "params", 0), 1, _FITS),
        ("sgd", (*_GROUP, "nesterov"), torch.zeros(2), _FITS),
        ("sgd", (*_OWN, "progress"), 7.0, _FITS),
        ("sgd", (*_OWN, "radius", "increase"), "all", _FITS),
        ("sgd", (*_OWN, "radius", "first_losses"), [[]], _FITS),
        ("sgd", ("samples", "lead_sum"), torch.zeros(3, 2), _FITS),
        ("sgd", ("samples", "times_flipped"), None, _FITS),
        ("sgd", ("ranks", 0, "sums", "samples"), None, _FITS),
        ("sgd", ("ranks", 0, "sums", "totals"), {"rho": []}, _FITS),
        ("sgd", ("warmup_epochs",), [], _FITS),
        ("sgd", ("noise_estimate",), torch.zeros(2), _FITS),
        ("sgd", ("method",), {"plan": 1}, _FITS),
        ("sgd", ("method",), [], "of a wrong type"),
        ("sgd", ("flip_ratio",), float("inf"), _FITS),
        ("sgd", ("history", 0, "val_accuracy"), {}, "has records of"),
        ("sgd", ("history", 0), {"epoch": 1}, "has records of"),
        ("sgd", ("history", 0, "lr"), torch.zeros(2), "its options and records contain tensors"),
        ("sgd", ("config", "freeze"), torch.zeros(2), "its options and records contain tensors"),
    ],
)
def test_a_part_that_no_run_writes_is_refused(stopped: Any, base: str, path: Any, value: Any, said: str) -> None:
    run, state = stopped[base]
    state = copy.deepcopy(state)
    place: Any = state
    for key in path[:-1]:
        place = place[key]
    assert path[-1] in place or isinstance(place, list)
    place[path[-1]] = value
    save_checkpoint(run / "checkpoints", state, {})
    (run / "checkpoints/previous.ckpt").unlink()
    with pytest.raises(RunError, match=said):
        train(config(base), run, dataset=small_data(), console=False)


def test_what_a_run_wrote_has_the_form(stopped: Any) -> None:
    for base, (run, state) in stopped.items():
        save_checkpoint(run / "checkpoints", state, {})
        assert train(config(base), run, dataset=small_data(), console=False)["epochs"] == 3


def test_what_an_optimizer_of_ones_own_keeps_is_its_affair() -> None:
    network = torch.nn.Linear(2, 2)
    own = torch.optim.Adadelta(network.parameters())
    network(torch.zeros(1, 2)).sum().backward()
    own.step()
    state = own.state_dict()
    state["param_groups"][0]["lr"] = torch.tensor(0.5)  # a number became a tensor on the way
    state["state"][0]["more"] = [1, 2]
    refuse_other_optimizer(own, state)
    state["param_groups"][0]["params"] = [1, 0]
    with pytest.raises(ValueError, match="groups are of other"):
        refuse_other_optimizer(own, state)


def test_a_methods_state_keeps_its_form() -> None:
    own = {"transition": None, "smallest": math.inf, "seen": 0, "average": {"w": torch.zeros(2)}, "sides": []}
    fine = {"transition": torch.eye(2), "smallest": 0.5, "seen": 3, "average": {"w": torch.ones(2).half()}}
    fine["sides"] = [{"exp_avg": torch.zeros(3), "step": 1}]
    refuse_other_method(own, own)
    refuse_other_method(own, fine)
    for name, value in [
        ("transition", torch.tensor([math.nan])),
        ("transition", object()),
        ("smallest", math.nan),
        ("seen", 0.5),
        ("seen", -1),
        ("average", {"w": torch.zeros(3)}),
        ("average", {"v": torch.zeros(2)}),
        ("sides", [{"step": math.inf}]),
    ]:
        with pytest.raises(ValueError, match=name):
            refuse_other_method(own, {**fine, name: value})
    with pytest.raises(ValueError, match="other names"):
        refuse_other_method(own, {**fine, "plan": 1})


def test_a_column_keeps_its_form() -> None:
    table = SampleTable(3)
    table.column("a")
    with pytest.raises(ValueError, match="column='a'"):
        table.load_state_dict({"a": torch.zeros(3, 2)})
    table.load_state_dict({"a": torch.ones(3)})
    assert table["a"].tolist() == [1.0, 1.0, 1.0]


def test_one_form() -> None:
    assert matches_structure({"a": 1, "more": 2}, {"a": 0.5})
    assert matches_structure([0.9, (0.9, 0.999)], [0.8, [0.9, 0.99]])
    assert matches_structure(torch.zeros(2), torch.ones(2))
    assert matches_structure(0.5, None)
    assert matches_structure(False, True)
    for saved, own in [
        ({}, {"a": 1}),
        ([1], [1, 2]),
        (torch.zeros(2, 1), torch.zeros(2)),
        (torch.zeros(2).double(), torch.zeros(2)),
        (1, True),
        (True, 1),
        (float("nan"), 0.5),
        ([], None),
        ("a", 1),
    ]:
        assert not matches_structure(saved, own)
    assert is_plain({"a": [1, (None, "b")]})
    assert not is_plain({"a": [1, (torch.zeros(()),)]})


def test_what_a_checkpoint_names_as_its_optimizer_is_never_imported(
    stopped: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, state = stopped["sgd"]
    (tmp_path / "trap_module.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forged = {**state, "config": {**state["config"], "optimizer": "trap_module:build", "lr": None}}
    save_checkpoint(tmp_path / "checkpoints", forged, {"version": "0"})
    trained = load_predictor(tmp_path)
    assert trained.config.optimizer == "sgd"
    resolve(trained.config, load_task(trained.config, small_data()))  # as `ncsam align` does
    assert "trap_module" not in sys.modules
