"""What a run trains on: the dataset with its noisy labels, and which samples are held out for validation."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam import data, noise
from ncsam._arguments import coerce_options
from ncsam._errors import bad_value, refuse_unknown, unknown_name
from ncsam._files import open_arrays, read_json
from ncsam._text import shortened
from ncsam.data.images.files import BadImage
from ncsam.data.loading.loader import Loader
from ncsam.data.modalities import Modality, modality_of
from ncsam.data.modalities.text import Pretrained, TextList
from ncsam.data.stored import load_dataset
from ncsam.data.tables.columns import CLEANED, TABLE_SUFFIXES, read_columns
from ncsam.data.types import DataSet, Labels, Split, stratified
from ncsam.engine.config import IN_MEMORY, RunConfig
from ncsam.issues.calibration import parse_fold, stratified_folds
from ncsam.methods import Method
from ncsam.noise import NoisyLabels
from ncsam.pretrained.hub import PREFIX, model_folder
from ncsam.runs import layout

Indices = npt.NDArray[np.int64]

FOLD_SEED = 0  # of the split into folds: the same for every run, so that the parts of several runs fit together


@dataclass(frozen=True)
class Task:
    """A dataset with its observed labels; `train` and `val` are positions in its training split.

    `val` is `None` where the dataset brings a validation split of its own (`dataset.val`) or none is wanted.

    Attributes:
        dataset: The data, with observed labels and, where they are known, clean ones.
        train: Positions of the samples trained on.
        val: Positions of the samples held out.
        record: Where the noisy labels come from; `None` if they are the dataset's own.
        damaged: Image files that could not be read and are left out.
        source: The images, where `dataset` has features that the run computed of them.
    """

    dataset: DataSet
    train: Indices
    val: Indices | None
    record: NoisyLabels | None
    damaged: Sequence[BadImage] = ()
    source: DataSet | None = None  # the images, where `dataset` holds features of them

    @property
    def original(self) -> DataSet:
        """The dataset as a user has it, whose samples reports show."""
        return self.source or self.dataset.original

    @property
    def notes(self) -> list[str]:
        """What the reader says about the data; `ncsam data describe` has the whole of a long note."""
        return [f"note: {shortened(note, 300)}" for note in self.original.notes]

    @property
    def labels_sha256(self) -> str:
        """Of the observed training labels, as little-endian 64-bit integers in order."""
        return hashlib.sha256(self.dataset.train.labels.astype("<i8").tobytes()).hexdigest()

    @property
    def noise_rate(self) -> float | None:
        """The realized share of wrong labels among the samples that are trained on, where the clean ones are known."""
        split = self.dataset.train
        return None if split.clean is None else float(np.mean((split.labels != split.clean)[self.train]))

    @cached_property
    def modality(self) -> Modality:
        """What kind of data it is, with all that depends on that."""
        return modality_of(self.dataset)

    @cached_property
    def original_modality(self) -> Modality:
        """The modality that the run's model takes: of `source`, whose features are computed inside the run; else of the
        dataset, also where this holds features that were computed before."""
        return modality_of(self.source or self.dataset)

    def loader(self, split: Split, config: RunConfig, batch_size: int, **options: Any) -> Loader:
        """Batches of a split, prepared as its kind of data is: normalized, cut to size.

        Args:
            split: A split of the dataset.
            config: Gives seed, precision, workers and how epochs are cut into batches.
            batch_size: Samples per batch of this process.
            **options: Further options of `Loader`, such as `views`, `subset` or `device`.
        """
        return Loader(
            split,
            batch_size,
            **self.modality.preparation(split.inputs),
            batches=config.batches,
            seed=config.seed,
            dtype=torch.float64 if config.precision == "64-true" else torch.float32,
            workers=config.workers,
            **options,
        )


def reader_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the reader: `data_options`, and the column of a table that holds the labels, where it is named.

    Args:
        config: The options of a run as plain values.
    """
    named = {"label_column": config.get("label_column")} if _names_column_of_table(config) else {}
    return {**named, **(config.get("data_options") or {})}


def _names_column_of_table(config: Mapping[str, Any]) -> bool:
    table = str(config.get("data")).lower().endswith(TABLE_SUFFIXES)
    return table and config.get("label_column") is not None and config.get("label_file") is None


def task_of(folder: Path, dataset: DataSet | None = None) -> Task:
    """The task of a run folder. Its model and optimizer are not built, so they may be from anywhere.

    Nothing is downloaded because the folder says so.

    Args:
        folder: The run folder.
        dataset: The data, if the run was given it as a Python object and its folder has no copy.
    """
    ours = {"model": "auto", "method": "ce", "optimizer": "sgd", "base": "sgd", "download": False}
    none: dict[str, Any] = {f"{name}_options": {} for name in ("model", "method", "optimizer")}
    config = RunConfig.from_yaml(folder / layout.CONFIG, **ours, **none)
    if dataset is None and config.data == IN_MEMORY:
        dataset = load_dataset(folder / layout.DATA)
    return load_task(config, dataset)


