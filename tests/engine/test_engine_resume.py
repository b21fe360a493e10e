"""A run that is killed, interrupted or disturbed resumes as if nothing had happened, or says clearly why it cannot."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
import pytest
import torch

from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import Interrupted, RunConfig, RunError, train
from ncsam.engine import checkpoint as checkpoint_module
from ncsam.engine.metrics import TIME_FIELDS
from ncsam.engine.sinks import CheckpointSink
from ncsam.engine.trainer import Trainer
from ncsam.runs.writer import locked
from processes import start


def small_data(samples: int = 96, seed: int = 0) -> DataSet:
    rng = np.random.default_rng(seed)
    y = np.arange(samples + 40) % 4
    x = (rng.normal(size=(samples + 40, 6)) + 2.0 * np.eye(6)[y]).astype(np.float32)
    return from_arrays(x[:samples], y[:samples], x_test=x[samples:], y_test=y[samples:], name="small")


def small_config(**changes: object) -> RunConfig:
    options = {
        "data": "small",
        "noise": "symmetric",
        "rate": 0.3,
        "method": "mixup",
        "optimizer": "ncsam",
        "rho": 0.1,
        "model": "mlp",
        "model_options": {"hidden": [8], "dropout": 0.2},
        "lr": 0.05,
        "weight_decay": 1e-3,
        "epochs": 6,
        "batch_size": 16,
        "telemetry_every": 2,
        "checkpoint_every": 1000,  # that is: after every epoch, however short
    }
    return RunConfig.from_dict({**options, **changes})


def run_in_process(config: RunConfig, out: str) -> None:
    torch.set_num_threads(1)
    train(config, out, dataset=small_data(), console=False)


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, optimizer state, per-sample memory, generators, metrics and label issues: equal bit for bit."""
    first, second = (torch.load(f / "checkpoints/last.ckpt", weights_only=True) for f in (one, other))
    decided = ("flip_ratio", "warmup_epochs", "noise_estimate")
    for part in ("learners", "samples", "method", "epoch", "batch", *decided):
        assert_equal(first[part], second[part], part)
    assert_equal(first["ranks"][0]["random"], second["ranks"][0]["random"], "random")
    assert lines_without_time(one) == lines_without_time(other)
    assert (one / "label_issues.csv").read_text() == (other / "label_issues.csv").read_text()
    summaries = [json.loads((f / "summary.json").read_text()) for f in (one, other)]
    assert {**summaries[0], "seconds": 0} == {**summaries[1], "seconds": 0}


def assert_equal(a: object, b: object, where: str) -> None:
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert isinstance(b, dict)
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, (list, tuple)):
        assert isinstance(b, (list, tuple))
        assert len(a) == len(b), where
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_equal(left, right, f"{where}[{i}]")
    else:
        assert a == b, where


def lines_without_time(folder: Path) -> list[dict[str, object]]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in TIME_FIELDS} for record in records]


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint_every", [pytest.param(None, marks=pytest.mark.stress), 1])
def test_a_run_killed_at_random_points_ends_with_the_same_bits(tmp_path: Path, checkpoint_every: int | None) -> None:
    config = small_config(checkpoint_every=checkpoint_every, epochs=12)

    def begin(out: str) -> ForkServerProcess:
        return start(run_in_process, config, str(tmp_path / out))

    whole = begin("whole")
    whole.join()
    assert whole.exitcode == 0
    chance = random.Random(7)
    kills = 0
    metrics = tmp_path / "killed" / "metrics.jsonl"
    for epochs in (2, 5, 8):
        process = begin("killed")
        while process.exitcode is None and not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= epochs):
            time.sleep(0.001)
        process.join(chance.uniform(0.0, 0.02))
        if process.exitcode is None:
            process.kill()
            process.join()
            kills += 1
    final = begin("killed")
    final.join()
    assert final.exitcode == 0
    assert kills >= 1
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


