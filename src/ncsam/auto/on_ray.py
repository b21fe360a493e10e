"""The folds of a race as Ray tasks. What the race decides, and in which order, stays as it is: only training moves.

Every candidate needs its first fold, so these are given out at once (unless a budget may end the race before); the
others when it is the candidate's turn. A fold that the race then does not want was trained in vain, and changes
nothing. The folder of the race must lie where every node sees it, or have a copy at a URL (`ncsam.auto.copies`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ncsam._errors import need
from ncsam.auto.candidates import Candidate
from ncsam.auto.copies import Copies
from ncsam.auto.outcome import Fold, fold_file, train_fold
from ncsam.auto.portfolio import portfolio
from ncsam.auto.problem import Problem
from ncsam.engine.config import RunConfig
from ncsam.engine.task import load_task
from ncsam.errors import RunError
from ncsam.jobs.executor import ExecutorConfig
from ncsam.jobs.ray_cluster import cluster, parse_resources, remote


class FoldsOnRay:
    """Takes the place of `train_fold` in a race."""

    def __init__(self, ray: Any, task: Any, names: Sequence[str], mirror: str = "") -> None:
        self._ray = ray
        self._task = task
        self._first = list(names)
        self._mirror = mirror
        self._given: dict[tuple[str, int], Any] = {}

    def __call__(
        self, problem: Problem, candidate: Candidate, number: int, folder: Path, before_writing: Callable[[], None]
    ) -> Fold:
        for name in self._first:
            self._give(problem, name, 0, folder)
        self._first = []
        for fold in range(problem.num_folds):
            self._give(problem, candidate.name, fold, folder)
        before_writing()
        waited_for = self._given.get((candidate.name, number))
        problem_met = None if waited_for is None else self._answer(waited_for)
        if problem_met is not None:
            raise RunError(problem_met)
        if self._mirror and not (folder / fold_file(candidate.name, number)).is_file():
            Copies(self._mirror, folder.parent).bring(candidate.name, number)
        return train_fold(problem, candidate, number, folder, before_writing)  # reads what the task has written

    def _give(self, problem: Problem, name: str, number: int, folder: Path) -> None:
        key = (name, number)
        if key not in self._given and not (folder / fold_file(name, number)).is_file():
            arguments = (problem.config.to_dict(), problem.num_folds, name, number, str(folder.resolve()))
            self._given[key] = self._task.remote(*arguments, self._mirror)

    def _answer(self, reference: Any) -> str | None:
        """What went wrong, if anything did."""
        try:
            found: str | None = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return f"a fold's worker was lost too often ({' '.join(str(error).split())[:200]})"
        return found

    def end(self) -> None:
        """Take back what nobody waits for."""
        for reference in self._given.values():
            self._ray.cancel(reference, force=True)


@contextlib.contextmanager
def folds_on_ray(where: ExecutorConfig, names: Sequence[str], *, ahead: bool) -> Iterator[FoldsOnRay]:
    """A cluster and its way to train folds; `names` are the candidates, whose first folds are given out `ahead`."""
    ray: Any = need("ray", "ray", "running on a Ray cluster")
    needed = parse_resources(where.resources)
    with cluster(ray, where.at_a_time, needed):
        folds = FoldsOnRay(ray, remote(ray, _train, needed), names if ahead else [], where.mirror)
        try:
            yield folds
        finally:
            folds.end()


def _train(config: dict[str, Any], folds: int, name: str, number: int, folder: str, mirror: str) -> str | None:
    """Train one fold on the node that this is, and leave it in its file, and at a URL; a sentence if that failed."""
    settings = RunConfig.from_dict(config)
    problem = Problem(settings, load_task(settings), folds)
    candidate = next(each for each in portfolio(problem) if each.name == name)
    try:
        train_fold(problem, candidate, number, Path(folder), lambda: None)
    except RunError as error:
        return str(error)
    if mirror:
        Copies(mirror, Path(folder).parent).keep(name, number)
    return None
