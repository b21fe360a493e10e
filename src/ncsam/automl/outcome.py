"""The outcome of one candidate: its models and predictions of held-out samples, stored in its folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam._files import atomic_path
from ncsam.automl.candidates import Candidate, ClosedForm, Network
from ncsam.automl.problem import Floats, Problem
from ncsam.classifiers import Member
from ncsam.errors import DivergedError, RunError
from ncsam.runs import layout
from ncsam.runs.writer import write_json, writing

_FORMAT = "ncsam candidate 1"
_SURE = 3.0  # standard errors by which a candidate must be behind to be stopped; checked after every fold

Correct = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """Predictions and models of one or more folds.

    Attributes:
        seconds: training time.
        log_probabilities: predictions of the held-out samples, float32 (models, samples, classes).
        members: the models, whose probabilities are averaged.
        for_issues: log probabilities for ranking label issues (samples, classes). `None`: use `log_probabilities`.
    """

    seconds: float
    log_probabilities: Floats
    members: list[Member]
    for_issues: Floats | None = None  # log probabilities by which label issues are ranked


@dataclass
class Outcome:
    """A candidate with its parts: one for a closed-form classifier, one per fold for a network.

    Attributes:
        candidate: the candidate.
        parts: finished parts, in fold order.
        status: "running", "finished", "stopped", "skipped" or "failed".
        reason: why it was stopped, skipped or failed.
    """

    candidate: Candidate
    parts: list[Part] = field(default_factory=list)
    status: str = "running"
    reason: str = ""

    @classmethod
    def fitted(cls, problem: Problem, candidate: ClosedForm) -> Outcome:
        """Fit a closed-form candidate without storing it.

        Args:
            problem: data and folds.
            candidate: the candidate to fit.

        Returns:
            A finished outcome.
        """
        return cls(candidate, [_closed_form(problem, candidate)], "finished")

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def members(self) -> list[Member]:
        return [member for part in self.parts for member in part.members]

    def probabilities(self, temperature: float = 1.0) -> npt.NDArray[np.float64]:
        """Return the mean over models of softmax(log p / temperature).

        Args:
            temperature: positive; values above 1 flatten the probabilities.

        Returns:
            Probabilities (samples, classes) of the samples predicted so far, in fold order.
        """
        return np.concatenate([softened(part.log_probabilities, temperature) for part in self.parts])

    def for_issues(self) -> npt.NDArray[np.float64] | None:
        """Return out-of-fold probabilities for ranking label issues, or `None` if the model has no separate ones."""
        found = self.parts[0].for_issues if self.parts else None
        return None if found is None else np.exp(found.astype(np.float64))

    def predicted(self) -> npt.NDArray[np.int64]:
        """The predicted class of every sample predicted so far."""
        found: npt.NDArray[np.int64] = self.probabilities().argmax(axis=1)
        return found


def softened(log_probabilities: Floats, temperature: float) -> npt.NDArray[np.float64]:
    """Return the mean over models of softmax(log p / temperature).

    Args:
        log_probabilities: (models, samples, classes).
        temperature: positive; values above 1 flatten the probabilities.

    Returns:
        Probabilities (samples, classes).
    """
    scaled = log_probabilities.astype(np.float64) / temperature
    scaled -= scaled.max(axis=-1, keepdims=True)
    powers = np.exp(scaled)
    mean: npt.NDArray[np.float64] = (powers / powers.sum(axis=-1, keepdims=True)).mean(axis=0)
    return mean


def held_out_labels(problem: Problem) -> npt.NDArray[np.int64]:
    """Return the given labels of all folds.

    Args:
        problem: data and folds.

    Returns:
        Class numbers, in the fold order of `Outcome.probabilities`.
    """
    labels: npt.NDArray[np.int64] = problem.labels[np.concatenate(problem.held_out)]
    return labels


def correct(problem: Problem, outcome: Outcome) -> Correct:
    """Return which held-out samples a candidate predicts as they are labeled.

    Args:
        problem: data and folds.
        outcome: the candidate, which may have only some of the folds.

    Returns:
        A boolean per sample predicted so far, in fold order.
    """
    predicted = outcome.predicted()
    right: Correct = predicted == held_out_labels(problem)[: len(predicted)]
    return right


def paired_gap(own: Correct, best: Correct) -> tuple[float, float]:
    """Return how far `own` is behind `best` on the same samples, and the standard error of this difference.

    The difference per sample is d_i = best_i - own_i. The gap is mean(d), its standard error std(d) / sqrt(n). Samples
    that both get right, or both get wrong, add nothing to it.

    Args:
        own: which samples the candidate predicts correctly (n,).
        best: the same for the best candidate; may be longer than `own`.

    Returns:
        The gap and its standard error, as fractions.
    """
    difference = best[: len(own)].astype(np.float64) - own
    return float(difference.mean()), float(difference.std() / math.sqrt(len(difference)))


def fit_candidate(
    problem: Problem,
    candidate: Candidate,
    folder: Path,
    against: Sequence[Outcome] = (),
    before_writing: Callable[[], None] = lambda: None,
) -> Outcome:
    """Train a candidate on all folds and write `summary.json` into its folder.

    A network is stopped after a fold if it is behind the best of `against` by more than three standard errors on the
    same samples. Finished parts in the folder are read rather than trained again, so an interruption loses at most one
    fold.

    Args:
        problem: data and folds.
        candidate: the candidate to train.
        folder: the candidate's folder.
        against: finished candidates to compare with. Without any, the candidate is never stopped early.
        before_writing: called before every write; raises if the command no longer owns its folder.

    Returns:
        The outcome: finished, stopped, or failed if the loss diverged.
    """
    outcome = Outcome(candidate, status="finished")
    before_writing()
    if isinstance(candidate, ClosedForm):
        outcome.parts.append(
            _stored(folder / "part-0.pt", problem, len(problem.positions), partial(_closed_form, problem, candidate))
        )
    else:
        assert isinstance(candidate, Network)
        best = max((correct(problem, other) for other in against), key=lambda own: own.mean(), default=None)
        for number in range(problem.num_folds):
            scratch = folder / f"fold-{number}"
            before_writing()
            train = partial(_trained, problem, candidate, number, scratch)
            try:
                part = _stored(folder / f"part-{number}.pt", problem, len(problem.held_out[number]), train)
            except DivergedError as error:
                outcome.status, outcome.reason = "failed", str(error)
                break
            outcome.parts.append(part)
            if best is not None and number + 1 < problem.num_folds:
                gap, error_of_gap = paired_gap(correct(problem, outcome), best)
                if gap > _SURE * error_of_gap:
                    points = f"{100 * gap:.1f} +- {100 * error_of_gap:.1f} points behind"
                    outcome.status = "stopped"
                    outcome.reason = f"{points} after {number + 1} of {problem.num_folds} folds"
                    break
    before_writing()
    _write_summary(folder, outcome)
    return outcome


def read_outcome(problem: Problem, candidate: Candidate, folder: Path, summary: dict[str, Any]) -> Outcome:
    """Read what `fit_candidate` wrote.

    Args:
        problem: data and folds.
        candidate: the candidate.
        folder: the candidate's folder.
        summary: the contents of its `summary.json`.

    Returns:
        The outcome, as `fit_candidate` returned it.

    Raises:
        RunError: if a part is damaged or belongs to other data.
    """
    outcome = Outcome(candidate, status=str(summary.get("status")), reason=str(summary.get("reason", "")))
    whole = isinstance(candidate, ClosedForm)
    for number in range(int(summary.get("parts", 0))):
        samples = len(problem.positions) if whole else len(problem.held_out[number])
        outcome.parts.append(_read(folder / f"part-{number}.pt", problem, samples))
    return outcome


def _closed_form(problem: Problem, candidate: ClosedForm) -> Part:
    began = time.perf_counter()
    fitted = candidate.cross_fit(problem)
    logs = _logs(fitted.probabilities)
    for_issues = None if fitted.for_issues is None else _logs(fitted.for_issues)
    return Part(time.perf_counter() - began, logs[None], [fitted.member], for_issues)


def _logs(probabilities: npt.NDArray[np.float64]) -> Floats:
    return np.log(np.maximum(probabilities, 1e-12)).astype(np.float32)


def _trained(problem: Problem, candidate: Network, number: int, scratch: Path) -> Part:
    began = time.perf_counter()
    members = candidate.fit(problem, number, scratch)
    networks = [member.network(problem.classes, problem.channels) for member in members]
    held, split = problem.held_out[number], problem.dataset.train
    found = np.stack([problem.log_probabilities(network, split, held) for network in networks])
    return Part(time.perf_counter() - began, found, members)


def _write_summary(folder: Path, outcome: Outcome) -> None:
    about = {"status": outcome.status, "reason": outcome.reason, "seconds": outcome.seconds}
    write_json(folder / layout.SUMMARY, {**about, "parts": len(outcome.parts)})


def _stored(path: Path, problem: Problem, samples: int, make: Callable[[], Part]) -> Part:
    """Read the part from its file if there is one; otherwise make and write it."""
    if path.is_file():
        return _read(path, problem, samples)
    part = make()
    state: dict[str, Any] = {
        "format": _FORMAT,
        "seconds": part.seconds,
        "log_probabilities": torch.from_numpy(part.log_probabilities),
        "members": [{"model": m.model, "options": m.options, "state": m.state} for m in part.members],
        "for_issues": None if part.for_issues is None else torch.from_numpy(part.for_issues),
    }
    with writing(path), atomic_path(path) as temporary:
        torch.save(state, temporary)
    return part


def _read(path: Path, problem: Problem, samples: int) -> Part:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        members = [Member(str(m["model"]), dict(m["options"]), dict(m["state"])) for m in state["members"]]
        for_issues = None if state["for_issues"] is None else state["for_issues"].numpy()
        found = Part(float(state["seconds"]), state["log_probabilities"].numpy(), members, for_issues)
        shape = (len(members), samples, problem.classes)
        if state["format"] != _FORMAT or not members or found.log_probabilities.shape != shape:
            raise ValueError(f"its predictions are of shape {found.log_probabilities.shape}")
    except Exception as error:  # zip and pickle have several of their own; torch's advice is not for a foreign file
        raise RunError(f"{path} is damaged, or belongs to other data: remove it and rerun the command") from error
    return found