SETTLED_ON_THE_WAY = {
    "warmup": "auto",
    "flip_ratio": "auto",
    "rho": "auto",
    "epochs": 16,
    "batch_size": 32,
    "lr": 0.4,
    "val_share": 0.4,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[RunConfig], Path]:
    """The folder of an undisturbed run, trained when it is first asked for."""
    top = tmp_path_factory.mktemp("whole")

    def trained(config: RunConfig) -> Path:
        folder = top / hashlib.sha256(repr(config).encode()).hexdigest()
        if not folder.exists():
            train(config, folder, dataset=small_data(), console=False)
        return folder

    return trained


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        *(({}, at) for at in (0, 1, 7, 13)),
        ({"batches": "full"}, 7),
        *(({"rho": "validation"}, at) for at in (17, 31)),
        *((SETTLED_ON_THE_WAY, at) for at in (5, 10, 11, 25)),  # two steps an epoch; warm-up ends after five
    ],
)
def test_a_run_stopped_after_any_step_resumes_with_the_same_bits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: Callable[[RunConfig], Path],
    changes: dict[str, object],
    at: int,
) -> None:
    config = small_config(checkpoint_every=1, **changes)
    undisturbed = whole(config)
    summary = json.loads((undisturbed / "summary.json").read_text())
    assert summary["warmup_epochs"] == (5 if "warmup" in changes else 2)
    step, count = Trainer._step, [0]

    def failing(self: Trainer, *args: object) -> None:
        if count[0] == at:
            raise ZeroDivisionError
        count[0] += 1
        step(self, *args)

    monkeypatch.setattr(Trainer, "_step", failing)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "stopped", dataset=small_data(), console=False)
    monkeypatch.undo()
    train(config, tmp_path / "stopped", dataset=small_data(), console=False)
    assert_same_run(undisturbed, tmp_path / "stopped")


def test_ctrl_c_leaves_a_run_that_goes_on_from_that_very_step(tmp_path: Path) -> None:
    config = small_config(epochs=400)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(
        Interrupted, match=r"interrupted in epoch \d+ of 400; rerun the same command to resume"
    ) as caught:
        train(config, tmp_path / "run", dataset=small_data(), console=False)
    timer.join()
    assert isinstance(caught.value, KeyboardInterrupt)
    state = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert 0 <= state["epoch"] < 400
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupted_in_the_middle_of_an_epoch_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Callable[[RunConfig], Path]
) -> None:
    config = small_config()
    undisturbed = whole(config)
    step, count = Trainer._step, [0]

    def interrupting(self: Trainer, *args: object) -> None:
        step(self, *args)
        count[0] += 1
        if count[0] == 8:  # six batches an epoch: the second one of the second epoch
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_step", interrupting)
    with pytest.raises(Interrupted, match="epoch 2 of 6"):
        train(config, tmp_path / "run", dataset=small_data(), console=False)
    monkeypatch.undo()
    state = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert (state["epoch"], state["batch"]) == (1, 2)
    train(config, tmp_path / "run", dataset=small_data(), console=False)
    assert_same_run(undisturbed, tmp_path / "run")


def test_metrics_written_after_the_last_checkpoint_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(epochs=3)
    save = CheckpointSink.save

    def failing(self: CheckpointSink, trainer: Trainer) -> None:
        if trainer.epoch == 2:
            raise ZeroDivisionError  # after the line of epoch 2 was written
        save(self, trainer)

    monkeypatch.setattr(CheckpointSink, "save", failing)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "run", dataset=small_data(), console=False)
    assert len(lines_without_time(tmp_path / "run")) == 2
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "trai')  # and half a line
    monkeypatch.undo()
    train(config, tmp_path / "run", dataset=small_data(), console=False)
    assert [record["epoch"] for record in lines_without_time(tmp_path / "run")] == [1, 2, 3]
    assert len((tmp_path / "run/metrics.csv").read_text().splitlines()) == 4


def stop_after_two_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: RunConfig) -> bytes:
    """An unfinished run in tmp_path/run; the bytes of its checkpoint."""
    save = CheckpointSink.save

    def stopping(self: CheckpointSink, trainer: Trainer) -> None:
        save(self, trainer)
        if trainer.epoch == 2:
            raise ZeroDivisionError

    monkeypatch.setattr(CheckpointSink, "save", stopping)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "run", dataset=small_data(), console=False)
    monkeypatch.undo()
    return (tmp_path / "run/checkpoints/last.ckpt").read_bytes()


