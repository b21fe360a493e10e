"""The race: candidates train fold after fold, and stop where they cannot catch up with the best any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ncsam.auto.candidates import Candidate
from ncsam.auto.costs import Costs, format_duration
from ncsam.auto.outcome import Fold, Outcome, held_out_labels, train_fold
from ncsam.auto.problem import Problem
from ncsam.errors import DivergedError

_SURE = 3.0  # standard errors by which a candidate must be behind to be stopped; it is asked after every fold

Hits = npt.NDArray[np.bool_]


def hits(problem: Problem, outcome: Outcome) -> Hits:
    """Which held-out samples, fold after fold, a candidate predicts as they are labeled."""
    right: Hits = outcome.probabilities().argmax(axis=1) == held_out_labels(problem, len(outcome.folds))
    return right


def behind(own: Hits, best: Hits) -> tuple[float, float]:
    """By how much `own` is behind `best` on the same samples, and the standard error of that.

    d_i = best_i - own_i: mean(d) and std(d) / sqrt(n). Samples on which both are right, or both wrong, do not blur it.
    """
    difference = best[: len(own)].astype(np.float64) - own
    return float(difference.mean()), float(difference.std() / math.sqrt(len(difference)))


class Race:
    """Candidates in order, each against the best of those before it.

    A candidate trains its folds one by one. After each it is compared with the best finished one on the same samples,
    and is stopped if it is behind by more than three standard errors. So the first finished candidate is the bar at
    once, good ones early save the most time, and every decision follows from results alone: a race that was killed
    and continued ends like one that was not. Only `budget`, in seconds, depends on the clock: what would not be done
    in time is skipped, but for the first candidate.
    """

    def __init__(
        self,
        problem: Problem,
        folder: Path,
        budget: float | None = None,
        say: Callable[[str], None] = print,
        before_writing: Callable[[], None] = lambda: None,
        train: Callable[..., Fold] = train_fold,
    ) -> None:
        self.problem = problem
        self.folder = folder
        self.budget = budget
        self.say = say
        self.before_writing = before_writing  # raises if the folder is gone
        self.train = train
        self.costs = Costs(problem)
        self.outcomes: list[Outcome] = []
        self.best: Hits | None = None

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    def run(self, candidates: Sequence[Candidate]) -> list[Outcome]:
        """All candidates, as they came out."""
        folds = self.problem.num_folds
        expected = [folds * candidate.seconds(self.problem, self.costs) for candidate in candidates]
        within = f", at most {format_duration(self.budget)} of it" if self.budget else ""
        self.say(
            f"{len(candidates)} candidates, {folds} folds: about {format_duration(sum(expected))} if none is stopped{within}"
        )
        for number, (candidate, seconds) in enumerate(zip(candidates, expected, strict=True), start=1):
            outcome = Outcome(candidate)
            self.outcomes.append(outcome)
            self._train(outcome, seconds)
            self.say(f"{number:>3}/{len(candidates)}  {self._line(outcome)}")
        return self.outcomes

    def _train(self, outcome: Outcome, expected: float) -> None:
        folds = self.problem.num_folds
        for number in range(folds):
            left = expected / folds * (folds - number) if not number else outcome.seconds / number * (folds - number)
            if self.budget is not None and self.best is not None and self.seconds + left > self.budget:
                outcome.status, outcome.reason = "skipped", f"{format_duration(left)} more would exceed the budget"
                return
            try:
                outcome.folds.append(self._fold(outcome, number))
            except DivergedError as error:
                outcome.status, outcome.reason = "failed", str(error)
                return
            if self.best is not None:
                mean, error_of_mean = behind(hits(self.problem, outcome), self.best)
                if mean > _SURE * error_of_mean and number + 1 < folds:
                    gap = f"{100 * mean:.1f} +- {100 * error_of_mean:.1f} points behind"
                    outcome.status, outcome.reason = "stopped", f"{gap} after {number + 1} of {folds} folds"
                    return
        outcome.status = "finished"
        own = hits(self.problem, outcome)
        if self.best is None or own.mean() > self.best.mean():
            self.best = own

    def _fold(self, outcome: Outcome, number: int) -> Fold:
        return self.train(self.problem, outcome.candidate, number, self.folder, self.before_writing)

    def _line(self, outcome: Outcome) -> str:
        name = f"{outcome.name:<24}"
        if not outcome.folds:
            return f"{name} {outcome.status}: {outcome.reason}"
        own = 100 * hits(self.problem, outcome).mean()
        why = f"  {outcome.status}: {outcome.reason}" if outcome.reason else ""
        return f"{name} {own:6.2f} % of the labels of samples it never saw  {format_duration(outcome.seconds)}{why}"
