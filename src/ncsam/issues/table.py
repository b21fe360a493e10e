"""`label_issues.csv`, the labels of a run with the least plausible first, and `label_posterior.json`, how far to trust it."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam._text import path_cell, table_cell
from ncsam.data.modalities.text import Texts
from ncsam.data.types import DataSet, Split
from ncsam.engine.checkpoint import load_checkpoint, writing
from ncsam.engine.dynamics import Dynamics, auroc
from ncsam.engine.samples import SampleTable
from ncsam.engine.task import Task, task_of
from ncsam.issues.folds import OutOfFold, load_oof
from ncsam.issues.posterior import LabelPosterior, assess
from ncsam.issues.scores import suspicion

Floats = npt.NDArray[np.float64]

FILE, TRUST_FILE, SUMMARY_FILE = "label_issues.csv", "label_posterior.json", "summary.json"
COLUMNS = (
    "index",
    "observed",
    "suggested",
    "suspicion",
    "p_wrong",
    "p_suggested",
    "loss",
    "margin",
    "times_flipped",
    "times_forgotten",
    "first_learned",
    "held_out",
)
#: Label issues whose figures must be known for any to be stated; of small data a tenth.
_SPOKEN_OF = 100
_LEAST_GAP = 0.05


def write_label_issues(
    folder: Path,
    dynamics: Dynamics,
    split: Split,
    held_out: npt.NDArray[np.int64] | None,
    *,
    oof: OutOfFold | None = None,
) -> float | None:
    """Write both files; the AUROC of the suspicion where clean labels are known.

    With out-of-fold predictions these decide suspicion, suggestion and probabilities. Without, the course of training
    does; probabilities are then known only if the run fits labels it was trained on no better than those held out.
    """
    held = np.zeros(len(split), dtype=bool)
    if held_out is not None:
        held[held_out] = True
    doubts, suggested = dynamics.suspicion(), dynamics.suggested()
    trust: LabelPosterior | None = None
    if oof is not None:
        fit = oof.about.get("train_accuracy")
        trust = assess(split.labels, oof.probabilities, None if fit is None else fit / 100)
        doubts = suspicion(split.labels, oof.probabilities.astype(np.float64), trust.wrong)
        suggested, reason = trust.suggested, trust.reason
        source = f"out-of-fold predictions, {oof.about.get('folds')} folds"
    else:
        source = "predictions of the run itself"
        reason = _memorized(dynamics, split, held)
        if not reason:
            sums = dynamics.numbers("probability_sum").astype(np.float64)
            trust = assess(split.labels, sums / sums.sum(axis=1, keepdims=True))
            reason = trust.reason
    order = np.lexsort((np.arange(len(split)), -doubts))
    if trust is not None and not reason:
        reason = trust.unsettled(order[: min(_SPOKEN_OF, max(1, len(order) // 10))])
    columns: dict[str, Any] = {
        "index": np.arange(len(split)),
        "observed": split.labels,
        "suggested": suggested,
        "suspicion": doubts,
        "loss": dynamics.mean("loss"),
        "margin": dynamics.mean("margin"),
        "times_flipped": dynamics.numbers("times_flipped"),
        "times_forgotten": dynamics.numbers("times_forgotten"),
        "first_learned": dynamics.numbers("first_learned"),
        "held_out": held.astype(np.int64),
    }
    if trust is not None and not reason:
        columns |= {"suggested": trust.suggested, "p_wrong": trust.wrong, "p_suggested": trust.right}
    _write_table(folder / FILE, columns, split, order)
    found = None if split.clean is None else auroc(doubts, split.labels != split.clean)
    about = {"known": not reason, "reason": reason, "source": source, "label_issues_auroc": found}
    if trust is not None:
        about |= {"agreement": trust.agreement, "scale": trust.scale}
        if not reason:
            about["expected_wrong"] = float(trust.wrong.sum())
    with writing(folder / TRUST_FILE), atomic_path(folder / TRUST_FILE) as temporary:
        temporary.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return found


def rewrite_label_issues(folder: str | os.PathLike[str], *, dataset: DataSet | None = None) -> None:
    """Write both files of a finished run again, from its checkpoint and its out-of-fold predictions.

    The summary's `label_issues_auroc` is of the new list then.
    """
    folder = Path(folder)
    task = task_of(folder, dataset)
    table = load_sample_stats(folder, task)
    oof = load_oof(folder)
    if oof is not None and not oof.belong_to(task.dataset.train.labels):
        oof = None
    found = write_label_issues(folder, Dynamics(table, task.dataset.num_classes), task.dataset.train, task.val, oof=oof)
    summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    with writing(folder / SUMMARY_FILE), atomic_path(folder / SUMMARY_FILE) as temporary:
        temporary.write_text(json.dumps({**summary, "label_issues_auroc": found}, indent=2) + "\n", encoding="utf-8")


def load_sample_stats(folder: Path, task: Task) -> SampleTable:
    """What a finished run knows of each of its samples."""
    state = load_checkpoint(folder / "checkpoints")
    finished = state is not None and (folder / SUMMARY_FILE).is_file()
    if state is None or not finished or state["labels_sha256"] != task.labels_sha256:
        raise bad_value("run", str(folder), "a finished run whose data has the labels that it was trained on")
    table = SampleTable(len(task.dataset.train))
    table.load_state_dict(state["samples"])
    return table


def trust_sentence(rows: Sequence[Mapping[str, Any]], trust: Mapping[str, Any], which: str = "these") -> str:
    """What is to be expected of the label issues in `rows`, in a sentence; or why it cannot be."""
    if not rows:
        return ""
    if not trust.get("known") or rows[0].get("p_wrong") is None:
        return not_known(trust)
    wrong, right = (sum(row[name] for row in rows) for name in ("p_wrong", "p_suggested"))
    return expected(f"{which} {len(rows):,}" if len(rows) > 1 else "this one", wrong, right)


def expected(which: str, wrong: float, right: float) -> str:
    """How many of some label issues are wrong, and how often the suggestion is right."""
    are = "is" if round(wrong) == 1 else "are"
    return f"Of {which}, about {wrong:,.0f} {are} wrong; the suggestion is right for about {right:,.0f}."


def not_known(trust: Mapping[str, Any]) -> str:
    """Why that cannot be known of a run's label issues."""
    reason = trust.get("reason") or "this run was made by a version that did not estimate it"
    return f"How many of the label issues are wrong cannot be known here: {reason}."


