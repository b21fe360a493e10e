"""The layout of run folders: every file name, which folders have it, and which of them a run resumes from.

All other modules take the names from here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from ncsam._files import remove_leftovers
from ncsam.errors import RunError

CONFIG = "config.yaml"
METRICS = "metrics.jsonl"
METRICS_TABLE = "metrics.csv"
SUMMARY = "summary.json"
LABEL_ISSUES = "label_issues.csv"
POSTERIOR = "label_posterior.json"
BY_CLASS = "by_class.npz"
OOF = "oof_probs.npz"
NOISE = "noise.npz"
NOISE_RECIPE = "noise.json"
DATA = "data.npz"
DAMAGED = "damaged.csv"
ANNOTATORS = "annotators.csv"
DECISIONS = "review.jsonl"
REVIEW_VIEW = "review_view.json"
AUDIT = "audit.json"
QUESTIONS = "questions.jsonl"
PREDICTED = "candidates.npz"
VERIFIED = "verified.csv"
CHECKPOINTS = "checkpoints"
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"
LAST_NOTES = "last.json"
AUTO = "auto.json"
LEADERBOARD = "leaderboard.json"
COMPARISON = "comparison.json"
COMMAND = "command.txt"
REPRODUCTION = "reproduce.json"
FOLDS = "folds"
CANDIDATES = "candidates"
LOCK = ".lock"


class File(NamedTuple):
    """A file of a run folder: which runs have it, and what it holds."""

    when: str
    holds: str


#: The files of a run folder. "always": every finished run of `train` and `auto` has it; else the condition is named.
FILES: dict[str, File] = {
    CONFIG: File("always", "the configuration, with the version and the command that made it"),
    METRICS: File("always", "one JSON object per epoch"),
    METRICS_TABLE: File("always", "the same as a table"),
    LABEL_ISSUES: File("always", "every training label, the one most likely wrong first"),
    POSTERIOR: File("always", "whether p_wrong is reliable, and why not"),
    f"{CHECKPOINTS}/{LAST}": File("always", "the state that training resumes from, with the model"),
    f"{CHECKPOINTS}/{PREVIOUS}": File("more than one checkpoint", "the checkpoint before the last"),
    f"{CHECKPOINTS}/{LAST_NOTES}": File("always", "classes, kind of data and position of the last checkpoint"),
    BY_CLASS: File("train", "confusion matrices and the estimated transition matrix"),
    OOF: File("folds, auto, features", "out-of-fold class probabilities of the training samples"),
    NOISE: File("noise", "clean and noisy labels, where the run made the noise"),
    NOISE_RECIPE: File("noise", "how that noise was made"),
    DATA: File("data in memory", "a copy of the arrays the run was trained on"),
    DAMAGED: File("damaged files", "the files that were skipped, and why"),
    ANNOTATORS: File("several annotators", "each annotator's answers and estimated accuracy"),
    AUTO: File("auto", "what the model selection was asked for"),
    VERIFIED: File("auto with verified labels", "the verified labels that the model was selected by and trained on"),
    LEADERBOARD: File("auto", "the results of all candidates"),
    DECISIONS: File("review", "reviewers' decisions, one JSON object per line"),
    REVIEW_VIEW: File("review", "where the review page was left"),
    AUDIT: File("audit", "the findings of the dataset audit"),
    QUESTIONS: File("review for model selection", "which samples were drawn, with which probabilities"),
    PREDICTED: File("auto, review for model selection", "out-of-fold predictions of the candidates"),
    SUMMARY: File("always", "the results; written last, so its presence marks a finished run"),
}

#: What a run resumes from, in the order of copying: the checkpoint comes after everything it belongs to.
RESUME = (CONFIG, NOISE, NOISE_RECIPE, DATA, METRICS, f"{CHECKPOINTS}/{LAST_NOTES}", f"{CHECKPOINTS}/{LAST}")

#: The file that identifies each kind of folder. `auto` leaves a configuration, too, so it comes first.
KINDS = {
    AUTO: "an `ncsam auto` run",
    CONFIG: "an `ncsam train` run",
    COMPARISON: "an `ncsam compare` comparison",
    REPRODUCTION: "tables of `ncsam reproduce`",
}


def checkpoints(folder: Path) -> Path:
    """The folder of a run's checkpoints.

    Args:
        folder: the run folder.
    """
    return folder / CHECKPOINTS


def fold_folder(folder: Path, part: int, folds: int) -> Path:
    """Where the run lies that holds out part `part` (from 0) of `folds`.

    Args:
        folder: the run folder.
        part: the part that is held out, from 0.
        folds: number of parts.
    """
    return folder / FOLDS / f"{part + 1}-of-{folds}"


def has_checkpoint(folder: Path) -> bool:
    """Whether a run has reached a checkpoint.

    Args:
        folder: the run folder; it need not exist.
    """
    return any((checkpoints(folder) / name).exists() for name in (LAST, PREVIOUS))


def is_finished(folder: str | os.PathLike[str]) -> bool:
    """Whether a run has written its summary.

    Args:
        folder: the run folder; it need not exist.
    """
    return (Path(folder) / SUMMARY).is_file()


def refuse_other_work(folder: Path, own: str) -> None:
    """Raise `RunError` if another command has written this folder: each would replace files of the other.

    Args:
        folder: the folder to be written.
        own: the file that identifies the caller's kind of folder, one of `KINDS`.
    """
    there = next((mark for mark in KINDS if (folder / mark).is_file()), own)
    if there != own:
        raise RunError(f"{folder} holds {KINDS[there]}: choose another folder")


def clear_leftovers(folder: Path) -> None:
    """Remove the temporary files of a killed run; the caller holds the folder's lock.

    Args:
        folder: the run folder.
    """
    inside = f"{CHECKPOINTS}/"
    remove_leftovers(folder, *(name for name in FILES if not name.startswith(inside)))
    remove_leftovers(checkpoints(folder), *(name.removeprefix(inside) for name in FILES if name.startswith(inside)))
