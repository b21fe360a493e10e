"""The runs behind the experiments on label issues: real and generated errors; underfitted to memorized.

Every case is trained once on all samples and once for each of five folds. What its networks said is kept in
`FOLDER/CASE-REGIME.npz`, so that scores can be compared without training again.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ncsam.data import DataSet, from_arrays, load
from ncsam.engine import RunConfig, train
from ncsam.engine.config_options import read_preset
from ncsam.engine.evaluate import Predictions
from ncsam.engine.label_issues import Dynamics
from ncsam.engine.out_of_fold import out_of_fold
from ncsam.engine.task import load_task
from ncsam.issues.posterior import LabelPosterior, assess
from reduce_cifar import halved

FOLDS = 5
#: How a network is trained: hardly at all; by what suits it; until it believes most labels; as anybody would.
REGIMES: dict[str, dict[str, Any]] = {
    "underfitted": {"optimizer": "sgd", "lr": 0.01, "epochs": 2, "batch_size": 128},
    "fitted": {"optimizer": "sam", "rho": "auto", "lr": 0.0125, "epochs": 20, "batch_size": 128},
    "memorized": {"optimizer": "sgd", "lr": 0.05, "epochs": 25, "batch_size": 128, "weight_decay": 0.0},
    "recommended": read_preset("recommended"),
}
PIXELS = {"model": "resnet8", "model_options": {}, "augment": "none"}
PIXEL_REGIMES: dict[str, dict[str, Any]] = {
    "underfitted": {"optimizer": "sgd", "lr": 0.01, "epochs": 1, "batch_size": 128},
    "fitted": {"optimizer": "sgd", "lr": 0.05, "epochs": 8, "batch_size": 128, "augment": "standard"},
    "memorized": {"optimizer": "sgd", "lr": 0.05, "epochs": 14, "batch_size": 64, "weight_decay": 0.0},
}


@dataclass(frozen=True)
class Case:
    """What the networks of one case and regime said. `margins`, `losses` and `predicted` are (epochs, samples)."""

    name: str
    regime: str
    labels: np.ndarray
    clean: np.ndarray
    oof: np.ndarray
    margins: np.ndarray
    losses: np.ndarray
    predicted: np.ndarray
    mean: np.ndarray
    trained_on: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        return self.labels != self.clean

    @cached_property
    def posterior(self) -> LabelPosterior:
        """What is stated of the labels; how far the networks fit theirs is taken from the run on all samples."""
        fit = (self.predicted[-1] == self.labels)[self.trained_on].mean()
        return assess(self.labels, self.oof, float(fit))


#: File, and the images of it that are taken; `others` are those that nothing was chosen on.
_FILES = {
    "labelme": ("labelme_features.npz", 0, 1000),
    "features": ("cifar10_features.npz", 0, 1500),
    "others": ("cifar10_features.npz", 1500, 3000),
    "pixels": ("cifar10_subset.npz", 0, 1500),
}


def data_of(name: str, folder: Path) -> tuple[DataSet, dict[str, Any]]:
    """The data of a case, and the options that belong to it."""
    kind, _, labels = name.partition(" ")
    if kind == "digits":
        noise, rate = labels.split()
        return load("digits"), {"noise": noise, "rate": float(rate)}
    file_name, first, last = _FILES[kind]
    with np.load(folder / file_name) as file:
        x, clean, observed = (file[name][first:last] for name in ("x_train", "y_train", labels))
    if kind == "pixels":
        return from_arrays(halved(x).round().astype(np.uint8), observed, y_clean=clean), PIXELS
    return from_arrays(x.astype(np.float32), observed, y_clean=clean), {}


#: The estimate of trust was chosen with all of these in sight but `others`, and not in the regime `recommended`.
CASES = (
    "digits symmetric 0.4",
    "digits pairflip 0.2",
    "digits instance 0.3",
    "digits symmetric 0.05",
    "labelme y_one",
    "labelme y_majority",
    "features y_worst",
    "features y_random1",
    "features y_aggregate",
    "others y_worst",
    "others y_random1",
    "others y_aggregate",
    "pixels y_worst",
    "pixels y_random1",
)


def regimes_of(name: str) -> list[str]:
    """Pixels are too slow to train as recommended."""
    return [regime for regime in REGIMES if not (name.startswith("pixels") and regime == "recommended")]


def case(name: str, regime: str, data: Path, cache: Path) -> Case:
    """Read a case, or train it first."""
    file = cache / f"{name.replace(' ', '-')}-{regime}.npz"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, **_trained(name, regime, data))
    with np.load(file) as found:
        return Case(name, regime, **{key: found[key] for key in found.files})


def _trained(name: str, regime: str, data: Path) -> dict[str, np.ndarray]:
    dataset, options = data_of(name, data)
    regimes = PIXEL_REGIMES if name.startswith("pixels") else REGIMES
    config = RunConfig(**{**options, **regimes[regime], "telemetry_every": 0})
    kept: list[Predictions] = []
    update = Dynamics.update

    def keeping(self: Dynamics, predictions: Predictions, labels: np.ndarray, epoch: int) -> None:
        kept.append(predictions)
        update(self, predictions, labels, epoch)

    with tempfile.TemporaryDirectory() as folder:
        Dynamics.update = keeping  # type: ignore[method-assign]
        try:
            train(config, Path(folder), dataset=dataset, console=False)
        finally:
            Dynamics.update = update  # type: ignore[method-assign]
        oof = out_of_fold(folder, FOLDS, dataset=dataset, console=False).probabilities
    task = load_task(config, dataset)
    split = task.dataset.train
    assert split.clean is not None
    trained_on = np.zeros(len(split), dtype=bool)
    trained_on[task.train] = True
    return {
        "labels": split.labels,
        "clean": split.clean,
        "oof": oof,
        "margins": np.stack([p.margin for p in kept]),
        "losses": np.stack([p.loss for p in kept]),
        "predicted": np.stack([p.predicted for p in kept]),
        "mean": np.mean([p.probabilities for p in kept], axis=0),
        "trained_on": trained_on,
    }
