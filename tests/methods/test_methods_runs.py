"""Every method through the engine: two epochs with NCSAM (`make stress`: and with SGD), stopped and resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ncsam import methods
from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train
from ncsam.engine.predictor import load_predictor
from ncsam.engine.trainer import Trainer

CLASSES = 4
#: Options that let a method's own part begin with the second epoch; the others' does with the first.
OPTIONS: dict[str, dict[str, Any]] = {
    "backward": {"warmup_epochs": 1},
    "cal": {"first_epochs": 1, "warmup_epochs": 0, "ramp_epochs": 1},
    "cleannet": {"warmup_epochs": 1, "inner_steps": 5, "references": 3},
    "cc": {"warmup_epochs": 1, "ramp_epochs": 1, "iterations": 12, "consistency": 0.2},
    "cores2": {"warmup_epochs": 0, "ramp_epochs": 2, "sieve_after": 0},
    "coteaching": {"ramp_epochs": 2},
    "coteaching_plus": {"ramp_epochs": 1, "warmup_epochs": 1},
    "decoupling": {"warmup_epochs": 1},
    "disc": {"warmup_epochs": 1},
    "dividemix": {"warmup_epochs": 1, "ramp_epochs": 1, "average": 2},
    "dmi": {"warmup_epochs": 1},
    "forward": {"warmup_epochs": 1},
    "gce_truncated": {"prune_after": 1},
    "jocor": {"ramp_epochs": 2},
    "mcorrection": {"warmup_epochs": 1},
    "mentornet": {"ramp_epochs": 2},
    "nct": {"ramp_epochs": 1},
    "nested_coteaching": {"sigma": 3.0, "tune_epochs": 1, "tune_lr": 1.0},
    "peer": {"warmup_epochs": 0, "ramp_epochs": 1},
    "plc": {"warmup_epochs": 1},
    "selfie": {"warmup_epochs": 1},
    "sln": {"decay": 0.9, "correct_after": 1},
    "unicon": {"warmup_epochs": 1, "ramp_epochs": 1},
    "trevision": {"warmup_epochs": 1, "revise_after": 0, "slack_lr": 0.01},
}


#: Losses without a state: tests/engine/test_engine_fine_tuning.py trains with them, and they are stopped as "ce" is.
STATELESS = ("apl", "gce", "js", "sl")


class StoppedError(Exception):
    """The plug is pulled."""


def images() -> DataSet:
    """240 gray 6 x 6 images whose bright corner tells the class; 200 of them for training."""
    rng = np.random.default_rng(3)
    y = np.arange(240) % CLASSES
    x = rng.integers(0, 120, size=(240, 6, 6, 1))
    for i, label in enumerate(y):
        x[i, 3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 100
    x = x.astype(np.uint8)
    return from_arrays(x[:200], y[:200], x_test=x[200:], y_test=y[200:], name="corners")


def config(method: str, **changes: Any) -> RunConfig:
    options = {
        "data": "corners",
        "noise": "symmetric",
        "rate": 0.3,
        "method": method,
        "method_options": OPTIONS.get(method, {}),
        "model": "mlp",
        "model_options": {"hidden": [8], "dropout": 0.1},
        "epochs": 2,
        "batch_size": 20,
        "warmup": 0.0,
        "rho": 0.1,
        "telemetry_every": 4,
        "checkpoint_every": 4,
    }
    return RunConfig.from_dict({**options, **changes})


def run(config: RunConfig, folder: Path) -> dict[str, Any]:
    summary = train(config, folder, dataset=images(), console=False)
    checkpoint = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    return {"summary": summary, **{part: checkpoint[part] for part in ("learners", "samples", "method", "history")}}


def assert_equal(a: object, b: object, where: str = "") -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if "second" not in str(key):  # times differ
                assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b, strict=True)):
            assert_equal(*pair, f"{where}[{i}]")
    else:
        assert a == b or (a != a and b != b), where


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["uniform", pytest.param("sparse", marks=pytest.mark.stress)])
def test_peers_presets_learn_in_short_runs_too(preset: str, tmp_path: Path) -> None:
    """Their authors' last alpha from the start would leave digits at 10 to 50 %."""
    options = {"method": "peer", "method_options": {"preset": preset}, "optimizer": "sgd", "epochs": 20}
    options |= {"lr": 0.05, "weight_decay": 1e-3, "batch_size": None}
    summary = train(RunConfig.from_dict({"noise": "symmetric", "rate": 0.4, **options}), tmp_path, console=False)
    assert summary["last5"] > 90


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.stress), "ncsam"])
@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.stress if name in STATELESS else ()) for name in methods.names()],
)
def test_two_epochs_and_the_same_bits_after_a_stop(
    method: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(config(method, optimizer=optimizer), tmp_path / "whole")
    assert all(math.isfinite(record["train_loss"]) for record in whole["history"])
    assert 0 <= whole["summary"]["last"] <= 100

    test = images().test  # from the checkpoint alone, as `ncsam predict` does
    found = torch.cat(list(load_predictor(tmp_path / "whole").probabilities(test.inputs))).argmax(dim=1)
    assert 100 * float((found.numpy() == test.labels).mean()) == pytest.approx(whole["summary"]["last"])

    step = Trainer._step

    def failing(self: Trainer, epoch: int, number: int, batch: Any) -> None:
        if (epoch, number) in stops:
            stops.remove((epoch, number))
            raise StoppedError
        step(self, epoch, number, batch)

    stops = [(2, 1), (2, 6)]  # the last checkpoints before them: between the epochs, and within the second
    monkeypatch.setattr(Trainer, "_step", failing)
    for _ in range(2):
        with pytest.raises(StoppedError):
            train(config(method, optimizer=optimizer), tmp_path / "stopped", dataset=images(), console=False)
    assert_equal(run(config(method, optimizer=optimizer), tmp_path / "stopped"), whole)
    kept = json.loads((tmp_path / "stopped/summary.json").read_text())
    assert kept["method"] == method
