"""A search with worker processes, on Ray and with its copy at a URL ends like one in this process."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from auto_cases import config, saved_clouds

from ncsam.automl import auto, outcome
from ncsam.automl import portfolio as portfolios
from ncsam.automl import run as auto_run
from ncsam.automl.candidates import Candidate, ClosedForm, Network
from ncsam.errors import RunError
from ncsam.jobs import ExecutorConfig, local, ray_cluster
from ncsam.jobs.job import Job, Result, do
from ray_workers import needs_proc, one_killed

CANDIDATES: list[Candidate] = [
    ClosedForm("lda", "lda"),
    ClosedForm("pruned", "lda", {"prune": 1}),
    Network("sgd", {"optimizer": "sgd", "epochs": 20, "lr": 0.1, "batch_size": 32}),
]


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/search"


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (auto_run, portfolios):
        monkeypatch.setattr(module, "portfolio", lambda problem: CANDIDATES)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(saved_clouds(tmp_path / "clouds.npz"))


def search(folder: Path, file: Path, seed: int = 1, **options: Any) -> tuple[list[dict[str, Any]], Any]:
    """A small search; its leaderboard without times."""
    where = ExecutorConfig(**options)
    board = auto(config(data=str(file), seed=seed), folder, folds=3, where=where, say=lambda text: None)
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in board["candidates"]]
    return rows, board["chosen"]


def test_another_machine_resumes_with_the_candidates_at_the_url(
    tmp_path: Path, file: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(tmp_path / "whole", file)
    fit = Network.fit

    def lost(self: Network, problem: Any, fold: int, scratch: Path) -> Any:
        if fold == 1:
            raise KeyboardInterrupt
        return fit(self, problem, fold, scratch)

    monkeypatch.setattr(Network, "fit", lost)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "lost", file, mirror=url)
    shutil.rmtree(tmp_path / "lost")
    trained: list[int] = []
    monkeypatch.setattr(
        Network,
        "fit",
        lambda self, problem, fold, scratch: (trained.append(fold), fit(self, problem, fold, scratch))[1],
    )
    monkeypatch.setattr(outcome, "_closed_form", None)  # both are there
    assert search(tmp_path / "elsewhere", file, mirror=url) == whole
    assert trained == [1, 2]
    assert search(tmp_path / "third", file, mirror=url) == whole  # finished: the whole folder is there
    assert len(trained) == 2
    with pytest.raises(RunError, match="holds another search"):  # the folder was taken from the URL
        search(tmp_path / "other", file, seed=2, mirror=url)


def test_a_finished_search_that_the_mirror_lacks_is_copied(tmp_path: Path, file: Path, url: str) -> None:
    found = search(tmp_path / "here", file)
    assert search(tmp_path / "here", file, mirror=url) == found
    assert search(tmp_path / "elsewhere", file, mirror=url) == found
    names = ("summary.json", "leaderboard.json")
    assert all((tmp_path / "elsewhere" / n).read_bytes() == (tmp_path / "here" / n).read_bytes() for n in names)
    other = search(tmp_path / "own", file, seed=2)
    with pytest.raises(RunError, match="holds the copy"):
        search(tmp_path / "own", file, seed=2, mirror=url)
    assert other != found


@pytest.mark.parametrize("where", ["local", pytest.param("ray", marks=pytest.mark.stress)])
def test_jobs_in_other_processes_end_like_those_in_this_one(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The jobs as workers read them, from plain values; the processes themselves are those of `compare`."""
    done: list[str] = []

    def run_all(jobs: list[Job], workers: int, threads: Any, ended: Any) -> None:
        for job in jobs:
            done.append(job.out.name)
            ended(Result(job.name, **do(job.to_dict(), 1)))

    monkeypatch.setattr(local, "run_all", run_all)
    monkeypatch.setattr(ray_cluster, "run_all", run_all)
    monkeypatch.setattr(ray_cluster, "check_cluster", lambda: None)
    assert search(tmp_path / "there", file, on=where, workers=2) == search(tmp_path / "here", file)
    assert done == ["lda", "pruned", "sgd"]


def test_what_went_wrong_in_a_worker_is_said_here(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(jobs: list[Job], workers: int, threads: int, ended: Any) -> None:
        for job in jobs:
            ended(Result(job.name, None, "its process ended unexpectedly"))

    monkeypatch.setattr(local, "run_all", run_all)
    with pytest.raises(RunError, match="ended unexpectedly"):
        search(tmp_path / "out", file, workers=2)


@pytest.mark.stress  # Ray itself is in tests/compare
@needs_proc
def test_a_search_on_ray_ends_like_one_here(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.undo()  # workers of Ray know the real portfolio only
    with one_killed("_run") as killed:
        there = search(tmp_path / "there", file, on="ray", workers=2)
    assert killed
    assert there == search(tmp_path / "here", file)
