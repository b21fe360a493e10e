"""What a run trains on: the data set under its noisy labels, and which samples are held out for validation."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam import data, noise
from ncsam._errors import bad_value, refuse_unknown, unknown_name
from ncsam._options import fitted_options
from ncsam.data.labels import stratified
from ncsam.data.loader import Loader
from ncsam.data.types import DataSet, Labels, Split
from ncsam.engine import defaults
from ncsam.engine.config import RunConfig
from ncsam.engine.folds import parse_fold, stratified_folds
from ncsam.engine.optimizers import LARGEST_FLIP_RATIO, default_radius
from ncsam.methods import Method
from ncsam.noise import NoisyLabels

Indices = npt.NDArray[np.int64]

_VIEWS = {"none": "plain", "standard": "weak", "paper": "weak_cutout"}
FOLD_SEED = 0  # of the split into folds: the same for every run, whose parts must join to the whole
_SMALL = 5000  # training samples
_PHOTOGRAPH = 128  # pixels; from here on a shorter side of 8/7 is cropped (256 to 224), as is usual for photographs


@dataclass(frozen=True)
class Task:
    """A data set with its observed labels; `train` and `val` are positions in its training split.

    `val` is `None` where the data set brings a validation split of its own (`dataset.val`) or none is wanted.
    """

    dataset: DataSet
    train: Indices
    val: Indices | None
    record: NoisyLabels | None

    @property
    def labels_sha256(self) -> str:
        """Of the observed training labels, as little-endian 64-bit integers in order."""
        return hashlib.sha256(self.dataset.train.labels.astype("<i8").tobytes()).hexdigest()

    @property
    def noise_rate(self) -> float | None:
        """The realised share of wrong labels among the samples that are trained on, where the clean ones are known."""
        split = self.dataset.train
        return None if split.clean is None else float(np.mean((split.labels != split.clean)[self.train]))

    @property
    def channels(self) -> int:
        return len(self.dataset.mean)

    def loader(self, split: Split, config: RunConfig, batch_size: int, **options: Any) -> Loader:
        """Batches of a split as the data set wants its pictures: normalised, cut to size."""
        size = self.dataset.size
        photographs = size is not None and min(size) >= _PHOTOGRAPH and not split.in_memory
        return Loader(
            split,
            batch_size,
            mean=self.dataset.mean,
            std=self.dataset.std,
            size=size,
            resize=round(max(size) * 8 / 7) if photographs and size is not None else None,
            batches=config.batches,
            seed=config.seed,
            dtype=torch.float64 if config.precision == "64-true" else torch.float32,
            workers=config.workers,
            **options,
        )


def load_task(config: RunConfig, dataset: DataSet | None = None) -> Task:
    """Read the data, put the noisy labels in place, and hold out the validation samples."""
    if dataset is None:
        dataset = data.load(config.data, config.data_root, download=config.download, **config.data_options)
    record = _noisy_labels(config, dataset)
    if record is not None:
        dataset = dataclasses.replace(dataset, train=dataset.train.with_labels(record.noisy, record.clean))
    every = np.arange(len(dataset.train))
    if config.fold is not None:
        part, parts = parse_fold(config.fold)
        out = stratified_folds(dataset.train.labels, parts, FOLD_SEED) == part - 1
        return Task(dataclasses.replace(dataset, val=None), every[~out], every[out], record)
    if dataset.val is not None or config.val_share == 0:
        return Task(dataset, every, None, record)
    # by the observed labels, and the same for every seed: runs that are compared train on the same samples
    kept, held = stratified(dataset.train.labels, config.val_share, seed=0)
    if len(held) == 0:
        raise bad_value("val_share", config.val_share, f"it leaves no validation sample of {len(every)}; 0 is for none")
    return Task(dataset, kept, held, record)


def settled(config: RunConfig, task: Task) -> RunConfig:
    """The configuration with every "auto" replaced by what it means for this data.

    `flip_ratio=None` is the noise rate, at most .4, where that is said. Else it is estimated after warm-up, and
    `warmup="auto"` is decided on the way: both are refused here where the run will have nothing to go by.
    """
    size, channels = task.dataset.size, task.channels
    inputs = task.dataset.train.inputs
    numbers = int(np.prod(inputs.shape[1:])) if isinstance(inputs, np.ndarray) else None
    model, options = config.model, dict(config.model_options)
    if model == "auto":
        if size is None or max(size) <= 16:
            model, options = "mlp", {"hidden": [256, 256], **options}
        else:
            model, options = "resnet18", {"stem": "cifar" if max(size) <= 96 else "imagenet", **options}
    if model == "mlp" and "in_features" not in options:
        options["in_features"] = numbers if size is None or numbers is not None else channels * size[0] * size[1]
    augment = config.augment
    if augment == "auto":
        augment = "standard" if size is not None and channels == 3 and max(size) >= 24 else "none"
    rho = default_radius(config.optimizer) if config.rho is None and config.sharpness_aware else config.rho
    # a small data set makes too few steps of 128 in the usual number of epochs to fit anything, right or wrong
    batch_size = config.batch_size or (128 if len(task.train) >= _SMALL else 32)
    found = {
        "lr": defaults.learning_rate(model, config.pretrained),
        "weight_decay": defaults.weight_decay(model),
        "epochs": defaults.epochs(model, len(task.train), batch_size),
        "rho_target": defaults.rho_target(config.method, augment),
    }
    found = {name: value for name, value in found.items() if getattr(config, name) == "auto"}
    flip_ratio = config.flip_ratio
    if config.optimizer == "ncsam" and flip_ratio is None and config.rate is not None:
        flip_ratio = min(config.rate, LARGEST_FLIP_RATIO)
    config = config.replace(
        model=model,
        model_options=options,
        augment=augment,
        rho=rho,
        batch_size=batch_size,
        flip_ratio=flip_ratio,
        **found,
    )
    if config.sharpness_aware and config.warmup == "auto" and task.val is None and task.dataset.val is None:
        raise bad_value("warmup", "auto", "only with validation samples to watch: val_share above 0 (now 0)")
    if config.optimizer == "ncsam" and config.flip_ratio == "auto" and config.warmup_epochs == 0:
        raise bad_value("flip_ratio", "auto", "only after an epoch of warm-up, which warmup and epochs leave none")
    return config


def view_names(config: RunConfig, wanted: Sequence[str]) -> list[str]:
    """The loader's views for those a method wants.

    "train" is the run's own augmentation. "auto" is the strong one where the run augments at all; where it does not,
    because mirrored or cut they would be other pictures (digits, 8 x 8), they are shifted alone. So are "auto:simclr"
    and any other view after "auto:".
    """
    meant = {"train": _VIEWS[config.augment], "auto": "strong"}
    plain = config.augment == "none"
    return [
        "shifted" if plain and view.partition(":")[0] == "auto" else meant.get(view, view.removeprefix("auto:"))
        for view in wanted
    ]


def check_method(method: Method, task: Task) -> None:
    """Refuse a method that compares views of pictures where there are none."""
    if method.pictures_only and task.dataset.size is None:
        raise bad_value("method", method.name, f"only with pictures, and {task.dataset.name} holds features")


def _noisy_labels(config: RunConfig, dataset: DataSet) -> NoisyLabels | None:
    split = dataset.train
    wanted = config.noise or config.label_file or config.label_column
    if wanted and split.clean is not None and not np.array_equal(split.clean, split.labels):
        name = "noise" if config.noise else "label_file" if config.label_file else "label_column"
        raise bad_value(name, wanted, f"{dataset.name} has noisy labels already, beside its clean ones")
    if config.noise is not None:
        return _corrupted(config, dataset)
    if config.label_file is not None or config.label_column is not None:
        return _from_file(Path(config.label_file or config.data), config.label_column, dataset)
    return None


def _corrupted(config: RunConfig, dataset: DataSet) -> NoisyLabels:
    assert config.noise is not None
    if config.noise not in noise.GENERATORS:
        raise unknown_name("noise", config.noise, noise.GENERATORS)
    options = dict(config.noise_options)
    parameters = inspect.signature(noise.GENERATORS[config.noise]).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty]
    if "inputs" in required and "inputs" not in options:
        if not dataset.train.in_memory:
            raise bad_value("noise", config.noise, "it looks at the pictures, which must be in memory for that")
        options["inputs"] = dataset.train.inputs
    if "rate" in required and config.rate is None:
        raise bad_value("rate", None, f"noise={config.noise!r} needs a rate in [0, 1]")
    missing = [name for name in required if name not in ("labels", "rate", *options)]
    if missing:
        raise bad_value("noise_options", config.noise_options, f"noise={config.noise!r} needs {', '.join(missing)}")
    seed = config.seed if config.noise_seed is None else config.noise_seed
    known = {"num_classes": dataset.num_classes, "seed": seed}
    refuse_unknown(config.noise, options, set(parameters) - {"labels", "rate", *known})
    options = fitted_options(noise.GENERATORS[config.noise], options)
    return noise.make(config.noise, dataset.train.labels, config.rate, **known, **options)


def _from_file(path: Path, column: str | None, dataset: DataSet) -> NoisyLabels:
    """Labels saved by `NoisyLabels.save`, an array of an `.npz`, or a published file."""
    true = dataset.train.labels
    if path.suffix in (".npz", ".json") and path.with_suffix(".npz").is_file() and path.with_suffix(".json").is_file():
        record = NoisyLabels.load(path)
    elif path.suffix == ".npz":
        record = NoisyLabels(true, _array(path, column, len(true)), dataset.num_classes, _recipe(path, column))
    else:
        record = noise.from_file(path, label=column, clean=true, num_classes=dataset.num_classes)
    if not np.array_equal(record.clean, true):
        raise bad_value("label_file", str(path), f"its clean labels are not those of {dataset.name}, in that order")
    return record


def _recipe(path: Path, column: str | None) -> dict[str, Any]:
    return {"name": "from_file", "file": path.name, "label": column}


def _array(path: Path, column: str | None, count: int) -> Labels:
    if not path.is_file():
        raise FileNotFoundError(f"label_file={str(path)!r}: there is no such file")
    with np.load(path, allow_pickle=False) as file:
        if column is None or column not in file.files:
            raise unknown_name(f"array of {path.name} (label_column)", column, file.files)
        labels = np.asarray(file[column])
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise bad_value("label_column", column, f"{count:,} whole numbers, and it holds {labels.dtype} {labels.shape}")
    return labels.astype(np.int64)
