"""Out-of-fold predictions of a run: its configuration trained K more times, each time with a part held out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.data.types import DataSet
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.config import RunConfig, read_yaml
from ncsam.engine.run import train
from ncsam.engine.task import FOLD_SEED, load_task
from ncsam.engine.untrusted import require_explicit_import
from ncsam.issues.folds import OutOfFold, load_oof, save_oof, stratified_folds
from ncsam.issues.table import rewrite_label_issues
from ncsam.runs.predictor import load_predictor

Floats = npt.NDArray[np.float32]


def find_label_issues_cv(
    folder: str | os.PathLike[str],
    folds: int,
    *,
    console: bool = True,
    named: Mapping[str, Any] | None = None,
) -> None:
    """Make a finished run's out-of-fold predictions, and its label issues from them. Options as of `out_of_fold`."""
    out_of_fold(folder, folds, console=console, named=named)
    rewrite_label_issues(folder)


def check_folds(config: RunConfig, folds: int) -> None:
    """Raise for a number of parts that the samples of a run do not make, before it is trained."""
    stratified_folds(load_task(config).dataset.train.labels, folds)


def out_of_fold(
    folder: str | os.PathLike[str],
    folds: int,
    *,
    dataset: DataSet | None = None,
    console: bool = True,
    named: Mapping[str, Any] | None = None,
) -> OutOfFold:
    """Train the configuration of a run `folds` times, and write what each network says of the samples it never saw.

    The runs lie in `FOLDER/folds/PART-of-FOLDS` and are ordinary ones: whatever is finished is not trained again, and
    what was stopped goes on. The result is `FOLDER/oof_probs.npy`, in the order of the training split. `dataset` is
    used in place of the configuration's data, as in `train`. `named` are options of the run that name code from
    elsewhere, such as a `module:factory` as its model: a folder does not decide what code runs.
    """
    folder = Path(folder)
    options = read_yaml(folder / "config.yaml")
    require_explicit_import(str(folder / "config.yaml"), options, named or {})
    config = RunConfig.from_dict(options)
    if config.fold is not None:
        raise bad_value("run", str(folder), f"a run on all samples; this one holds out part {config.fold}")
    task = load_task(config, dataset)
    split = task.dataset.train
    parts = stratified_folds(split.labels, folds, FOLD_SEED)
    known = load_oof(folder)
    if known is not None and known.about.get("folds") == folds and known.belong_to(split.labels):
        return known
    probabilities = np.zeros((len(split), task.dataset.num_classes), dtype=np.float32)
    trained: list[float] = []
    for part in range(folds):
        here = folder / "folds" / f"{part + 1}-of-{folds}"
        if console:
            print(f"fold {part + 1} of {folds}", flush=True)
        train(config.replace(fold=f"{part + 1}/{folds}"), here, dataset=dataset, console=console)
        held = np.flatnonzero(parts == part)
        probabilities[held] = _predictions(here, held, split.take(held).inputs, config)
        trained.append(_fit(here))
    about: dict[str, Any] = {"folds": folds, "seed": FOLD_SEED, "train_accuracy": float(np.mean(trained))}
    save_oof(folder, probabilities, split.labels, about)
    found = load_oof(folder)
    assert found is not None
    return found


def _predictions(folder: Path, held: npt.NDArray[np.int64], inputs: Any, config: RunConfig) -> Floats:
    """Mean probabilities over the epochs of a finished run; its last network's where those were not kept."""
    state = load_checkpoint(folder / "checkpoints")
    assert state is not None, "a finished run has a checkpoint"
    samples = state["samples"]
    if "probability_sum" in samples:
        rows = samples["probability_sum"][held].double().numpy()
        means: Floats = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
        return means
    trained = load_predictor(folder, model=config.model, method=config.method)
    return np.concatenate([batch.cpu().numpy() for batch in trained.probabilities(inputs)])


def _fit(folder: Path) -> float:
    """The last accuracy, in percent, on the observed labels that a run was trained on."""
    last = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    return float(json.loads(last)["train_accuracy_observed"])
