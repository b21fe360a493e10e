"""The predictions of a run on its own training samples, for other tools; and those of others, taken in their place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, need
from ncsam.issues.folds import load_oof, save_oof
from ncsam.issues.table import load_sample_stats, rewrite_label_issues
from ncsam.runs.reader import Run, class_name
from ncsam.engine.task import task_of
from ncsam.runs.predictor import load_predictor

_SUM_ERROR = 1e-3


@dataclass(frozen=True)
class TrainingPredictions:
    """float32 (samples, classes) in the order of the training split, and whether the labels were never seen."""

    probabilities: npt.NDArray[np.float32]
    out_of_fold: bool


def training_predictions(
    folder: str | os.PathLike[str], *, model: str | None = None, method: str | None = None
) -> TrainingPredictions:
    """Out-of-fold predictions where a run has them, else those of its last network.

    `model` and `method` are named where they are code from elsewhere, as in `load_predictor`.
    """
    folder = Path(folder)
    task = task_of(folder)
    known = load_oof(folder)
    if known is not None and known.belong_to(task.dataset.train.labels):
        return TrainingPredictions(known.probabilities, True)
    batches = load_predictor(folder, model=model, method=method).probabilities(task.dataset.train.inputs)
    return TrainingPredictions(np.concatenate([batch.cpu().numpy() for batch in batches]), False)


def take_predictions(folder: str | os.PathLike[str], probabilities: npt.ArrayLike) -> None:
    """Judge a run's labels by the out-of-sample predictions of some other model: `label_issues.csv` is written anew."""
    folder = Path(folder)
    task = task_of(folder)
    split = task.dataset
    rows = np.asarray(probabilities)
    shape = (len(split.train), split.num_classes)
    if rows.shape != shape or rows.dtype.kind != "f":
        raise bad_value("probabilities", f"{rows.dtype} {rows.shape}", f"floats {shape}: samples, classes")
    if not np.isfinite(rows).all() or (rows < 0).any() or np.abs(rows.sum(axis=1) - 1).max() > _SUM_ERROR:
        raise bad_value("probabilities", "rows", "finite numbers from 0 that sum to 1 in every row")
    load_sample_stats(folder, task)  # a run that cannot be judged is said before anything is written
    save_oof(folder, rows, split.train.labels, {"folds": None, "source": "taken from a file"})
    rewrite_label_issues(folder)


def label_issues_frame(folder: str | os.PathLike[str]) -> Any:
    """Labels and label issues as a `pandas.DataFrame` in the order of the training split, with class names."""
    pandas = need("pandas", "tables", "a table of label issues")
    run = Run.read(folder)
    rows = run.issue_rows()
    if not rows:
        raise bad_value("run", str(folder), "a finished run; this one has no label_issues.csv yet")
    classes = run.classes
    for row in rows:
        for key in ("observed", "suggested", "clean"):
            if key in row:
                row[f"{key}_name"] = class_name(classes, row[key])
    return pandas.DataFrame(rows).sort_values("index").reset_index(drop=True)
