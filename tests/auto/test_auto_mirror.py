"""A race with its copy at a URL: another machine goes on with the folds that are there, and no race takes another's."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from auto_cases import clouds, config, saved_clouds

from ncsam.auto import auto, on_ray
from ncsam.auto import run as auto_run
from ncsam.auto.candidates import Linear
from ncsam.auto.copies import Copies
from ncsam.auto.on_ray import FoldsOnRay
from ncsam.auto.outcome import Fold, train_fold
from ncsam.auto.portfolio import portfolio
from ncsam.auto.problem import Problem
from ncsam.engine.task import load_task
from ncsam.errors import RunError
from ncsam.jobs.executor import ExecutorConfig


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/race"


def race(folder: Path, url: str, seed: int = 1) -> tuple[list[dict[str, Any]], Any]:
    """A small race; its leaderboard without times."""
    board = auto(
        config(seed=seed), folder, folds=3, dataset=clouds(), where=ExecutorConfig(mirror=url), say=lambda text: None
    )
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in board["candidates"]]
    return rows, board["chosen"]


def test_another_machine_goes_on_with_the_folds_that_are_there(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [Linear("discriminant", "discriminant", 0.5), Linear("pruned", "discriminant", 0.5, rounds=1)]
    monkeypatch.setattr(auto_run, "portfolio", lambda problem: two)
    whole = race(tmp_path / "whole", "")
    trained: list[tuple[str, int]] = []

    def until_lost(problem: Problem, candidate: Any, number: int, folder: Path, *rest: Any) -> Fold:
        if (candidate.name, number) == ("pruned", 1):
            raise KeyboardInterrupt
        return train_fold(problem, candidate, number, folder, *rest)

    def noted(problem: Problem, candidate: Any, number: int, folder: Path, *rest: Any) -> Fold:
        if not (folder / candidate.name / f"fold-{number}.pt").is_file():
            trained.append((candidate.name, number))
        return train_fold(problem, candidate, number, folder, *rest)

    monkeypatch.setattr(auto_run, "train_fold", until_lost)
    with pytest.raises(KeyboardInterrupt):
        race(tmp_path / "lost", url)
    shutil.rmtree(tmp_path / "lost")
    monkeypatch.setattr(auto_run, "train_fold", noted)
    assert race(tmp_path / "elsewhere", url) == whole
    assert trained == [("pruned", 1), ("pruned", 2)]
    assert race(tmp_path / "third", url) == whole  # finished: the whole folder is there
    assert len(trained) == 2
    with pytest.raises(RunError, match="holds another race"):  # the folder was taken from the URL
        race(tmp_path / "other", url, seed=2)
    race(tmp_path / "own", "", seed=2)
    with pytest.raises(RunError, match="holds the copy of another race than"):
        race(tmp_path / "own", url, seed=2)


def test_a_finished_race_that_the_mirror_lacks_is_copied(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_run, "portfolio", lambda problem: [Linear("discriminant", "discriminant", 0.5)])
    found = race(tmp_path / "here", "")
    assert race(tmp_path / "here", url) == found
    assert race(tmp_path / "elsewhere", url) == found
    names = ("summary.json", "leaderboard.json")
    assert all((tmp_path / "elsewhere" / n).read_bytes() == (tmp_path / "here" / n).read_bytes() for n in names)


def test_a_node_without_our_disk_leaves_its_fold_at_the_url(tmp_path: Path, url: str) -> None:
    settings = config(data=str(saved_clouds(tmp_path / "clouds.npz")))
    problem = Problem(settings, load_task(settings), 2)
    candidate = portfolio(problem)[0]

    class Node:
        """Ray's part, with a disk of its own."""

        class exceptions:  # noqa: N801
            RayError = ConnectionError

        def remote(self, config: dict[str, Any], folds: int, name: str, number: int, folder: str, url: str) -> Any:
            return lambda: on_ray._train(config, folds, name, number, str(tmp_path / "node" / "candidates"), url)

        def get(self, reference: Any) -> Any:
            return reference()

    folds = FoldsOnRay(Node(), Node(), [], url)
    folds(problem, candidate, 0, tmp_path / "race" / "candidates", lambda: None)
    file = Path("candidates") / candidate.name / "fold-0.pt"
    assert (tmp_path / "race" / file).read_bytes() == (tmp_path / "node" / file).read_bytes()
    assert Copies(url, tmp_path / "race").mirror.has("", file.as_posix())
