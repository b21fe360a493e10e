"""Run folders: what a failed or killed run leaves, one that vanishes, and one that belongs to another run."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_engine_resume import assert_same_run, small_config, small_data, stop_after_two_epochs

from ncsam._files import atomic_path
from ncsam.engine import RunError, train
from ncsam.engine.checkpoint import load_checkpoint, save_checkpoint
from ncsam.engine.sinks import CheckpointSink
from ncsam.engine.trainer import Trainer
from ncsam.runs.writer import locked


def go(folder: Path, **changes: object) -> dict[str, object]:
    return train(small_config(**changes), folder, dataset=small_data(), console=False)


def test_a_damaged_checkpoint_costs_an_epoch_and_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tmp_path / "whole", epochs=3)
    stop_after_two_epochs(tmp_path, monkeypatch, small_config(epochs=3))
    path = tmp_path / "run/checkpoints/last.ckpt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 8
    path.write_bytes(content)
    go(tmp_path / "run", epochs=3)
    assert "last.ckpt is damaged: its checksum does not match its content; the one before" in capsys.readouterr().err
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_the_configuration_inside_the_checkpoint_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after_two_epochs(tmp_path, monkeypatch, small_config(epochs=3))
    (tmp_path / "run/config.yaml").unlink()
    with pytest.raises(RunError, match=r"another configuration \(lr was 0.05, now 0.1\)"):
        go(tmp_path / "run", epochs=3, lr=0.1)
    go(tmp_path / "run", epochs=3)
    assert (tmp_path / "run/config.yaml").is_file()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"epoch": 10**9}, "is at epoch 1000000000, batch 0, which"),
        ({"epoch": -1}, "is at epoch -1"),
        ({"batch": 6}, "is at epoch 2, batch 6"),
        ({"history": []}, "of epoch 2 has records of 0 epochs"),
        ({"learners": []}, "does not match this model, method or optimizer"),
        ({"ranks": [{"sums": {}}]}, "does not match this model, method or optimizer"),
        ({"config": {"lr": "x"}}, "lr='x'"),
    ],
)
def test_a_forged_place_in_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], said: str
) -> None:
    stop_after_two_epochs(tmp_path, monkeypatch, small_config(epochs=3))
    state = load_checkpoint(tmp_path / "run/checkpoints")
    assert state is not None
    save_checkpoint(tmp_path / "run/checkpoints", {**state, **changes}, {})
    with pytest.raises((RunError, ValueError), match=said):
        go(tmp_path / "run", epochs=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "mixup", "method_options": {"alpha": -1.0}},
        {"model_options": {"hidden": None}},
        {"noise_options": {"nonsense": 1}},
        {"optimizer_options": {"sign": 7}},
    ],
)
def test_a_first_run_with_a_mistake_leaves_no_folder(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"invalid|unknown"):
        go(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_in_its_first_step_does_not_block_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Trainer, *_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Trainer, "_step", failing)
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "run", epochs=1)
    monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    # nor does one that failed later, but before anything was worth keeping
    monkeypatch.setattr(CheckpointSink, "save", failing)
    with pytest.raises(ZeroDivisionError):
        go(tmp_path / "run", epochs=1)
    monkeypatch.undo()
    assert (tmp_path / "run/config.yaml").is_file()
    assert go(tmp_path / "run", epochs=2, lr=0.01)["epochs"] == 2
    assert "lr: 0.01\n" in (tmp_path / "run/config.yaml").read_text()


@pytest.mark.parametrize("remade", [False, True])
def test_a_folder_removed_while_the_run_goes_on_ends_it_and_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remade: bool
) -> None:
    step, count = Trainer._step, [0]

    def removing(self: Trainer, *args: object) -> None:
        step(self, *args)
        count[0] += 1
        if count[0] == 8:
            shutil.rmtree(tmp_path / "run")
            if remade:
                with locked(tmp_path / "run"):  # a second process enters
                    pass

    monkeypatch.setattr(Trainer, "_step", removing)
    with pytest.raises(RunError, match="run was removed, moved"):
        go(tmp_path / "run")
    assert [p.name for p in tmp_path.rglob("*")] == (["run", ".lock"] if remade else [])


def test_temporary_files_of_killed_processes_are_removed_and_those_of_living_ones_are_not(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom ncsam._files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as path:\n    path.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "checkpoints").mkdir()

    def kill(name: str) -> None:
        target = tmp_path / name
        subprocess.run([sys.executable, "-c", script, target], check=False)
        assert len(list(target.parent.glob(f".{target.name}.*"))) == 1

    kill("label_issues.csv")
    kill("checkpoints/last.ckpt")
    (tmp_path / ".config.yaml.20260101").write_text("somebody's own")
    with atomic_path(tmp_path / "summary.json") as living:
        living.write_text("{}")
        go(tmp_path, epochs=1)
        assert living.exists()
    names = {path.name for path in tmp_path.rglob(".*")}
    assert names == {".lock", ".config.yaml.20260101"}
    kill("other.csv")  # what a run does not know of, the next one to write it removes
    with atomic_path(tmp_path / "other.csv"):
        assert len(list(tmp_path.glob(".other.csv.*"))) == 1
    kill("damaged.csv")  # and what a run would not write again, it removes when it begins
    (tmp_path / "summary.json").unlink()
    go(tmp_path, epochs=1)
    assert list(tmp_path.glob(".damaged.csv.*")) == []


def test_a_name_as_long_as_the_file_system_allows_is_written(tmp_path: Path) -> None:
    for name in ("x" * 251 + ".csv", "y." + "z" * 253, "\N{SNOWMAN}" * 85):
        with atomic_path(tmp_path / name) as temporary:
            temporary.write_text("whole")
        assert (tmp_path / name).read_text() == "whole"


def test_a_lock_that_is_a_link_does_not_empty_its_target(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(RunError, match="as a run folder"), locked(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "content"


def test_a_run_folder_that_is_a_file_or_not_writable_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file is a file"), locked(tmp_path / "file"):
        pass
    with pytest.raises(RunError, match="as a run folder"), locked(tmp_path / "file/below"):
        pass


def test_a_lock_of_a_dead_process_that_a_child_still_holds_is_waited_for(tmp_path: Path) -> None:
    script = (
        "import fcntl, os, sys, time\nfile = open(sys.argv[1], 'a+')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
        "file.write(str(os.getpid())); file.flush()\n"
        "if os.fork() == 0:\n    os.close(1); time.sleep(1.0)\nelse:\n    os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / ".lock"], check=True, stdout=subprocess.PIPE)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


@pytest.mark.parametrize("content", ['{"epochs": 3, "la', "[1]", "", "[" * 100_000])
def test_a_summary_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    stop_after_two_epochs(tmp_path, monkeypatch, small_config(epochs=3))
    (tmp_path / "run/summary.json").write_text(content)
    with pytest.raises(RunError, match="summary of a run"):
        go(tmp_path / "run", epochs=3)


def test_a_write_that_fails_without_any_checkpoint_does_not_speak_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("ncsam.engine.checkpoint.Path.write_bytes", full)
    with pytest.raises(RunError, match="the disk is full"):
        go(tmp_path / "run", epochs=2)
    assert json.loads((tmp_path / "run/metrics.jsonl").read_text())["epoch"] == 1
    assert not list((tmp_path / "run/checkpoints").iterdir())


def test_a_short_write_is_said_with_the_file(tmp_path):
    """numpy tells of a full disk in an error that has neither a number nor a name."""
    said = r"could not be written whole \(8 requested and 3 written\): .*x\.npz"
    with pytest.raises(OSError, match=said) as found, atomic_path(tmp_path / "x.npz"):
        raise OSError("8 requested and 3 written")
    assert found.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mark", "held"),
    [
        ("auto.json", "`ncsam auto`"),
        ("comparison.json", "`ncsam compare`"),
        ("reproduce.json", "`ncsam reproduce`"),
    ],
)
def test_a_folder_of_another_command_is_not_trained_in(tmp_path: Path, mark: str, held: str) -> None:
    (tmp_path / mark).write_text("{}")
    with pytest.raises(RunError, match=f"{held}.*: choose another folder"):
        go(tmp_path, epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == [mark]
