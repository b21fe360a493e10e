"""Run the candidates as jobs: closed-form ones first, then networks, which are stopped once they cannot win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ncsam._text import format_duration
from ncsam.automl.candidates import Candidate, ClosedForm
from ncsam.automl.outcome import Outcome, correct, fit_candidate, read_outcome
from ncsam.automl.problem import Problem
from ncsam.automl.selection import GROUPED
from ncsam.automl.verified import Verified
from ncsam.engine.backbone import with_backbone
from ncsam.engine.config import RunConfig
from ncsam.engine.forecast import Approve
from ncsam.engine.task import load_task
from ncsam.errors import RunError
from ncsam.jobs import ExecutorConfig, Job, run_jobs
from ncsam.runs import layout


def run_candidates(
    problem: Problem,
    candidates: Sequence[Candidate],
    folder: Path,
    where: ExecutorConfig,
    *,
    budget: float | None = None,
    say: Callable[[str], None] = print,
    before_writing: Callable[[], None] = lambda: None,
    approve: Approve | None = None,
) -> list[Outcome]:
    """Train all candidates.

    Closed-form candidates (or, if there are none, the first candidate) are the reference for the others, so early
    stopping depends on results only: an interrupted search ends like an uninterrupted one. Only `budget` depends on the
    clock.

    Args:
        problem: data and folds.
        candidates: the candidates to train.
        folder: the folder that holds a folder for each candidate.
        where: where to run them: this process, worker processes or Ray, and an optional mirror.
        budget: limit on training time in seconds. Candidates that would exceed it are skipped, except for the
            recommended one and those that verified labels combine with it. `None`: no limit.
        say: called with lines of progress.
        before_writing: called before every write; raises if the command no longer owns its folder.
        approve: called with the expected seconds of the networks and "training", if there is no budget. Raise from it
            to stop.

    Returns:
        The outcomes, in the order of `candidates`.

    Raises:
        RunError: if a job failed.
    """
    closed_form: list[Candidate] = [each for each in candidates if isinstance(each, ClosedForm)]
    first = closed_form or list(candidates[:1])
    rest = [each for each in candidates if each not in first]
    if budget is None and rest:
        seconds = sum(each.seconds(problem) for each in rest)
        say(f"networks: about {format_duration(seconds)} if none is stopped early")
        if approve is not None:
            approve(seconds, "training")
    search = _Search(problem, folder, where, say, before_writing)
    skipped: dict[str, str] = {}
    if budget is None:
        search.run(first)
    else:
        needed = [each for each in first if each.name in GROUPED] or first[:1]
        search.run(needed)
        for each in [each for each in first if each not in needed]:
            if search.seconds() < budget or (folder / each.name / layout.SUMMARY).is_file():
                search.run([each])
            else:
                skipped[each.name] = "the budget is used up"
                first.remove(each)
        left = budget - search.seconds()
        for each in list(rest):
            seconds = 0.0 if (folder / each.name / layout.SUMMARY).is_file() else each.seconds(problem)
            if seconds > left:
                skipped[each.name] = f"about {format_duration(seconds)} would exceed the budget"
                rest.remove(each)
            left -= seconds
    search.run(rest, against=[each.name for each in first])
    return [
        Outcome(each, status="skipped", reason=skipped[each.name])
        if each.name in skipped
        else search.outcomes[each.name]
        for each in candidates
    ]


class _Search:
    """The candidates finished so far, and how to run the next ones."""

    def __init__(
        self,
        problem: Problem,
        folder: Path,
        where: ExecutorConfig,
        say: Callable[[str], None],
        before_writing: Callable[[], None],
    ) -> None:
        self.problem = problem
        self.folder = folder
        self.where = where
        self.say = say
        self.before_writing = before_writing
        self.outcomes: dict[str, Outcome] = {}

    def seconds(self) -> float:
        """Of training so far."""
        return sum(outcome.seconds for outcome in self.outcomes.values())

    def run(self, candidates: Sequence[Candidate], against: Sequence[str] = ()) -> None:
        """Run candidates as jobs, each in its folder."""
        if not candidates:
            return
        named = {each.name: each for each in candidates}
        verified = {int(i): int(self.problem.training_labels[i]) for i in np.flatnonzero(self.problem.trusted)}
        options = {
            "folds": self.problem.num_folds,
            "against": list(against),
            "verified": [list(verified), list(verified.values())],
        }
        jobs = [
            Job(
                f"{self.folder.name}/{name}",
                self.problem.config,
                self.folder / name,
                work="ncsam.automl.search:do_candidate",
                options={**options, "name": name},
            )
            for name in named
        ]

        def here(job: Job) -> dict[str, Any]:
            candidate = named[job.out.name]
            finished = [self.outcomes[name] for name in against if self.outcomes[name].status == "finished"]
            outcome = fit_candidate(self.problem, candidate, job.out, finished, self.before_writing)
            return _summary(self.problem, outcome)

        done = run_jobs(jobs, self.where, self.say, here=here, unit="candidates")
        if done.errors:
            raise RunError(next(iter(done.errors.values())))
        for name, candidate in named.items():
            summary = done.summaries[f"{self.folder.name}/{name}"]
            self.outcomes[name] = read_outcome(self.problem, candidate, self.folder / name, summary)


def _summary(problem: Problem, outcome: Outcome) -> dict[str, Any]:
    """What a job says of itself: the stored summary, with the accuracy in its status for the line of progress."""
    share = f" {100 * correct(problem, outcome).mean():.1f} % of held-out labels" if outcome.parts else ""
    status = f"{outcome.status}{share}"
    return {"status": outcome.status, "said": status, "reason": outcome.reason, "parts": len(outcome.parts)}


def do_candidate(
    config: RunConfig,
    out: Path,
    *,
    folds: int,
    name: str,
    against: Sequence[str],
    verified: Sequence[Sequence[int]] = ((), ()),
) -> dict[str, Any]:
    """Train one candidate in a worker process, which reads the data again.

    Args:
        config: the configuration of the search.
        out: the candidate's folder.
        folds: number of folds.
        name: name of the candidate in the portfolio.
        against: names of candidates to compare with, whose folders are next to `out`.
        verified: positions of verified samples, and their labels.

    Returns:
        The summary of the job.
    """
    from ncsam._files import read_json
    from ncsam.automl.portfolio import portfolio

    rows, labels = (np.array(each, dtype=np.int64) for each in verified)
    known = Verified(rows, labels) if len(rows) else None
    problem = Problem(*with_backbone(config, load_task(config)), folds, known)
    named = {each.name: each for each in portfolio(problem)}
    finished = []
    for other in against:
        path = out.parent / other / layout.SUMMARY
        if path.is_file() and read_json(path)["status"] == "finished":
            finished.append(read_outcome(problem, named[other], path.parent, read_json(path)))
    return _summary(problem, fit_candidate(problem, named[name], out, finished))
