"""A race whose folds are trained on a Ray cluster ends as one that was run here, though a worker is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from auto_cases import clouds, config, saved_clouds

from ncsam.auto import auto
from ncsam.auto import on_ray as auto_on_ray
from ncsam.auto.candidates import Linear, Network
from ncsam.auto.on_ray import FoldsOnRay, folds_on_ray
from ncsam.auto.portfolio import portfolio
from ncsam.auto.problem import Problem
from ncsam.auto.race import Race
from ncsam.engine.task import load_task
from ncsam.errors import RunError
from ncsam.jobs.executor import ExecutorConfig
from ray_workers import needs_proc, one_killed


class Tasks:
    """Ray's part, done at once in this process."""

    class exceptions:  # noqa: N801
        RayError = ConnectionError

    def __init__(self) -> None:
        self.given: list[tuple[str, int]] = []
        self.cancelled: list[Any] = []

    def remote(self, config: dict[str, Any], folds: int, name: str, number: int, folder: str, url: str) -> Any:
        self.given.append((name, number))
        return lambda: auto_on_ray._train(config, folds, name, number, folder, url)

    def get(self, reference: Any) -> Any:
        return reference()

    def cancel(self, reference: Any, force: bool) -> None:
        self.cancelled.append(reference)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(saved_clouds(tmp_path / "clouds.npz"))


def test_folds_are_given_out_once_and_read_from_their_files(file: Path, tmp_path: Path) -> None:
    settings = config(data=str(file))
    problem = Problem(settings, load_task(settings), 3)
    first, second = portfolio(problem)[:2]
    ray = Tasks()
    folds = FoldsOnRay(ray, ray, [first.name, second.name])
    found = folds(problem, first, 0, tmp_path / "race", lambda: None)
    assert ray.given == [(first.name, 0), (second.name, 0), (first.name, 1), (first.name, 2)]
    again = folds(problem, first, 0, tmp_path / "race", lambda: None)
    np.testing.assert_array_equal(found.log_probabilities, again.log_probabilities)
    assert len(ray.given) == 4
    assert (tmp_path / "race" / first.name / "fold-0.pt").is_file()
    assert not (tmp_path / "race" / first.name / "fold-1.pt").exists()  # nobody has waited for it
    folds.end()
    assert len(ray.cancelled) == 4


def test_what_a_node_says_went_wrong_is_said_here(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(data=str(file))
    problem = Problem(settings, load_task(settings), 3)
    candidate = portfolio(problem)[0]

    def diverge(*args: Any) -> None:
        raise RunError("training diverged")

    monkeypatch.setattr(auto_on_ray, "train_fold", diverge)
    ray = Tasks()
    with pytest.raises(RunError, match="training diverged"):
        FoldsOnRay(ray, ray, [])(problem, candidate, 0, tmp_path / "race", lambda: None)
    with pytest.raises(ValueError, match="only without ray"):
        auto(settings, tmp_path / "out", dataset=clouds(), where=ExecutorConfig(on="ray"))


@pytest.mark.slow
@needs_proc
def test_a_race_on_ray_ends_like_one_here(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    settings = config(data=str(file))
    problem = Problem(settings, load_task(settings), 2)
    candidates = [next(c for c in portfolio(problem) if isinstance(c, kind)) for kind in (Linear, Network)]
    names = [each.name for each in candidates]
    with one_killed("_train") as killed, folds_on_ray(ExecutorConfig(2, "ray"), names, ahead=True) as train:
        there = Race(problem, tmp_path / "ray", say=str, train=train).run(candidates)
    assert killed
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as many as a task has
    try:
        here = Race(problem, tmp_path / "local", say=str).run(candidates)
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(there, here, strict=True):
        assert (one.status, len(one.folds)) == (other.status, len(other.folds))
        for fold, same in zip(one.folds, other.folds, strict=True):
            np.testing.assert_array_equal(fold.log_probabilities, same.log_probabilities)
