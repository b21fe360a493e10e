"""Comparisons: all combinations, in worker processes, none run twice, none lost by another's failure."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ncsam.comparison import compare
from ncsam.comparison.grid import _mean_and_deviation, planned
from ncsam.comparison.specs import folder_name, with_spec
from ncsam.data import from_arrays, load
from ncsam.engine import RunConfig, RunError
from ncsam.engine.config import optimizer_names
from ncsam.jobs import local as workers
from ncsam.jobs.job import is_small
from ncsam.methods import Method, register, registry
from ncsam.methods import names as method_names
from ncsam.runs.writer import locked


def test_specs() -> None:
    base = RunConfig(rho=0.05, optimizer_options={"adaptive": True})
    plain = with_spec(base, "optimizer", "sam")
    assert (plain.optimizer, plain.rho) == ("sam", 0.05)
    tuned = with_spec(base, "optimizer", "ncsam:rho=0.1:warmup=0.25:sign=-1:compensation=relative:flip_ratio=null")
    assert (tuned.optimizer, tuned.rho, tuned.warmup, tuned.flip_ratio) == ("ncsam", 0.1, 0.25, None)
    assert tuned.optimizer_options == {"adaptive": True, "sign": -1, "compensation": "relative"}
    assert with_spec(base, "method", "mixup:alpha=8").method_options == {"alpha": 8}
    assert with_spec(base, "optimizer", "sgd:model=timm:vit:lr=1").model == "timm:vit"
    assert folder_name("mixup:alpha=8", "sam:rho=0.1", 2) == "mixup_alpha=8-sam_rho=0.1-s2"
    for wrong in ("", "sam:", "sam:rho", ":rho=1", "rho=1"):
        with pytest.raises(ValueError, match="invalid "):
            with_spec(base, "optimizer", wrong)
    with pytest.raises(ValueError, match="unknown optimizer 'smm'"):
        with_spec(base, "optimizer", "smm:rho=1")


def test_mean_and_sample_deviation() -> None:
    assert _mean_and_deviation([1.0, 2.0, 6.0]) == {"mean": 3.0, "std": pytest.approx(np.sqrt(7.0))}
    assert _mean_and_deviation([4.0]) == {"mean": 4.0, "std": None}
    assert _mean_and_deviation([4.0, None]) == {"mean": None, "std": None}
    assert _mean_and_deviation([]) == {"mean": None, "std": None}


def test_mistakes_are_named(tmp_path: Path) -> None:
    for wrong in ({"seeds": 0}, {"seeds": []}, {"optimizers": "sgd"}, {"methods": ["ce", "ce"]}, {"workers": 0}):
        with pytest.raises(ValueError, match=rf"{next(iter(wrong))}=.*"):
            compare(RunConfig(), tmp_path, **wrong)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 4
    x = (rng.normal(size=(120, 6)) + 1.5 * np.eye(6)[y]).astype(np.float32)
    np.savez(tmp_path / "small.npz", x=x[:80], y=y[:80], x_test=x[80:], y_test=y[80:])
    small = {"model_options": {"hidden": [8]}, "epochs": 3, "batch_size": 16, "accelerator": "cpu"}
    return RunConfig(data=str(tmp_path / "small.npz"), noise="symmetric", rate=0.3, **small)


STUB = """
import json, os, sys
for line in sys.stdin:
    name = os.path.basename(json.loads(line)["out"])
    if name.startswith("crash"):
        os._exit(3)
    error = name.startswith("fail")
    print(json.dumps({"summary": None, "error": "no"} if error else {"summary": {"pid": os.getpid()}}), flush=True)
