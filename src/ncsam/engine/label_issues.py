"""The label issues of a run: from its training statistics, its out-of-fold predictions, or another model's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import read_json
from ncsam.data.modalities.text import TextList
from ncsam.data.types import DataSet, Split
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.predictor import load_predictor
from ncsam.engine.samples import Dynamics, SampleTable
from ncsam.engine.task import Task, task_of
from ncsam.issues.find import issues_of_training, judge
from ncsam.issues.noise_rate import noise_rate_of
from ncsam.issues.table import LabelIssues
from ncsam.runs import layout
from ncsam.runs.reader import load_oof, read_verified_labels
from ncsam.runs.writer import OutOfFold, save_oof, write_json, write_label_issues

_SUM_ERROR = 1e-3


def label_issues_of(
    dataset: DataSet,
    dynamics: Dynamics,
    held_out: npt.NDArray[np.int64] | None,
    oof: OutOfFold | None = None,
    verified: Mapping[int, int] | None = None,
) -> LabelIssues:
    """The label issues of a training split.

    Args:
        dataset: whose training split has the labels, paths or texts, and clean labels where known.
        dynamics: what a run recorded about each sample.
        held_out: the samples that the run was not trained on.
        oof: out-of-fold predictions; where there are any, these decide, and training gives diagnostics alone.
        verified: verified labels by sample, which calibrate p_wrong of the others; only with `oof`.
    """
    split, statistics = dataset.train, dynamics.statistics()
    extra = _sample_columns(split)
    if oof is None:
        return issues_of_training(split.labels, statistics, held_out, classes=dataset.classes, extra=extra)
    held = np.zeros(len(split), dtype=np.int64)
    held[[] if held_out is None else held_out] = 1
    fit, folds = oof.about.get("train_accuracy"), oof.about.get("folds")
    return judge(
        split.labels,
        oof.probabilities,
        classes=dataset.classes,
        train_accuracy=None if fit is None else fit / 100,
        source="out-of-sample predictions" if folds is None else f"out-of-fold predictions, {folds} folds",
        extra={**statistics.diagnostics, "held_out": held, **extra},
        verified=verified,
    )


def rewrite_label_issues(folder: str | os.PathLike[str], *, dataset: DataSet | None = None) -> None:
    """Write the label issues of a finished run again, from its checkpoint and its out-of-fold predictions.

    Args:
        folder: the run folder.
        dataset: the data, where it is in memory; else it is read as the configuration says.
    """
    folder = Path(folder)
    task = task_of(folder, dataset)
    table = load_sample_stats(folder, task)
    oof = load_oof(folder)
    if oof is not None and not oof.belong_to(task.dataset.train.labels):
        oof = None
    dynamics = Dynamics(table, task.dataset.num_classes)
    verified = read_verified_labels(folder, task.dataset.classes)
    issues = label_issues_of(task.dataset, dynamics, task.val, oof, verified)
    write_label_issues(folder, issues)
    summary = read_json(folder / layout.SUMMARY)
    summary["label_issues_auroc"] = issues.about["label_issues_auroc"]
    if oof is not None and not verified:
        summary["noise_estimate"] = noise_rate_of(task.dataset.train.labels, oof.probabilities)
    write_json(folder / layout.SUMMARY, summary)


def load_sample_stats(folder: Path, task: Task) -> SampleTable:
    """What a finished run recorded about each of its samples."""
    state = load_checkpoint(layout.checkpoints(folder))
    if state is None or not layout.is_finished(folder) or state["labels_sha256"] != task.labels_sha256:
        raise bad_value("run", str(folder), "a finished run whose data still has the labels it was trained on")
    table = SampleTable(len(task.dataset.train))
    table.load_state_dict(state["samples"])
    return table


@dataclass(frozen=True)
class TrainingPredictions:
    """float32 (samples, classes) in the order of the training split, and whether the models never saw the labels."""

    probabilities: npt.NDArray[np.float32]
    out_of_fold: bool


def training_predictions(
    folder: str | os.PathLike[str],
    *,
    dataset: DataSet | None = None,
    model: str | None = None,
    method: str | None = None,
) -> TrainingPredictions:
    """Class probabilities of a run's training samples: out-of-fold where it has them, else those of its model.

    Args:
        folder: the run folder.
        dataset: the data, where it is in memory.
        model: as in `load_predictor`, for a model that is not one of `ncsam.models`.
        method: likewise for the method.
    """
    folder = Path(folder)
    task = task_of(folder, dataset)
    known = load_oof(folder)
    if known is not None and known.belong_to(task.dataset.train.labels):
        return TrainingPredictions(known.probabilities, True)
    batches = load_predictor(folder, model=model, method=method).probabilities(task.dataset.train.inputs)
    return TrainingPredictions(np.concatenate([batch.cpu().numpy() for batch in batches]), False)


def take_predictions(
    folder: str | os.PathLike[str], probabilities: npt.ArrayLike, *, dataset: DataSet | None = None
) -> None:
    """Judge a run's labels by the out-of-sample predictions of another model, and rewrite its label issues."""
    folder = Path(folder)
    task = task_of(folder, dataset)
    rows = np.asarray(probabilities)
    shape = (len(task.dataset.train), task.dataset.num_classes)
    if rows.shape != shape or rows.dtype.kind != "f":
        raise bad_value("probabilities", f"{rows.dtype} {rows.shape}", f"floats {shape}: samples, classes")
    if not np.isfinite(rows).all() or (rows < 0).any() or np.abs(rows.sum(axis=1) - 1).max() > _SUM_ERROR:
        raise bad_value("probabilities", "rows", "finite numbers of at least 0 that sum to 1 in every row")
    load_sample_stats(folder, task)  # a run that cannot be judged is refused before anything is written
    save_oof(folder, OutOfFold.of(rows, task.dataset.train.labels, {"folds": None, "source": "another model"}))
    rewrite_label_issues(folder, dataset=dataset)


def _sample_columns(split: Split) -> dict[str, Any]:
    """Paths, texts and clean labels, where a split has them."""
    found: dict[str, Any] = {}
    if split.has_paths:
        found["path"] = np.array([split.path(i) or "" for i in range(len(split))], dtype=object)
    inputs = split.of_original().inputs  # embeddings are shown as what they were computed from
    if isinstance(inputs, TextList):
        found["text"] = np.array(list(inputs), dtype=object)
    if split.clean is not None:
        found["clean_label"] = split.clean
    return found