def load_task(config: RunConfig, dataset: DataSet | None = None) -> Task:
    """Read the data, put the noisy labels in place, and hold out the validation samples.

    Args:
        config: Names the data, the noise and the samples held out.
        dataset: The data, where it is in memory; noise and validation still follow the configuration.

    Raises:
        UsageError: The data has fewer than two classes, or an option does not fit it.
    """
    if dataset is None and config.data == IN_MEMORY:
        raise bad_value("data", config.data, "the dataset itself, because the run was given it as a Python object")
    if dataset is None:
        dataset = data.load(config.data, config.data_root, download=config.download, **reader_options(config.to_dict()))
    if dataset.num_classes < 2:
        raise bad_value("data", config.data, f"data of at least two classes, but this has only {list(dataset.classes)}")
    dataset = _tokenized(config, dataset)
    damaged: list[BadImage] = []
    if config.skip_damaged:
        dataset, damaged = without_damaged(dataset, config.workers)
    record = _noisy_labels(config, dataset)
    if record is not None:
        dataset = dataclasses.replace(dataset, train=dataset.train.with_labels(record.noisy, record.clean))
    every = np.arange(len(dataset.train))
    if config.fold is not None:
        part, parts = parse_fold(config.fold)
        out = stratified_folds(dataset.train.labels, parts, FOLD_SEED) == part - 1
        kept, held = every[~out], every[out]
        if config.uses_validation:  # the fold itself must not influence training
            inside, watched = stratified(dataset.train.labels[kept], config.val_share or 0.1, seed=0)
            kept, held = kept[inside], kept[watched]
        return Task(dataclasses.replace(dataset, val=None), kept, held, record, damaged=damaged)
    if dataset.val is not None or config.val_share == 0:
        return Task(dataset, every, None, record, damaged=damaged)
    # by the observed labels, and the same for every seed: runs that are compared train on the same samples
    kept, held = stratified(dataset.train.labels, config.val_share, seed=0)
    if len(held) == 0:
        fewest = int(0.5 / config.val_share) + 1
        expected = f"0, or more data: this share holds out a sample of classes with {fewest:,} or more, and none has"
        raise bad_value("val_share", config.val_share, expected)
    return Task(dataset, kept, held, record, damaged=damaged)


def _tokenized(config: RunConfig, dataset: DataSet) -> DataSet:
    """Texts with the tokenizer of the transformer that reads them, and the length that the configuration asks for."""
    is_text = isinstance(dataset.train.inputs, TextList)
    transformer = config.model.startswith(PREFIX)
    if transformer and not is_text:
        raise bad_value("model", config.model, f"a model for {modality_of(dataset).name}; transformers reads texts")
    if not is_text or not (transformer or config.max_length):
        if config.max_length is not None and dataset.encoding is None:
            raise bad_value("max_length", config.max_length, f"null, because {dataset.name} contains no texts")
        return dataset
    tokenizer, longest = (None, config.max_length or 0)
    if transformer:
        name = config.model.removeprefix(PREFIX)
        positions = read_json(model_folder(name) / "config.json").get("max_position_embeddings")
        tokenizer = Pretrained(name, download=False)
        longest = min(tokenizer.longest, positions if isinstance(positions, int) else tokenizer.longest)
    splits: dict[str, Any] = {}
    for name, split in dataset.splits.items():
        texts = split.inputs
        assert isinstance(texts, TextList)
        length = min(config.max_length or texts.length, longest)
        changed = TextList(texts.texts, tokenizer or texts.tokenizer, length, texts.column)
        splits[name] = dataclasses.replace(split, inputs=changed)
    return dataclasses.replace(dataset, **splits)


def without_damaged(dataset: DataSet, workers: int = 0) -> tuple[DataSet, list[BadImage]]:
    """The dataset without the image files that cannot be read, and the list of those; it decodes all of them.

    Args:
        dataset: The data; splits in memory are not checked.
        workers: Processes that decode, at least one.
    """
    bad: list[BadImage] = []
    splits: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        split = getattr(dataset, name)
        if split is not None and not split.in_memory:
            splits[name], found = data.check_images(split, workers=max(1, workers), skip=True)
            bad += found
    return dataclasses.replace(dataset, **splits), bad


def view_names(config: RunConfig, wanted: Sequence[str], kind: Modality) -> list[str]:
    """The loader's views for those a method wants, or a sentence on why this kind of data does not have them.

    "train" is the run's own augmentation. "auto" and "auto:simclr" leave it to the kind of data: images have the
    strong view, or the one that is named, where the run augments at all.

    Args:
        config: The configuration; with "train" or "auto", its augmentation must have a concrete value.
        wanted: Names of views, as in `Method.views`.
        kind: The kind of data.

    Returns:
        One name for each.

    Raises:
        UsageError: The kind of data does not have a view.
    """
    views = []
    for view in wanted:
        asked, _, named = view.partition(":")
        if view == "train":
            views.append(kind.augmentations[config.augment])
        elif asked == "auto":
            views.append(kind.second_view(config.augment, named or "strong"))
        elif kind.has_view(view):
            views.append(view)
        else:
            wanted_for = f"a method for {kind.name}; this one needs the view {view!r} of images"
            raise bad_value("method", config.method, wanted_for)
    return views


