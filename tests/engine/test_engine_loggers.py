"""What is shown and logged: plain lines in a pipe, a bar on a terminal, loggers by name."""

from __future__ import annotations

import builtins
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ncsam.engine import RunConfig, train
from ncsam.engine.loggers import COLUMNS, MetricsFiles, open_loggers
from ncsam.engine.sinks import ConsoleSink

from test_engine_run import config, images  # isort: skip


def record(epoch: int, **changes: object) -> dict[str, object]:
    names = [name for name in COLUMNS if not name.startswith("telemetry")]
    return {**dict.fromkeys(names, 1.5), "epoch": epoch, "memorized": None, "telemetry": {"rho": 0.1}, **changes}


def test_in_a_pipe_there_are_plain_lines_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(config(optimizer="sgd", epochs=2), tmp_path, dataset=images())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("ce with sgd on cpu, from the start")
    assert lines[1].startswith("epoch 1/2  loss ")
    assert all("\x1b" not in line and "\r" not in line for line in lines)
    for name in ("test", "val"):
        assert f"{name} " in lines[1]
    assert "memorized" not in lines[1]  # after one epoch this network is at chance


def test_a_terminal_gets_a_bar_and_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    console = ConsoleSink(True, epochs=3, batches=10)
    console.step(2, 4)
    console.say("a line [with brackets]")
    console.close()
    assert "\x1b" in screen.getvalue()
    assert "a line [with brackets]" in screen.getvalue()


def test_without_rich_a_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = builtins.__import__

    def without(name: str, *args: object, **options: object) -> object:
        if name.startswith("rich"):
            raise ImportError(name)
        return known(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    console = ConsoleSink(True, epochs=3, batches=10)
    console.step(1, 1)
    console.say("a line")
    console.close()
    assert capsys.readouterr().out == "a line\n"


def test_metrics_files_begin_with_the_history(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("of an earlier attempt\n")
    files = MetricsFiles(tmp_path, [record(1)])
    files.log(record(2, memorized=12.5))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [record(1), record(2, memorized=12.5)]
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert table[0] == ",".join(COLUMNS)
    assert [row.split(",")[5] for row in table[1:]] == ["", "12.5"]
    files.close()


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for logger in open_loggers(["tensorboard"], tmp_path, {}, [])[1:]:
        logger.log(record(1, test_accuracy=50.0))
        logger.log(record(2, test_accuracy=60.0))
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("test_accuracy")] == [(1, 50.0), (2, 60.0)]
    assert [e.value for e in events.Scalars("telemetry/rho")] == pytest.approx([0.1, 0.1])


def test_wandb_and_mlflow_get_the_flat_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against stand-ins: neither is needed to test what we hand over."""
    seen: list[tuple[object, ...]] = []
    run = SimpleNamespace(log=lambda values, step: seen.append(("wandb", step, values)), finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **options: seen.append((options,)) or run))
    mlflow = SimpleNamespace(
        set_experiment=lambda name: None,
        start_run=lambda run_name: None,
        log_params=lambda values: seen.append(("params", values)),
        log_metrics=lambda values, step: seen.append(("mlflow", step, values)),
        end_run=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    loggers = open_loggers(["wandb", "mlflow"], tmp_path / "run", {"lr": 0.1}, [])
    for logger in loggers[1:]:
        logger.log(record(3))
        logger.close()
    assert seen[0][0]["config"] == {"lr": 0.1}
    assert seen[1] == ("params", {"lr": "0.1"})
    for name, step, values in seen[2:]:
        assert name in ("wandb", "mlflow")
        assert step == 3
        assert values["telemetry.rho"] == 0.1
        assert "memorized" not in values  # unknown


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_logger_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"loggers: \[{name}\] needs '{name}'.*pip install \"ncsam\[{name}\]\""):
        train(config(optimizer="sgd", loggers=[name]), tmp_path, dataset=images(), console=False)
    assert isinstance(RunConfig(loggers=[name]).loggers, list)