def test_checkpoints_of_very_short_epochs_take_a_twentieth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saved = [100.0], []
    monkeypatch.setattr("ncsam.engine.sinks.time.perf_counter", lambda: clock[0])

    def slow(folder: Path, state: dict[str, object], about: dict[str, object]) -> None:
        clock[0] += 1.0
        saved.append(state["epoch"])

    monkeypatch.setattr("ncsam.engine.sinks.save_checkpoint", slow)
    step = Trainer._step

    def timed(self: Trainer, *args: object) -> None:
        clock[0] += 1.0
        step(self, *args)

    monkeypatch.setattr(Trainer, "_step", timed)
    config = small_config(epochs=10, checkpoint_every=None)  # six steps an epoch, so 6 s, and a save takes 1 s
    train(config, tmp_path / "a", dataset=small_data(), console=False)
    assert saved == [1, 5, 9, 10]  # 20 s apart, rounded up to whole epochs; and the last


def test_a_full_disk_is_one_sentence_and_the_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = stop_after_two_epochs(tmp_path, monkeypatch, small_config())

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(bytes(data)[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint_module.Path, "write_bytes", full)
    with pytest.raises(RunError, match=r"last.ckpt.*No space left"):
        train(small_config(), tmp_path / "run", dataset=small_data(), console=False)
    monkeypatch.undo()
    assert (tmp_path / "run/checkpoints/last.ckpt").read_bytes() == kept
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == [
        "last.ckpt",
        "last.json",
        "previous.ckpt",
    ]
    assert train(small_config(), tmp_path / "run", dataset=small_data(), console=False)["epochs"] == 6


def test_a_loss_that_is_not_finite_ends_the_run_and_the_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = stop_after_two_epochs(tmp_path, monkeypatch, small_config())
    from ncsam.methods.mixup import Mixup

    criterion = Mixup.criterion
    monkeypatch.setattr(Mixup, "criterion", lambda self, z, y: criterion(self, z, y) * float("nan"))
    with pytest.raises(RunError, match=r"\(nan\).*epoch 3, batch 1"):
        train(small_config(), tmp_path / "run", dataset=small_data(), console=False)
    assert (tmp_path / "run/checkpoints/last.ckpt").read_bytes() == kept


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = stop_after_two_epochs(tmp_path, monkeypatch, small_config())
    step = Trainer._step

    def poisoned(self: Trainer, epoch: int, number: int, batch: object) -> None:
        step(self, epoch, number, batch)
        if number == 5:
            with torch.no_grad():
                next(self.networks[0].parameters()).view(-1)[0] = float("inf")

    monkeypatch.setattr(Trainer, "_step", poisoned)
    with pytest.raises(RunError, match=r"after 6.*epoch 3"):
        train(small_config(), tmp_path / "run", dataset=small_data(), console=False)
    assert (tmp_path / "run/checkpoints/last.ckpt").read_bytes() == kept


def test_changed_labels_and_changed_options_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = stop_after_two_epochs(tmp_path, monkeypatch, small_config())
    with pytest.raises(RunError, match=r"\(lr was 0.05, now 0.1.*was 6, now 9\)"):
        train(small_config(lr=0.1, epochs=9), tmp_path / "run", dataset=small_data(), console=False)
    other = small_data()
    other.train.labels[0] = (other.train.labels[0] + 1) % 4
    with pytest.raises(RunError, match="training labels have changed"):
        train(small_config(), tmp_path / "run", dataset=other, console=False)
    assert (tmp_path / "run/checkpoints/last.ckpt").read_bytes() == kept
    # where and how fast it runs may change
    train(small_config(workers=1, checkpoint_every=2), tmp_path / "run", dataset=small_data(), console=False)


def test_a_finished_run_is_not_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(epochs=2)
    summary = train(config, tmp_path / "run", dataset=small_data(), console=False)
    before = (tmp_path / "run/checkpoints/last.ckpt").stat().st_mtime_ns
    capsys.readouterr()
    assert train(config, tmp_path / "run", dataset=small_data()) == summary
    assert "is finished" in capsys.readouterr().out
    assert (tmp_path / "run/checkpoints/last.ckpt").stat().st_mtime_ns == before
    with pytest.raises(RunError, match="epochs was 2, now 3"):
        train(config.replace(epochs=3), tmp_path / "run", dataset=small_data())


def test_a_folder_in_use_is_refused_and_a_lock_left_behind_is_not(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(RunError, match=rf"is in use: process {os.getpid()} is training there"):
        train(small_config(epochs=1), tmp_path, dataset=small_data(), console=False)
    assert (tmp_path / ".lock").exists()
    train(small_config(epochs=1), tmp_path, dataset=small_data(), console=False)