def _memorized(dynamics: Dynamics, split: Split, held: npt.NDArray[np.bool_]) -> str:
    """Why the run's own predictions cannot tell, or nothing: whether it fits the labels it has seen better than others.

    As `engine.settle.memorizing`, on the last epoch: the gap must exceed two standard errors of the accuracy on the
    samples held out, and .05.
    """
    more = "`ncsam issues RUN --folds 5` asks networks that never saw the label"
    if not dynamics.keeps_probabilities or not held.any():
        return f"the run has seen every label that it would have to judge; {more}"
    right = dynamics.numbers("was_right")
    t, v = float(right[~held].mean()), float(right[held].mean())
    if t - v > max(_LEAST_GAP, 2 * math.sqrt(v * (1 - v) / held.sum())):
        return (
            f"the run has memorized labels ({100 * t:.0f} % of those it was trained on are fitted, {100 * v:.0f} % of "
            f"those held out); {more}"
        )
    return ""


def _write_table(path: Path, columns: Mapping[str, Any], split: Split, order: npt.NDArray[np.int64]) -> None:
    names = [*COLUMNS]
    if split.has_paths:
        names.append("path")
    if isinstance(split.inputs, Texts):
        names.append("text")
    if split.clean is not None:
        names.append("clean")
        columns = {**columns, "clean": split.clean}
    with writing(path), atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for i in order:
            writer.writerow([_cell(name, i, columns, split) for name in names])


def _cell(name: str, i: int, columns: Mapping[str, Any], split: Split) -> object:
    if name == "path":
        return path_cell(split.path(i) or "")
    if name == "text":
        return table_cell(split.inputs[i])
    if name not in columns:
        return ""  # a probability that cannot be known
    value = columns[name][i]
    if name == "first_learned":
        return int(value) or ""
    return f"{value:.6g}" if isinstance(value, np.floating) else int(value)
