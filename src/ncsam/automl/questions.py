"""Questions for a person whose answers select a model: which samples to ask about, and what is known so far.

Questions come in rounds of ten. Each round is drawn with replacement, with probabilities that depend on the previous
answers (`question_probabilities`), and is stored in `questions.jsonl` before it is shown. The answers are reviewers'
decisions (`review.jsonl`). A sample that is drawn twice is asked about once and counts twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path, json_lines, open_arrays
from ncsam.automl.candidates import ClosedForm
from ncsam.automl.outcome import Outcome
from ncsam.automl.portfolio import portfolio
from ncsam.automl.problem import Problem
from ncsam.automl.selection import GROUPED, group_probabilities, groups_of, is_imbalanced_table
from ncsam.automl.verified import (
    Interval,
    Verified,
    clean_accuracy,
    held_out_predictions,
    noise_rate,
    posterior,
    question_probabilities,
)
from ncsam.engine.config import RunConfig
from ncsam.engine.task import Task
from ncsam.errors import RunError
from ncsam.runs import layout
from ncsam.runs.decisions import Decisions
from ncsam.runs.reader import RunFolder, load_oof
from ncsam.runs.writer import writing

ROUND = 10  # questions at a time
_FOLDS = 5
_TEMPERATURE = 0.01  # of the weights of candidates: one that seems a point worse counts e times less
_MOST_ROUNDS = 100  # in a row that may bring nothing new to ask

Labels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CandidatePredictions:
    """Out-of-fold predictions of the candidates of a run.

    Attributes:
        index: positions of the predicted samples in the training split (n,).
        given: their given labels (n,).
        names: names of the candidates.
        predicted: the class that each candidate predicts (n, candidates).
        groups: probabilities (n, K) of the recommended, a more regularized and a more flexible group of candidates.
        balanced: whether the combination of the groups maximizes balanced accuracy.
    """

    index: Labels
    given: Labels
    names: list[str]
    predicted: Labels
    groups: list[Floats]
    balanced: bool = False

    @classmethod
    def of(cls, problem: Problem, outcomes: Sequence[Outcome]) -> CandidatePredictions:
        """Collect the predictions of the finished candidates of a search.

        Args:
            problem: data and folds.
            outcomes: the outcomes of all candidates.
        """
        finished = [outcome for outcome in outcomes if outcome.status == "finished"]
        index = np.concatenate(problem.held_out)
        predicted = np.stack([outcome.predicted() for outcome in finished], axis=1)
        groups = group_probabilities(groups_of(problem, outcomes))
        names = [outcome.name for outcome in finished]
        return cls(index, problem.labels[index], names, predicted, groups, is_imbalanced_table(problem))

    def save(self, folder: Path) -> None:
        """Write `candidates.npz`.

        Args:
            folder: the run folder.
        """
        path = folder / layout.PREDICTED
        with writing(path), atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                index=self.index,
                given=self.given,
                names=np.array(self.names),
                predicted=self.predicted.astype(np.int32),
                groups=np.stack(self.groups).astype(np.float32),
                balanced=np.array(self.balanced),
            )

    @classmethod
    def load(cls, folder: Path) -> CandidatePredictions | None:
        """Read `candidates.npz`.

        Args:
            folder: the run folder.

        Returns:
            The predictions, or `None` if there is no file.

        Raises:
            RunError: if the file is damaged.
        """
        path = folder / layout.PREDICTED
        if not path.is_file():
            return None
        with open_arrays(path) as arrays:
            found = dict(arrays)
        try:
            groups = [each.astype(np.float64) for each in found["groups"]]
            made = cls(
                found["index"].astype(np.int64),
                found["given"].astype(np.int64),
                [str(name) for name in found["names"]],
                found["predicted"].astype(np.int64),
                groups,
                bool(found["balanced"]),
            )
            shape = (len(made.index), groups[0].shape[1])
            fine = all(each.shape == shape and np.isfinite(each).all() for each in groups)
            fine &= made.predicted.shape == (shape[0], len(made.names)) and made.given.shape == shape[:1]
            fine &= made.predicted.min() >= 0 and max(made.predicted.max(), made.given.max()) < shape[1]
        except (LookupError, ValueError, TypeError):
            fine = False
        if not fine:
            raise RunError(f"{path} is damaged: remove it and start again")
        return made


def candidate_predictions(folder: Path, task: Task) -> CandidatePredictions:
    """Return the candidates' predictions of a run. For runs on features they are computed on first use, in seconds.

    Args:
        folder: the run folder.
        task: the data of the run.

    Raises:
        UsageError: if the run has no out-of-fold predictions and its data is not features.
        RunError: if the labels have changed since training.
    """
    found = CandidatePredictions.load(folder)
    if found is None:
        found = _made(folder, task)
        found.save(folder)
    labels = task.dataset.train.labels
    if found.index.max() >= len(labels) or not np.array_equal(labels[found.index], found.given):
        raise RunError(f"the labels have changed since {folder} was trained")
    return found


def _made(folder: Path, task: Task) -> CandidatePredictions:
    run = RunFolder.read(folder)
    labels = task.dataset.train.labels
    if task.modality.name == "features":
        known = {name: value for name, value in run.config.items() if name in RunConfig.describe()}
        problem = Problem(RunConfig.from_dict({**known, "model": "auto", "model_options": {}}), task, _FOLDS)
        chosen = [each for each in portfolio(problem) if isinstance(each, ClosedForm) and each.name in GROUPED]
        outcomes = [Outcome.fitted(problem, each) for each in chosen]
        return CandidatePredictions.of(problem, outcomes)
    oof = load_oof(folder)
    if oof is None or not oof.belong_to(labels):
        raise bad_value("run", str(folder), "a run of ncsam auto, a run on features, or a run with folds")
    p = oof.probabilities.astype(np.float64)
    every = np.arange(len(labels))
    return CandidatePredictions(every, labels, [str(run.config.get("method"))], p.argmax(axis=1)[:, None], [p])


class Questions:
    """The questions of a run folder.

    Args:
        folder: the run folder.
        known: predictions of its candidates.

    Raises:
        RunError: if stored questions refer to samples that the run does not have.
    """

    def __init__(self, folder: Path, known: CandidatePredictions) -> None:
        self.path = folder / layout.QUESTIONS
        self.known = known
        self.rounds = list(read_rounds(self.path))
        self._rows = np.full(int(known.index.max()) + 1, -1, dtype=np.int64)
        self._rows[known.index] = np.arange(len(known.index))
        self._said: tuple[int, dict[str, Any]] | None = None
        if any(self._row(i) < 0 for asked, _ in self.rounds for i in asked):
            raise RunError(f"{self.path} asks about samples that the run does not have: it is of other data")

    def asked(self) -> list[int]:
        """Return every drawn sample once, in the order of the draws."""
        return list(dict.fromkeys(index for asked, _ in self.rounds for index in asked))

    def verified(self, decisions: Decisions) -> Verified | None:
        """Return the answers so far.

        Args:
            decisions: reviewers' decisions.

        Returns:
            Verified labels with rows as in `CandidatePredictions`, or `None` if there are no answers.
        """
        found = verified_decisions(decisions, self.rounds)
        if found is None:
            return None
        inside = np.array([self._row(i) >= 0 for i in found.rows.tolist()])
        if not inside.any():
            return None
        assert found.probabilities is not None
        return Verified(self._rows[found.rows[inside]], found.labels[inside], found.probabilities[inside])

    def _row(self, index: int) -> int:
        return int(self._rows[index]) if 0 <= index < len(self._rows) else -1

    def draw(self, decisions: Decisions) -> list[int]:
        """Return drawn samples that nobody has decided on yet. If there are none, draw another round first.

        Args:
            decisions: reviewers' decisions.

        Returns:
            Positions in the training split; empty if every sample is decided.
        """
        done = set(decisions.decided())
        for _ in range(_MOST_ROUNDS):
            left = [index for index in self.asked() if index not in done]
            if left or done.issuperset(self.known.index.tolist()):
                return left
            self._draw_round(self.verified(decisions))
        return []

    def _draw_round(self, answers: Verified | None) -> None:
        known = self.known
        pi = self._probabilities(answers)
        generator = np.random.default_rng([0, len(self.rounds)])
        rows = generator.choice(len(pi), ROUND, p=pi / pi.sum())
        indices, chances = known.index[rows].tolist(), pi[rows].tolist()
        with writing(self.path), self.path.open("ab") as file:
            # a round that a kill has cut off stays behind as a line that is not read
            file.write(b"\n" + json.dumps({"index": indices, "probability": chances}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.rounds.append((indices, chances))

    def _probabilities(self, answers: Verified | None) -> Floats:
        belief = posterior(self.known.groups, self.known.given, answers)
        expected = np.take_along_axis(belief, self.known.predicted, axis=1).mean(axis=0)
        weights = np.exp((expected - expected.max()) / _TEMPERATURE)
        return question_probabilities(self.known.predicted, belief, weights / weights.sum())

    def said(self, decisions: Decisions) -> dict[str, Any]:
        """Return what the page shows, updated after every ten answers.

        Args:
            decisions: reviewers' decisions.

        Returns:
            `sentence` and `expected` as text and, from ten answers on, `answers`, `noise_rate`, `clean_accuracy` and
            `best`.
        """
        answers = self.verified(decisions)
        drawn = None if answers is None else answers.drawn()
        count = 0 if drawn is None else len(drawn) - len(drawn) % ROUND
        if self._said is None or self._said[0] != count:
            self._said = count, self._known(answers, drawn)
        return self._said[1]

    def _known(self, answers: Verified | None, drawn: Verified | None) -> dict[str, Any]:
        if answers is None or drawn is None or len(drawn) < ROUND:
            return {"sentence": f"What is known is shown after {ROUND} answers.", "expected": ""}
        groups, given = self.known.groups, self.known.given
        rate = noise_rate(groups, given, drawn)
        accuracy = clean_accuracy(
            held_out_predictions(groups, answers, balanced=self.known.balanced), groups, given, drawn
        )
        belief = posterior(groups, given, answers)
        expected = np.take_along_axis(belief, self.known.predicted, axis=1).mean(axis=0)
        best = self.known.names[int(expected.argmax())]
        shrunk = math.sqrt(len(drawn) / (len(drawn) + ROUND))
        return {
            "answers": len(drawn),
            "noise_rate": rate.to_dict(),
            "clean_accuracy": accuracy.to_dict(),
            "best": best,
            "sentence": f"After {len(drawn)} answers: {_percent(rate)} of the labels are wrong; the combination of "
            f"candidates is right for {_percent(accuracy)} of the samples (95 % intervals); the best single candidate "
            f"so far is {best}.",
            "expected": f"Ten more answers: intervals of about +- {100 * shrunk * rate.half_width:.1f} points (now "
            f"{100 * rate.half_width:.1f}) for the wrong labels and +- {100 * shrunk * accuracy.half_width:.1f} (now "
            f"{100 * accuracy.half_width:.1f}) for the accuracy.",
        }


def _percent(found: Interval) -> str:
    return f"{100 * found.value:.0f} % ({100 * found.low:.0f} to {100 * found.high:.0f} %)"


def verified_decisions(decisions: Decisions, rounds: Sequence[tuple[list[int], list[float]]]) -> Verified | None:
    """Convert reviewers' decisions to verified labels; rows are positions in the training split.

    Answers to drawn questions carry the probability of the draw. Other decisions, as from a review of label issues,
    were not drawn at random: their probability is NaN.

    Args:
        decisions: reviewers' decisions.
        rounds: the samples of each round and the probabilities with which they were drawn.

    Returns:
        The verified labels, or `None` if there are none.
    """
    rows, chances = [], []
    for asked, probabilities in rounds:
        rows += asked
        chances += probabilities
    others = [index for index in decisions.decided() if index not in set(rows)]
    rows, chances = rows + others, chances + [math.nan] * len(others)
    verdicts = [decisions.verdict(index) for index in rows]
    labels = [None if verdict is None else verdict.label for verdict in verdicts]
    known = [i for i, label in enumerate(labels) if label is not None]
    if not known:
        return None
    return Verified(
        np.array([rows[i] for i in known], dtype=np.int64),
        np.array([labels[i] for i in known], dtype=np.int64),
        np.array([chances[i] for i in known]),
    )


def read_rounds(path: Path) -> Iterator[tuple[list[int], list[float]]]:
    """Read the rounds of `questions.jsonl`.

    Args:
        path: the file; if it does not exist there are no rounds.

    Yields:
        The samples of a round and the probabilities with which they were drawn.

    Raises:
        ValueError: if a complete line is not a round of questions.
    """
    for number, raw, line in json_lines(path):
        asked = line.get("index") if isinstance(line, dict) else None
        chances = line.get("probability") if isinstance(line, dict) else None
        fine = isinstance(asked, list) and isinstance(chances, list) and len(asked) == len(chances)
        fine = fine and all(type(i) is int and i >= 0 for i in asked or ())
        if not fine or not all(isinstance(p, float) and 0 < p <= 1 for p in chances or ()):
            raise ValueError(f"{path}, line {number}, is not a round of questions: {raw[:80]!r}")
        assert asked is not None
        assert chances is not None
        yield asked, chances
