"""A run of a closed-form model: fitted instead of trained, and written like any other run.

`auto` ends through `write_fitted`, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ncsam import classifiers
from ncsam._errors import bad_value
from ncsam._version import __version__
from ncsam.data.modalities import saved_modality
from ncsam.data.types import Split
from ncsam.engine.checkpoint import save_checkpoint
from ncsam.engine.config import RunConfig
from ncsam.engine.evaluate import Predictions
from ncsam.engine.label_issues import Dynamics, SampleTable, label_issues_of
from ncsam.engine.loggers import FIELDS, MetricsFiles
from ncsam.engine.metrics import ByClass, accuracy, calibration_error, class_metrics, confusion, summarize
from ncsam.engine.resolve import recommended_model
from ncsam.engine.task import Task
from ncsam.errors import UsageError
from ncsam.issues.posterior import assess, noise_rate_of
from ncsam.noise import estimate_noise
from ncsam.runs import layout
from ncsam.runs.reader import read_verified_labels
from ncsam.runs.writer import OutOfFold, begin_run, write_run

Floats = npt.NDArray[np.float64]
FOLDS = 5
_BATCH = 512
#: Above so many samples label issues do not come from a closed-form model beside the trained one: minutes, not seconds.
_MOST_SAMPLES = 50_000
#: Numbers of a sample to which a closed-form model is fitted beside the trained one.
_MOST_PIXELS = 4096


def fit_run(
    config: RunConfig,
    task: Task,
    folder: Path,
    *,
    command: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Fit the closed-form model of a resolved configuration, write the run folder and return its summary.

    It is fitted to validation samples, too, which serve no choice here: those are judged by fits without their fold.

    Args:
        config: the configuration; method, optimizer and length do not matter.
        task: the data; features, or images that are flattened.
        folder: the run folder, which the caller has locked.
        command: stored in `config.yaml`.
        say: takes lines of progress.
    """
    if task.modality.name not in ("features", "images"):
        raise bad_value("model", config.model, f"a model for {task.modality.name}, such as auto")
    labels = task.dataset.train.labels
    seen = np.arange(len(labels)) if config.fold is None else task.train
    say(f"{folder}: {config.model}, fitted to {len(seen):,} samples")
    for note in task.notes:
        say(note)
    began = time.perf_counter()
    rows = feature_rows(config, task, task.dataset.train)
    y, classes = torch.from_numpy(labels[seen]), task.dataset.num_classes
    x = rows[torch.from_numpy(seen)]
    fitted = classifiers.cross_fit(config.model, x, y, classes, folds=FOLDS, **config.model_options)
    network = fitted.member.network(classes, task.modality.in_channels)

    def predict(split: Split) -> Floats:
        return predicted_probabilities(network, feature_rows(config, task, split))

    rest = np.setdiff1d(np.arange(len(rows)), seen)  # the fold that is held out: the model never saw it
    unseen = predicted_probabilities(network, rows[torch.from_numpy(rest)])

    def whole(found: Floats) -> Floats:
        every = np.empty((len(rows), classes))
        every[seen], every[rest] = found, unseen
        return every

    return write_fitted(
        folder,
        config,
        task,
        network,
        whole(fitted.probabilities),
        issues=whole(classifiers.issue_probabilities(fitted, labels[seen], table=is_table(task))),
        predict=predict,
        results={"method": "fit", "optimizer": "closed form"},
        about={"folds": FOLDS, "seed": 0},
        seconds=time.perf_counter() - began,
        command=command,
    )


@torch.no_grad()
def predicted_probabilities(network: nn.Module, rows: Tensor) -> Floats:
    """Class probabilities (N, K) of rows in double precision.

    Args:
        network: Returns logits; it runs on its own device, in the mode that it is in.
        rows: Inputs (N, features) on the same device.
    """
    parts = [network(part).double().softmax(dim=1) for part in torch.split(rows, _BATCH)]
    return np.asarray(torch.cat(parts).numpy())


def is_table(task: Task) -> bool:
    """Whether the features are the named columns of a table.

    Args:
        task: The data.
    """
    return bool(getattr(task.modality, "columns", ()))


