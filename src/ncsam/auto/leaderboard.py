"""`leaderboard.json`: every candidate with its accuracy on noisy labels, what was stopped, and what was chosen."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._files import atomic_path, read_json
from ncsam.auto.ensemble import Chosen
from ncsam.auto.outcome import Outcome, held_out_labels
from ncsam.auto.problem import Problem
from ncsam.engine.checkpoint import writing
from ncsam.engine.class_metrics import balanced_accuracy, macro_auc, macro_f1
from ncsam.errors import RunError
from ncsam.noise import estimate_noise
from ncsam.runs import layout

NAME = layout.LEADERBOARD
_ACCURACIES = (
    *("noisy_accuracy", "standard_error", "clean_accuracy_estimate", "clean_accuracy_standard_error"),
    *("noisy_balanced_accuracy", "noisy_f1", "noisy_auc"),
)
_MEANING = {
    "noisy_accuracy": "share of the held-out samples predicted as they are labeled, percent; labels may be wrong",
    "standard_error": "of noisy_accuracy, percent",
    "clean_accuracy_estimate": "an estimate, percent: mean of inv(T)[label, prediction], with the transition matrix T "
    "estimated by confident learning; it trusts T, and that errors depend on the class alone",
    "noise_rate_estimate": "an estimate: share of wrong labels by confident learning on held-out predictions",
    "noisy_balanced_accuracy": "mean recall of the classes on held-out samples under their given labels, percent",
    "noisy_f1": "mean F1 of the classes on held-out samples under their given labels, percent",
    "noisy_auc": "mean area under the ROC curve of each class against the rest, given labels, percent",
    "seconds": "time of training, all folds",
}


def clean_accuracy(
    predicted: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], transition: npt.NDArray[np.float64]
) -> tuple[float, float] | None:
    """An estimate of the accuracy on true labels, and its standard error; `None` where T cannot be inverted.

    With T[i, j] = P(label j | class i) and errors that do not depend on the input given the class,
    P(prediction, label) = P(prediction, class) T, so that P(prediction = class) = E inv(T)[label, prediction].
    The standard error takes T for known.
    """
    if not np.isfinite(transition).all() or np.linalg.cond(transition) > 1e3:
        return None
    values = np.linalg.inv(transition)[labels, predicted]
    mean, error = float(values.mean()), float(values.std() / math.sqrt(len(values)))
    return min(1.0, max(0.0, mean)), error


def make(problem: Problem, outcomes: Sequence[Outcome], chosen: Chosen) -> dict[str, Any]:
    """The leaderboard as plain values, the best first; accuracies in percent."""
    labels = held_out_labels(problem)
    noise = estimate_noise(labels, chosen.probabilities)
    rows = [_row(problem, outcome, noise.transition, chosen) for outcome in outcomes]
    rows.sort(key=lambda row: (row["status"] != "finished", -(row["noisy_accuracy"] or -1.0)))
    return {
        "samples": len(problem.positions),
        "folds": problem.num_folds,
        "chosen": {"candidates": chosen.names, **_accuracies(chosen.probabilities, labels, noise.transition)},
        "noise_rate_estimate": noise.rate,
        "candidates": rows,
        "meaning": _MEANING,
    }


def _row(problem: Problem, outcome: Outcome, transition: npt.NDArray[np.float64], chosen: Chosen) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": outcome.name,
        "status": outcome.status,
        "chosen": outcome.name in chosen.names,
        "parts": len(outcome.parts),
    }
    probabilities = outcome.probabilities() if outcome.parts else None
    row |= _accuracies(probabilities, held_out_labels(problem), transition)
    return {**row, "seconds": outcome.seconds, "reason": outcome.reason, "settings": outcome.candidate.settings()}


def _accuracies(
    probabilities: npt.NDArray[np.float64] | None, given: npt.NDArray[np.int64], transition: npt.NDArray[np.float64]
) -> dict[str, float | None]:
    if probabilities is None:
        return dict.fromkeys(_ACCURACIES)
    labels, predicted = given[: len(probabilities)], probabilities.argmax(axis=1)
    share = float((predicted == labels).mean())
    error = math.sqrt(share * (1 - share) / len(labels))
    clean = clean_accuracy(predicted, labels, transition) or (None, None)
    others = (balanced_accuracy(predicted, labels), macro_f1(predicted, labels), macro_auc(probabilities, labels))
    values = (share, error, *clean, *others)
    return {name: None if value is None else 100 * value for name, value in zip(_ACCURACIES, values, strict=True)}


def write(folder: Path, board: dict[str, Any]) -> None:
    path = folder / NAME
    with writing(path), atomic_path(path) as temporary:
        temporary.write_text(json.dumps(board, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    """What `write` wrote.

    Raises:
        RunError: if the file holds anything else.
    """
    path = folder / NAME
    try:
        board = read_json(path)
        rows = [board["chosen"], *board["candidates"]]
        texts = [(row["name"], row["status"]) for row in board["candidates"]] + [board["chosen"]["candidates"]]
        numbers = [board["noise_rate_estimate"], *(row[name] for row in rows for name in _ACCURACIES)]
        numbers += [row[name] for row in board["candidates"] for name in ("seconds", "chosen")]
        fine = all(isinstance(word, str) for words in texts for word in words)
        fine &= all(isinstance(number, (int, float, NoneType)) for number in numbers)
        required = [board["noise_rate_estimate"], *(board["chosen"][name] for name in _ACCURACIES[:2])]
        fine &= None not in [*required, *(row["seconds"] for row in board["candidates"])]
    except (OSError, ValueError, LookupError, TypeError):
        fine = False
    if not fine:
        raise RunError(f"{path} is not a leaderboard: remove summary.json beside it and rerun the command")
    return board