def check_method(method: Method, task: Task) -> None:
    """Refuse a method that compares views of images, or averages inputs, where the data does not allow it.

    Args:
        method: The learning method.
        task: The data.

    Raises:
        UsageError: The method does not fit the data.
    """
    held = f"{task.dataset.name} contains {task.modality.name}"
    if method.images_only and not task.modality.has_view("strong"):
        raise bad_value(
            "method", method.name, f"a method for {task.modality.name}; this one compares views of images, and {held}"
        )
    if method.mixes_inputs and not task.modality.mixable:
        raise bad_value("method", method.name, f"a method that does not average inputs, because {held}")


def _noisy_labels(config: RunConfig, dataset: DataSet) -> NoisyLabels | None:
    split = dataset.train
    column = None if _names_column_of_table(config.to_dict()) else config.label_column
    wanted = config.noise or config.label_file or column
    if wanted and split.clean is not None and not np.array_equal(split.clean, split.labels):
        name = "noise" if config.noise else "label_file" if config.label_file else "label_column"
        raise bad_value(name, wanted, f"null, because {dataset.name} already has noisy labels")
    if config.noise is not None:
        return _corrupted(config, dataset)
    if config.label_file is not None or column is not None:
        return _from_file(Path(config.label_file or config.data), column, dataset)
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
            raise bad_value(
                "noise", config.noise, "a recipe that does not use the inputs, because they are not an array in memory"
            )
        options["inputs"] = dataset.train.inputs
    if "rate" in required and config.rate is None:
        raise bad_value("rate", None, f"a rate in [0, 1] for noise={config.noise!r}")
    missing = [name for name in required if name not in ("labels", "rate", *options)]
    if missing:
        raise bad_value(
            "noise_options",
            config.noise_options,
            f"options with {', '.join(missing)}, which noise={config.noise!r} needs",
        )
    seed = config.seed if config.noise_seed is None else config.noise_seed
    known = {"num_classes": dataset.num_classes, "seed": seed}
    refuse_unknown(config.noise, options, set(parameters) - {"labels", "rate", *known})
    options = coerce_options(noise.GENERATORS[config.noise], options)
    return noise.make(config.noise, dataset.train.labels, config.rate, **known, **options)


def _from_file(path: Path, column: str | None, dataset: DataSet) -> NoisyLabels:
    """Labels saved by `NoisyLabels.save`, an array of an `.npz`, or a published file."""
    true = dataset.train.labels
    if path.suffix in (".npz", ".json") and path.with_suffix(".npz").is_file() and path.with_suffix(".json").is_file():
        record = NoisyLabels.load(path)
    elif path.suffix == ".npz":
        record = NoisyLabels(true, _array(path, column, len(true)), dataset.num_classes, _recipe(path, column))
    elif (cleaned := _cleaned(path, dataset)) is not None:
        record = NoisyLabels(true, cleaned, dataset.num_classes, _recipe(path, "label"))
    else:
        record = noise.from_file(path, label=column, clean=true, num_classes=dataset.num_classes)
    if not np.array_equal(record.clean, true):
        raise bad_value(
            "label_file", str(path), f"a file whose clean labels are those of {dataset.name}, in that order"
        )
    return record


def _cleaned(path: Path, dataset: DataSet) -> Labels | None:
    """The labels of a table that `ncsam clean` wrote for data that it tells by the index; `None` for other files."""
    if path.suffix != ".csv" or not path.is_file():
        return None
    table = read_columns(path)
    if not {"index", *CLEANED} <= table.keys():
        return None
    number = {name: i for i, name in enumerate(dataset.classes)}
    unknown = sorted(set(table["label"]) - number.keys())
    if unknown or table["index"] != [str(i) for i in range(len(dataset.train))]:
        wanted = f"labels of the {len(dataset.train):,} training samples of {dataset.name}, in their order"
        raise bad_value("label_file", str(path), wanted + (f"; unknown classes: {unknown[:3]}" if unknown else ""))
    return np.array([number[name] for name in table["label"]], dtype=np.int64)


def _recipe(path: Path, column: str | None) -> dict[str, Any]:
    return {"name": "from_file", "file": path.name, "label": column}


def _array(path: Path, column: str | None, count: int) -> Labels:
    if not path.is_file():
        raise FileNotFoundError(f"label_file={str(path)!r}: there is no such file")
    with open_arrays(path) as file:
        if column is None or column not in file.files:
            raise unknown_name(f"array of {path.name} (label_column)", column, file.files)
        labels = np.asarray(file[column])
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise bad_value("label_column", column, f"an array of {count:,} integers, not {labels.dtype} {labels.shape}")
    return labels.astype(np.int64)