def smooth_out_of_fold(config: RunConfig, task: Task) -> OutOfFold | None:
    """Out-of-fold predictions of the recommended closed-form model, by which label issues are ranked.

    Whatever a run trains, on features these find label issues better than its own predictions. `None` for fewer samples
    than folds and for more than 50,000.

    Args:
        config: The configuration, for how samples are read.
        task: The features; validation samples are predicted, too.
    """
    split = task.dataset.train
    if not FOLDS < len(split) <= _MOST_SAMPLES:
        return None
    model = recommended_model(task)
    fitted = classifiers.cross_fit(
        model,
        feature_rows(config, task, split),
        torch.from_numpy(split.labels.copy()),
        task.dataset.num_classes,
        folds=FOLDS,
    )
    rows = classifiers.issue_probabilities(fitted, split.labels, table=is_table(task))
    rate = noise_rate_of(split.labels, fitted.probabilities)
    return OutOfFold.of(rows, split.labels, {"folds": FOLDS, "seed": 0, "model": model, "noise_rate": rate})


def wrong_label_probabilities(config: RunConfig, task: Task) -> Tensor:
    """For every training sample the probability that its label is wrong, as label issues state it; 0 if held out.

    The posterior of `ncsam.issues.posterior`, by out-of-fold predictions of the recommended closed-form model for
    features, or for the pixels of small images, of the samples trained on; what `WeightedSAM` needs. All are 0 where
    the posterior is not reliable, which makes it SAM.

    Args:
        config: The configuration, for how samples are read.
        task: The data.

    Returns:
        float32 (N,) on the CPU, in the order of the training split.

    Raises:
        UsageError: For other data, images that are too large, and too few or too many samples.
    """
    train, split = task.train, task.dataset.train
    if task.modality.name not in ("features", "images") or not FOLDS < len(train) <= _MOST_SAMPLES:
        raise _without_p_wrong(config)
    labels = split.labels[train]
    rows = feature_rows(config, task, split)[torch.from_numpy(train)]
    if rows.shape[1] > _MOST_PIXELS:
        raise _without_p_wrong(config)
    fitted = classifiers.cross_fit(
        recommended_model(task), rows, torch.from_numpy(labels), task.dataset.num_classes, folds=FOLDS
    )
    posterior = assess(labels, classifiers.issue_probabilities(fitted, labels, table=is_table(task)))
    p = torch.zeros(len(split))
    if posterior.reliable:
        p[torch.from_numpy(train)] = torch.from_numpy(posterior.p_wrong).float().clamp(0, 1)
    return p


def _without_p_wrong(config: RunConfig) -> UsageError:
    expected = f"another one: it needs features (`ncsam embed`), or images of at most {_MOST_PIXELS:,} numbers, of "
    return bad_value("optimizer", config.optimizer, expected + f"{FOLDS + 1} to {_MOST_SAMPLES:,} samples")


@torch.no_grad()
def feature_rows(config: RunConfig, task: Task, split: Split) -> Tensor:
    """The samples of a split as a model sees them in evaluation, flattened: (N, d), on the CPU.

    Args:
        config: The configuration, for how samples are read; its precision is ignored.
        task: The data, which says how samples are prepared.
        split: A split of this data.
    """
    loader = task.loader(split, config.replace(precision="32-true"), _BATCH, device=torch.device("cpu"))
    return torch.cat([batch.views[0].flatten(1) for batch in loader.evaluation(_BATCH).iterate(0)])