"""


def test_workers_are_kept_for_many_jobs_and_replaced_when_they_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: workers._Worker) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", STUB], stdin=pipe, stdout=pipe, text=True)

    monkeypatch.setattr(workers._Worker, "_start", start)
    names = ["a", "b", "fail", "crash", "c", "d"]
    results: list[workers.Result] = []
    workers.run_all([workers.Job(n, RunConfig(), tmp_path / n) for n in names], 1, 1, results.append)
    assert [result.name for result in results] == names
    assert results[2] == workers.Result("fail", None, "no")
    assert results[3] == workers.Result("crash", None, "its process ended unexpectedly (exit code 3)")
    pids = [result.summary["pid"] for result in results if result.summary]
    assert pids[0] == pids[1] != pids[2] == pids[3]


@pytest.mark.slow
def test_a_comparison(tmp_path: Path, config: RunConfig) -> None:
    lines: list[str] = []
    bad = "sgd:lr=1e30"
    optimizers = [bad, "sgd", "ncsam:rho=0.2"]
    rows = compare(config, tmp_path / "out", optimizers=optimizers, seeds=[4, 9], workers=1, say=lines.append)
    assert json.loads((tmp_path / "out/comparison.json").read_text()) == rows
    by_name = {row["optimizer"]: row for row in rows}
    assert list(by_name) == optimizers
    good = by_name["ncsam:rho=0.2"]
    assert (good["method"], good["seeds"], good["failed"]) == ("ce", [4, 9], [])
    assert good["runs"] == ["ce-ncsam_rho=0.2-s4", "ce-ncsam_rho=0.2-s9"]
    summaries = [json.loads((tmp_path / "out" / run / "summary.json").read_text()) for run in good["runs"]]
    assert good["last"]["mean"] == pytest.approx(np.mean([s["last"] for s in summaries]))
    assert good["last"]["std"] == pytest.approx(np.std([s["last"] for s in summaries], ddof=1))
    assert [s["seed"] for s in summaries] == [4, 9]
    assert by_name[bad]["seeds"] == []
    assert all("training diverged" in failure["error"] for failure in by_name[bad]["failed"])
    assert lines[0] == "6 runs, 0 of them finished; 1 at a time"

    lines.clear()
    again = compare(config, tmp_path / "out", optimizers=["sgd", "ncsam:rho=0.2"], seeds=[4, 9], say=lines.append)
    assert lines == ["4 runs, 4 of them finished; 1 at a time"]
    assert again == [row for row in rows if row["optimizer"] != bad]


@pytest.mark.slow
def test_ctrl_c_stops_the_workers_with_checkpoints(tmp_path: Path, config: RunConfig) -> None:
    script = (
        "import json, sys\nfrom ncsam.comparison import compare\nfrom ncsam.engine import Interrupted, RunConfig\n"
        "try:\n    compare(RunConfig.from_dict(json.loads(sys.argv[1])), sys.argv[2], optimizers=['sgd'], seeds=1)\n"
        "except Interrupted as stop:\n    print(stop)\n    sys.exit(130)\n"
    )
    long = config.replace(epochs=100_000)
    command = [sys.executable, "-c", script, json.dumps(long.to_dict()), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    place = tmp_path / "out/ce-sgd-s1/checkpoints/last.ckpt"
    waited = time.monotonic()
    while not place.exists() and time.monotonic() - waited < 120:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    words, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "rerun the command to resume" in words
    with locked(place.parent.parent):  # nobody is left training there
        assert torch.load(place, weights_only=True)["epoch"] < 100_000


def test_a_name_that_two_things_own_is_refused_unless_the_value_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))

    @register
    class _WithSchedule(Method):
        """Has an option of its own that is called like one of the run."""

        name = "with_schedule"

        def __init__(self, schedule: str = "linear") -> None:
            if schedule not in ("linear", "often"):
                raise ValueError(f"schedule={schedule!r}")

    config = RunConfig()
    with pytest.raises(ValueError, match="only with_schedule has"):
        with_spec(config, "method", "with_schedule:schedule=linear")
    assert with_spec(config, "method", "with_schedule:schedule=often").method_options == {"schedule": "often"}
    assert with_spec(config, "method", "with_schedule:schedule=cosine").schedule == "cosine"
    # NCSAM's own warm-up is by "base" or "sam", the run's is a share of the epochs
    assert with_spec(config, "optimizer", "ncsam:warmup=0.25").warmup == 0.25
    assert with_spec(config, "optimizer", "ncsam:warmup=sam").optimizer_options == {"warmup": "sam"}
    assert with_spec(config, "optimizer", "ncsam:ramp=linear").optimizer_options == {"ramp": "linear"}
    assert with_spec(config, "optimizer", "ncsam:schedule=linear").schedule == "linear"  # NCSAM has none of its own
    assert with_spec(config, "optimizer", "ncsam:rho=0.3:kappa=0").rho == 0.3


def test_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workers, "available_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [workers.threads_each(n) for n in (1, 2, 16)] == [8, 4, 1]
    for asked, expected in (("3", 3), ("2,1", 2), ("many", 4), ("0", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        assert workers.threads_each(2) == expected


def test_small_networks_have_one_thread(tmp_path: Path) -> None:
    assert is_small(RunConfig(model="mlp"))
    assert is_small(RunConfig(data="digits", model="auto"))  # becomes an MLP
    assert not is_small(RunConfig(model="resnet18"))
    assert not is_small(RunConfig(data=str(tmp_path), model="auto"))


@pytest.mark.usefixtures("jobs_here")
def test_data_in_memory_is_written_once_and_read_by_the_jobs(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    dataset = from_arrays(x, y, x_test=x[:20], y_test=y[:20], classes=["no", "yes"])
    config = RunConfig(model="mlp", model_options={"hidden": [4]}, epochs=1, accelerator="cpu", val_share=0.0)
    options = {"optimizers": ["sgd"], "seeds": 1, "workers": 1, "dataset": dataset, "say": lambda line: None}
    (row,) = compare(config, tmp_path / "out", **options)
    assert row["failed"] == []
    assert row["last"]["mean"] is not None
    saved = load(tmp_path / "out" / "data.npz")
    np.testing.assert_array_equal(saved.train.inputs, x)
    assert saved.classes == ("no", "yes")
    assert compare(config, tmp_path / "out", **options) == [row]  # the finished run is read
    other = from_arrays(x, 1 - y, classes=["no", "yes"])
    with pytest.raises(RunError, match=r"data\.npz"):
        compare(config, tmp_path / "out", **{**options, "dataset": other})


def test_all_stands_for_every_name() -> None:
    runs = planned(RunConfig(), "all", ["all"], 1)
    pairs = [(run.method, run.optimizer) for run in runs]
    assert pairs == list(itertools.product(method_names(), optimizer_names()))
    with pytest.raises(ValueError, match="unknown method 'all'"):
        planned(RunConfig(), ["ce", "all"], ["sgd"], 1)
