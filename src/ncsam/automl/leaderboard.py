"""`leaderboard.json`: every candidate with its metrics on noisy labels, what was stopped, what was chosen, and
estimates.

Accuracies are percentages, `noise_rate` is a fraction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._files import read_json
from ncsam.automl import verified as verification
from ncsam.automl.outcome import Outcome, held_out_labels
from ncsam.automl.problem import Problem
from ncsam.automl.selection import Chosen, group_probabilities, groups_of
from ncsam.automl.verified import Verified
from ncsam.engine.metrics import balanced_accuracy, macro_auc, macro_f1
from ncsam.errors import RunError
from ncsam.issues.posterior import noise_rate_of
from ncsam.runs import layout
from ncsam.runs.writer import write_json

NAME = layout.LEADERBOARD
_METRICS = ("noisy_accuracy", "standard_error", "noisy_balanced_accuracy", "noisy_f1", "noisy_auc")
_MEANING = {
    "metric": "what the predictions of the chosen model maximize",
    "noisy_accuracy": "share of held-out samples predicted as they are labeled, percent; labels may be wrong",
    "standard_error": "of noisy_accuracy, percent",
    "noisy_balanced_accuracy": "mean recall of the classes on held-out samples under their given labels, percent",
    "noisy_f1": "mean F1 of the classes on held-out samples under their given labels, percent",
    "noisy_auc": "mean area under the ROC curve of each class against the rest, given labels, percent",
    "noise_rate": "share of wrong labels: with verified labels an unbiased estimate and a 95 % interval; without, the "
    "share of confident predictions that contradict the label, +- 15 points; null if it cannot be determined",
    "clean_accuracy": "accuracy of the chosen model on true labels, with a 95 % interval; null without verified "
    "labels: it cannot be determined from noisy labels",
    "seconds": "time of training, all folds",
}


def make(
    problem: Problem, outcomes: Sequence[Outcome], chosen: Chosen, verified: Verified | None = None
) -> dict[str, Any]:
    """Build the leaderboard as plain values, best on noisy labels first.

    Args:
        problem: data and folds.
        outcomes: the outcomes of all candidates.
        chosen: the selected model.
        verified: verified labels, with rows in fold order. `None`: clean accuracy cannot be estimated.

    Returns:
        The contents of `leaderboard.json`; `meaning` explains the entries.
    """
    labels = held_out_labels(problem)
    rows = [_row(outcome, labels, chosen) for outcome in outcomes]
    rows.sort(key=lambda row: (row["status"] != "finished", -(row["noisy_accuracy"] or -1.0)))
    noise, accuracy = _estimates(problem, outcomes, chosen, verified)
    return {
        "samples": len(problem.positions),
        "folds": problem.num_folds,
        "verified": 0 if verified is None else len(np.unique(verified.rows)),
        "metric": "balanced_accuracy" if chosen.balanced else "accuracy",
        "chosen": {"candidates": chosen.names, "model": chosen.member.model, **_metrics(chosen.probabilities, labels)},
        "noise_rate": noise,
        "clean_accuracy": accuracy,
        "candidates": rows,
        "meaning": _MEANING,
    }


def _estimates(
    problem: Problem, outcomes: Sequence[Outcome], chosen: Chosen, verified: Verified | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    labels = held_out_labels(problem)
    drawn = None if verified is None else verified.drawn()
    if verified is None or drawn is None:
        natural = chosen.for_issues if chosen.balanced else None
        return noise_rate_of(labels, chosen.probabilities if natural is None else natural), None
    groups = group_probabilities(groups_of(problem, outcomes))
    noise = verification.noise_rate(groups, labels, drawn).to_dict()
    predicted = chosen.probabilities.argmax(axis=1)
    if chosen.member.model == "stacked":
        predicted = verification.held_out_predictions(groups, verified, balanced=chosen.balanced)
    accuracy = verification.clean_accuracy(predicted, groups, labels, drawn).to_dict()
    about = {"coverage": 0.95, "source": "verified labels"}
    return {**noise, **about}, {**{name: 100 * value for name, value in accuracy.items()}, **about}


def _row(outcome: Outcome, labels: npt.NDArray[np.int64], chosen: Chosen) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": outcome.name,
        "status": outcome.status,
        "chosen": outcome.name in chosen.names,
        "parts": len(outcome.parts),
    }
    row |= _metrics(outcome.probabilities(), labels) if outcome.parts else dict.fromkeys(_METRICS)
    return {**row, "seconds": outcome.seconds, "reason": outcome.reason, "settings": outcome.candidate.settings()}


def _metrics(probabilities: npt.NDArray[np.float64], given: npt.NDArray[np.int64]) -> dict[str, float | None]:
    labels, predicted = given[: len(probabilities)], probabilities.argmax(axis=1)
    share = float((predicted == labels).mean())
    values = (
        *(share, math.sqrt(share * (1 - share) / len(labels))),
        *(balanced_accuracy(predicted, labels), macro_f1(predicted, labels), macro_auc(probabilities, labels)),
    )
    return {name: None if value is None else 100 * value for name, value in zip(_METRICS, values, strict=True)}


def write(folder: Path, board: dict[str, Any]) -> None:
    """Write `leaderboard.json` atomically.

    Args:
        folder: the run folder.
        board: the leaderboard, from `make`.
    """
    write_json(folder / NAME, board)


def read(folder: Path) -> dict[str, Any]:
    """Read `leaderboard.json`.

    Args:
        folder: the run folder.

    Returns:
        The leaderboard, as from `make`.

    Raises:
        RunError: if the file is missing or is not a leaderboard.
    """
    path = folder / NAME
    try:
        board = read_json(path)
        rows = [board["chosen"], *board["candidates"]]
        texts = [(row["name"], row["status"]) for row in board["candidates"]] + [board["chosen"]["candidates"]]
        numbers = [*(row[name] for row in rows for name in _METRICS)]
        numbers += [row[name] for row in board["candidates"] for name in ("seconds", "chosen")]
        rate = board["noise_rate"]
        required = [] if rate is None else [rate[name] for name in ("estimate", "low", "high")]
        numbers += required
        fine = all(isinstance(word, str) for words in texts for word in words)
        fine &= all(isinstance(number, (int, float, NoneType)) for number in numbers)
        required += [board["chosen"][name] for name in _METRICS[:2]]
        fine &= None not in [*required, *(row["seconds"] for row in board["candidates"])]
    except (OSError, ValueError, LookupError, TypeError):
        fine = False
    if not fine:
        raise RunError(f"{path} is not a leaderboard: remove summary.json beside it and rerun the command")
    return board