def write_fitted(
    folder: Path,
    config: RunConfig,
    task: Task,
    network: nn.Module,
    probabilities: Floats,
    *,
    predict: Callable[[Split], Floats],
    results: Mapping[str, Any],
    about: Mapping[str, Any],
    seconds: float,
    issues: Floats | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """Write the run folder of a model that was not trained by epochs, and return its summary.

    Args:
        folder: the run folder, which the caller has locked.
        config: names the model and its options, as `load_predictor` builds it.
        task: the data.
        network: the model with its state.
        probabilities: (N, K) of the training split, each row by a model that never saw it.
        predict: the class probabilities of a split by the model itself.
        results: further numbers and words of the summary.
        about: how the out-of-fold predictions were made: `folds` and `seed`.
        seconds: time of fitting.
        issues: probabilities by which label issues are ranked, if others than `probabilities`.
        command: stored in `config.yaml`.
    """
    dataset, split = task.dataset, task.dataset.train
    dynamics = _dynamics(probabilities, split.labels)
    record, by_class = _measured(task, probabilities, predict)
    begin_run(folder, config, dataset, record=task.record, damaged=task.damaged, command=command)
    MetricsFiles(folder, [record]).close()
    noted = {
        "version": __version__,
        "epoch": 1,
        "batch": 0,
        "labels_sha256": task.labels_sha256,
        "data": {"name": dataset.name, "classes": list(dataset.classes), **saved_modality(task.modality)},
    }
    state = {"network": {name: value.cpu() for name, value in network.state_dict().items()}}
    whole = {**noted, "config": config.to_dict(), "learners": [state], "method": {}, "history": [record]}
    whole |= {"samples": dynamics.table.state_dict(), "ranks": [], "seconds": seconds}
    save_checkpoint(folder / layout.CHECKPOINTS, whole, noted)
    oof = OutOfFold.of(probabilities if issues is None else issues, split.labels, about)
    summary = {
        **summarize([record]),
        "noise_rate": task.noise_rate,
        "seconds": seconds,
        "epochs": 1,
        "seed": config.seed,
        "data": config.data,
        "model": config.model,
        "val_accuracy": record["val_accuracy"],
        "noise_estimate": noise_rate_of(split.labels, probabilities),
        **results,
    }
    verified = read_verified_labels(folder, dataset.classes)
    found = label_issues_of(dataset, dynamics, np.arange(len(split)), oof, verified)
    return write_run(folder, summary, found, by_class=by_class.arrays(), oof=oof)


def _dynamics(probabilities: Floats, labels: npt.NDArray[np.int64]) -> Dynamics:
    """The statistics of every sample after one "epoch" of out-of-fold predictions."""
    every = np.arange(len(labels))
    own = probabilities[every, labels]
    others = probabilities.copy()
    others[every, labels] = -1.0
    predictions = Predictions(
        predicted=probabilities.argmax(axis=1),
        confidence=probabilities.max(axis=1).astype(np.float32),
        loss=-np.log(np.maximum(own, 1e-12)).astype(np.float32),
        margin=(own - others.max(axis=1)).astype(np.float32),
        probabilities=probabilities.astype(np.float32),
    )
    dynamics = Dynamics(SampleTable(len(labels), torch.device("cpu")), probabilities.shape[1])
    dynamics.update(predictions, labels, 1)
    return dynamics


def _measured(task: Task, probabilities: Floats, predict: Callable[[Split], Floats]) -> tuple[dict[str, Any], ByClass]:
    """The record of the only "epoch", and confusion matrices.

    `val_accuracy` is of samples held out for validation where there are such, else of the out-of-fold predictions.
    """
    dataset, split, classes = task.dataset, task.dataset.train, task.dataset.num_classes
    labels, predicted = split.labels, probabilities.argmax(axis=1)
    record: dict[str, Any] = dict.fromkeys(FIELDS)
    own = probabilities[np.arange(len(labels)), labels]
    record |= {"epoch": 1, "train_loss": float(-np.log(np.maximum(own, 1e-12)).mean()), "telemetry": {}}
    unseen = task.train if task.val is None else task.val
    record["val_accuracy"] = accuracy(predicted[unseen], labels[unseen])
    record |= class_metrics("val", predicted[unseen], labels[unseen], probabilities[unseen])
    fitted = predict(split).argmax(axis=1)
    record["train_accuracy_observed"] = accuracy(fitted[task.train], labels[task.train])
    if split.clean is not None:
        record["train_accuracy_clean"] = accuracy(fitted[task.train], split.clean[task.train])
        wrong = task.train[(labels != split.clean)[task.train]]
        record["memorized"] = accuracy(fitted[wrong], labels[wrong]) if len(wrong) else None
    test = None
    if dataset.test is not None:
        p = predict(dataset.test)
        right = p.argmax(axis=1) == dataset.test.labels
        record["test_accuracy"] = 100.0 * float(right.mean())
        record["calibration_error"] = calibration_error(p.max(axis=1), right)
        test = confusion(dataset.test.labels, p.argmax(axis=1), classes)
        record |= class_metrics("test", p.argmax(axis=1), dataset.test.labels, p)
    transition = estimate_noise(labels, probabilities).transition
    return record, ByClass(test, confusion(labels, predicted, classes), transition, None)
