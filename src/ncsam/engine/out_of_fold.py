"""Out-of-fold predictions of a run: its configuration is trained K more times, each time with a part held out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from ncsam._arguments import require_explicit_import
from ncsam._errors import bad_value
from ncsam.data.types import DataSet, Labels
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.config import RunConfig
from ncsam.engine.config_options import read_yaml
from ncsam.engine.given_model import Model
from ncsam.engine.label_issues import rewrite_label_issues
from ncsam.engine.predictor import load_predictor
from ncsam.engine.run import train
from ncsam.engine.task import FOLD_SEED, load_task
from ncsam.issues.calibration import stratified_folds
from ncsam.models.registry import is_combined
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder, load_oof
from ncsam.runs.writer import OutOfFold, save_oof

Floats = npt.NDArray[np.float32]


def find_label_issues_cv(
    folder: str | os.PathLike[str],
    folds: int,
    *,
    dataset: DataSet | None = None,
    model: Model | None = None,
    console: bool = True,
    named: Mapping[str, Any] | None = None,
) -> None:
    """Make a finished run's out-of-fold predictions, and its label issues from them. Arguments as of `out_of_fold`.

    Args:
        folder: The folder of a finished run.
        folds: Number of parts, from 2.
        dataset: The data, where it is in memory.
        model: The function that builds the model, where it was passed as one.
        console: Whether to print progress.
        named: Options of the run that name code from elsewhere.
    """
    out_of_fold(folder, folds, dataset=dataset, model=model, console=console, named=named)
    rewrite_label_issues(folder, dataset=dataset)


def check_folds(config: RunConfig, folds: int, dataset: DataSet | None = None, model: Model | None = None) -> None:
    """Raise, before anything is trained, if a run cannot be trained again on so many folds of its samples.

    Args:
        config: The configuration of the run.
        folds: Number of parts.
        dataset: The data, where it is in memory.
        model: The model, where it was passed as an object.

    Raises:
        UsageError: The number is below 2 or above that of the samples, or the model cannot be built again.
    """
    _refuse_module(model)
    stratified_folds(load_task(config, dataset).dataset.train.labels, folds)


def _refuse_module(model: object) -> None:
    if isinstance(model, nn.Module):
        expected = "a function that builds it: every fold needs a model that is not trained yet"
        raise bad_value("model", type(model).__name__, expected)


def out_of_fold(
    folder: str | os.PathLike[str],
    folds: int,
    *,
    dataset: DataSet | None = None,
    model: Model | None = None,
    console: bool = True,
    named: Mapping[str, Any] | None = None,
) -> OutOfFold:
    """Train the configuration of a run `folds` times, and predict every sample by the model that never saw its label.

    The fold runs lie in `FOLDER/folds/PART-of-FOLDS` and are ordinary ones: finished ones are not trained again,
    interrupted ones resume. The result is `FOLDER/oof_probs.npz`, in the order of the training split.

    Args:
        folder: the run folder.
        folds: how many parts, from 2.
        dataset: the data, where it is in memory, as in `train`.
        model: the function that builds the model, where it was passed as one.
        console: whether to print progress.
        named: options of the run that name code from elsewhere, such as a `module:factory` as its model: a folder does
            not decide what code runs.
    """
    folder = Path(folder)
    options = read_yaml(folder / layout.CONFIG)
    require_explicit_import(str(folder / layout.CONFIG), options, named or {})
    config = RunConfig.from_dict(options)
    if config.fold is not None:
        raise bad_value("run", str(folder), f"a run on all samples; this one holds out fold {config.fold}")
    task = load_task(config, dataset)
    split = task.dataset.train
    parts = stratified_folds(split.labels, folds, FOLD_SEED)
    known = load_oof(folder)
    own = known is not None and "model" not in known.about  # by the run's model, not by the recommended one beside it
    if known is not None and own and known.about.get("folds") == folds and known.belong_to(split.labels):
        return known
    _refuse_module(model)
    if is_combined(config.model):
        return _of_combined(folder, known if own else None, split.labels, console)
    given: dict[str, Any] = {} if model is None else {"model": model}
    probabilities = np.zeros((len(split), task.dataset.num_classes), dtype=np.float32)
    trained: list[float] = []
    for part in range(folds):
        here = layout.fold_folder(folder, part, folds)
        if console:
            print(f"fold {part + 1} of {folds}", flush=True)
        train(config.replace(fold=f"{part + 1}/{folds}"), here, dataset=dataset, console=console, **given)
        held = np.flatnonzero(parts == part)
        probabilities[held] = _predictions(here, held, split.take(held).inputs, config, model)
        trained.append(_fit(here))
    about: dict[str, Any] = {"folds": folds, "seed": FOLD_SEED, "train_accuracy": float(np.mean(trained))}
    found = OutOfFold.of(probabilities, split.labels, about)
    save_oof(folder, found)
    return found


def _of_combined(folder: Path, known: OutOfFold | None, labels: Labels, console: bool) -> OutOfFold:
    """The predictions that `ncsam auto` made out of fold: what it combined cannot be trained as one model."""
    if known is None or not known.belong_to(labels):
        raise bad_value("run", str(folder), "a run of one model; for a combination, rerun ncsam auto with these folds")
    if console:
        print(f"{folder} combines models of ncsam auto: its {known.about.get('folds')} folds are used", flush=True)
    return known


def _predictions(
    folder: Path, held: npt.NDArray[np.int64], inputs: Any, config: RunConfig, model: Model | None
) -> Floats:
    """Mean probabilities over the epochs of a finished run; those of its last model where these were not kept."""
    state = load_checkpoint(layout.checkpoints(folder))
    assert state is not None, "a finished run has a checkpoint"
    samples = state["samples"]
    if "probability_sum" in samples:
        rows = samples["probability_sum"][held].double().numpy()
        means: Floats = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)
        return means
    trained = load_predictor(folder, model=model or config.model, method=config.method)
    return np.concatenate([batch.cpu().numpy() for batch in trained.probabilities(inputs)])


def _fit(folder: Path) -> float:
    """The last accuracy, in percent, on the given labels that a run was trained on."""
    return float(RunFolder.read(folder).metrics[-1]["train_accuracy_observed"])
