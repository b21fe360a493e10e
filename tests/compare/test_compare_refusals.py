"""Comparisons: what can be known to be wrong is said before anything is written; what fails later stops no other."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ncsam.cli.main import main
from ncsam.comparison import compare
from ncsam.engine import RunConfig, RunError
from ncsam.jobs import local
from ncsam.jobs.executor import check_size
from ncsam.jobs.job import Job, Result
from ncsam.jobs.job import do as answer
from ncsam.report import content, figures
from ncsam.runs.writer import locked


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A small comparison, whose runs are done in this process."""

    def run_all(jobs: list[Job], workers: int, threads: int, ended: Callable[[Result], None]) -> None:
        for job in jobs:
            ended(Result(job.name, **answer(job.to_dict(), 1)))

    monkeypatch.setattr(local, "run_all", run_all)
    y = np.arange(60) % 3
    x = (np.random.default_rng(0).normal(size=(60, 3)) + 2 * np.eye(3)[y]).astype(np.float32)
    np.savez(tmp_path / "small.npz", x=x, y=y)
    return RunConfig(data=str(tmp_path / "small.npz"), model_options={"hidden": [4]}, epochs=1, accelerator="cpu")


def quiet(config: RunConfig, out: Path, **options: Any) -> list[dict[str, Any]]:
    return compare(config, out, **{"optimizers": ["sgd"], "seeds": 1, "say": lambda line: None, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizers": ["sgd", "sam:adaptive=abc"]}, "adaptive='abc'"),
        ({"optimizers": ["sgd", "ncsam:compensation=foo"]}, "compensation='foo'"),
        ({"optimizers": ["sgd", "sam:nosuch=3"]}, "unknown option of sam 'nosuch'"),
        ({"optimizers": ["sgd", "sgd:schedule_options={gamma: 1}"]}, "unknown option of cosine 'gamma'"),
        ({"optimizers": ["sgd", "sgd:accelerator=mps"]}, "accelerator='mps'"),
        ({"optimizers": ["sgd:data_root=" + "a" * 300]}, "a folder name of more than 255 bytes"),
        ({"seeds": 10**18}, "seeds=1000000000000000000"),
        ({"seeds": range(10**18)}, r"seeds=range\(0, 1.*\)"),
        ({"seeds": 2.5}, "seeds=2.5"),
        ({"seeds": 101, "optimizers": [f"sam:rho=0.{i}" for i in range(100)]}, "seeds=101.*10,100"),
        ({"workers": "two"}, "workers='two'"),
        ({"mirror": "data:,x"}, "mirror='data:,x'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_by_itself_is_said_first(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    began = time.monotonic()
    with pytest.raises(ValueError, match=said):
        quiet(config, tmp_path / "out", **options)
    assert time.monotonic() - began < 30  # and did not count that far
    assert not (tmp_path / "out").exists()


def test_what_the_data_decides_is_no_mistake(tmp_path: Path, config: RunConfig) -> None:
    left = config.replace(lr="auto", weight_decay="auto", rho_target="auto", warmup="auto", flip_ratio="auto")
    (row,) = quiet(left, tmp_path / "out", optimizers=["ncsam:rho=auto:epochs=4"])
    assert (row["failed"], row["seeds"]) == ([], [1])


def test_as_many_runs_as_are_allowed() -> None:
    check_size(10_000, 1)
    check_size([1, 2, 3, 4], 2_500)
    with pytest.raises(ValueError, match=r"seeds=\[1, 2, 3, 4\]"):
        check_size([1, 2, 3, 4], 2_501)


@pytest.mark.parametrize("options", [["--seeds", "1" + 18 * "0"], ["--seeds", "1" + 18 * "0", "--dry-run"]], ids=len)
def test_the_command_does_not_count_seeds_either(tmp_path: Path, config: RunConfig, options: list[str]) -> None:
    out = tmp_path / "out"
    for words in (["compare", config.data], ["reproduce", "table2", "--scale", "smoke"]):
        result = CliRunner().invoke(main, [*words, *options, "--out", str(out)])
        assert (result.exit_code, out.exists()) == (2, False)
        assert "Error: invalid --seeds=1000000000000000000" in result.output


def test_a_run_that_is_refused_costs_neither_the_others_nor_the_report(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    monkeypatch.setattr(content, "write_report", lambda runs, page, **_: (written.append(runs), [page])[1])
    monkeypatch.setattr(figures, "curves_png", lambda groups, path, title: path)
    out = tmp_path / "out"
    options = ["--methods", "unicon,ce", "--optimizers", "sgd", "--seeds", "1", "--epochs", "1", "--out", str(out)]
    result = CliRunner().invoke(main, ["compare", config.data, *options])
    assert result.exit_code == 1
    assert "unicon, sgd, seed 1: invalid method='unicon'" in result.output
    assert written == [[out / "ce-sgd-s1"]]
    assert [line.split()[:3] for line in result.output.splitlines() if line.startswith(("ce ", "unicon "))] == [
        ["unicon", "sgd", "0"],
        ["ce", "sgd", "1"],
    ]
    failed, done = json.loads((out / "comparison.json").read_text())
    assert ([len(failed["failed"]), failed["seeds"]], [done["failed"], done["seeds"]]) == ([1, []], [[], [1]])
    assert (out / "command.txt").read_text().startswith("ncsam compare ")


def test_a_changed_comparison_does_not_replace_the_one_that_is_there(tmp_path: Path, config: RunConfig) -> None:
    quiet(config, tmp_path / "out")
    there = (tmp_path / "out/comparison.json").read_bytes()
    with pytest.raises(RunError, match=r"ce-sgd-s1.*\(epochs was 1, now 2\)"):
        quiet(config.replace(epochs=2), tmp_path / "out", optimizers=["adamw", "sgd"], command="another")
    assert (tmp_path / "out/comparison.json").read_bytes() == there
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [".lock", "ce-sgd-s1", "comparison.json"]


def test_the_folder_of_another_command_is_left_alone(tmp_path: Path, config: RunConfig) -> None:
    for mark, held in (("config.yaml", "an `ncsam train` run"), ("auto.json", "an `ncsam auto` run")):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / mark).write_text("{}")
        with pytest.raises(RunError, match=f"holds {held}: choose another folder"):
            quiet(config, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["auto.json", "config.yaml"]


def test_one_comparison_at_a_time_in_a_folder(tmp_path: Path, config: RunConfig) -> None:
    with locked(tmp_path / "out"), pytest.raises(RunError, match="is in use: process"):
        quiet(config, tmp_path / "out", command="the second")
    assert not (tmp_path / "out/command.txt").exists()


def test_a_folder_that_is_removed_is_not_created_again(
    tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_all(jobs: list[Job], workers: int, threads: int, ended: Callable[[Result], None]) -> None:
        (tmp_path / "out").rename(tmp_path / "elsewhere")
        ended(Result(jobs[0].name, None, "its folder is gone"))

    monkeypatch.setattr(local, "run_all", run_all)
    with pytest.raises(RunError, match="out was removed, moved"):
        quiet(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
