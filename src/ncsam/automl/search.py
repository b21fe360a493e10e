"""Run the candidates as jobs: closed-form ones first, then networks, which are stopped when they cannot win."""

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
    """Train all candidates and return their outcomes, in order.

    Closed-form candidates (or, without any, the first candidate) set the bar for the others, so that every decision
    follows from results alone: a search that was killed and resumed ends like one that was not. Only `budget` depends
    on the clock.

    Args:
        problem: data and folds.
        candidates: what to train.
        folder: holds a folder for each candidate.
        where: this process by default; worker processes, Ray and mirrors as for runs.
        budget: seconds of training; candidates that would not be done in time are skipped, but never the recommended
            one and those that verified labels combine with it.
        say: takes lines of progress.
        before_writing: called before anything is written.
        approve: called with the expected seconds of the networks, where no budget limits them.
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
    """Candidates that are done so far, and how the next ones are run."""

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
    """One candidate in a worker process: the data is read again, and `against` are folders beside its own.

    `verified` are samples and their verified labels.
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
