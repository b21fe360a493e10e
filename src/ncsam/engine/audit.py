"""The audit of a run's data: what each check needs is read, computed or named as missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam import classifiers
from ncsam._errors import bad_value
from ncsam.auditing import classes as by_class
from ncsam.auditing.columns import find_columns
from ncsam.auditing.duplicates import find_duplicates, find_leaks, typical_distance
from ncsam.auditing.findings import CHECKS, Finding, finding, known_checks
from ncsam.auditing.images import Measured, find_images, measure
from ncsam.auditing.neighbors import Neighbors, nearest
from ncsam.auditing.samples import find_label_issues, find_outliers
from ncsam.auditing.shift import find_label_shift, find_shift, find_shifted
from ncsam.auditing.texts import find_texts
from ncsam.data.images.exif import exif_transpose, open_image
from ncsam.data.modalities.images import Images
from ncsam.data.modalities.rows import TableRows
from ncsam.data.modalities.text import TextList
from ncsam.data.tables.annotators import join, read_annotations
from ncsam.data.tables.columns import TABLE_SUFFIXES
from ncsam.data.types import DataSet, Inputs, Split
from ncsam.embed import choose_encoder
from ncsam.embed.cache import text_hash
from ncsam.embed.features import sample_hashes
from ncsam.engine.backbone import NONE, named_encoder, on_features
from ncsam.engine.config import RunConfig
from ncsam.engine.fitted_run import feature_rows
from ncsam.engine.resolve import recommended_model
from ncsam.engine.task import Task, load_task, task_of
from ncsam.issues.table import LabelIssues
from ncsam.runs.reader import RunFolder, load_oof

Rows = npt.NDArray[np.float32]
_NEIGHBORS = 10
_MOST_FITTED = 50_000  # samples to which a classifier is fitted here
_MOST_BYTES = 2**30  # of images that are compared pixel by pixel
_DRAFT = 512  # pixels of the longer side to which JPEG files are reduced while they are decoded


def audit_folder(
    folder: Path,
    *,
    dataset: DataSet | None = None,
    checks: Sequence[str] | None = None,
    features: npt.ArrayLike | None = None,
    pred_probs: npt.ArrayLike | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[Finding], list[str]]:
    """The findings about the data of a finished run, and notes on what could not be checked.

    Args:
        folder: the run folder, whose label issues are among the findings.
        dataset: the data, where it is in memory.
        checks: names of `CHECKS`; all by default.
        features: embeddings of the training samples, in place of those of a pretrained model.
        pred_probs: out-of-sample class probabilities of the training samples, in place of the run's.
        say: told what is being done.
    """
    wanted = set(known_checks(checks))
    run = RunFolder.read(folder)
    task = task_of(folder, dataset)
    gathered = _Gathered(run, task, features, pred_probs, say)
    findings = [each for part in gathered.all(wanted) for each in part if each.check in wanted]
    order = {name: place for place, name in enumerate(CHECKS)}
    findings.sort(key=lambda each: order[each.check])  # stable: the worst of each check stay first
    split = task.dataset.train
    named = split.has_paths
    placed = [
        dataclasses.replace(each, name=split.path(each.index) or "") if named and each.sample is not None else each
        for each in findings
    ]
    return placed, gathered.notes


def recommended(config: RunConfig, dataset: DataSet | None = None) -> RunConfig:
    """The configuration that fits the recommended classifier, on embeddings of images and texts where possible.

    Texts and large images without a pretrained model leave the choice to training.

    Args:
        config: What the user asked for; only model and backbone are changed.
        dataset: The data, where it is in memory; otherwise it is read as `config` says.
    """
    task = load_task(config, dataset)
    if task.modality.name in ("images", "texts") and task.dataset.encoding is None:
        name = choose_encoder(task.dataset, "cpu")[1].name
        if name is not None:
            return config.replace(model="smooth", backbone=name)
        return config.replace(model="smooth") if task.modality.name == "images" and _small(task.dataset) else config
    return config.replace(model=recommended_model(task)) if task.modality.name == "features" else config


class _Gathered:
    """What the checks need, computed once."""

    def __init__(self, run: RunFolder, task: Task, features: Any, pred_probs: Any, say: Callable[[str], None]) -> None:
        self.run, self.task, self.say = run, task, say
        self.notes: list[str] = []
        self.original = task.original
        self.labels = task.dataset.train.labels
        self.classes = task.dataset.classes
        self.given_features = None if features is None else _rows("features", features, len(self.labels))
        self.given_probabilities = None if pred_probs is None else _rows("pred_probs", pred_probs, len(self.labels))

    def all(self, wanted: set[str]) -> Iterator[list[Finding]]:
        issues = self.run.label_issues()
        yield find_label_issues(issues)
        inputs = self.original.train.inputs
        if wanted & {"truncated_image", "dark_image", "blurred_image", "odd_size"} and Images.holds(inputs):
            self.say("images: darkness, blur, size")
            yield [
                finding("truncated_image", 1.0, name=str(bad.path or bad.index), evidence=f"left out: {bad.reason}")
                for bad in self.task.damaged
            ]
            yield find_images(_measured(inputs))
        if wanted & {"empty_text", "bad_encoding", "other_language"} and isinstance(inputs, TextList):
            self.say("texts: empty, encoding, language")
            yield find_texts(inputs.texts)
        tables = {name: _table(self.original, split) for name, split in self.splits.items()}
        if tables["train"]:
            self.say("columns: IDs, leaks, shift")
            yield find_columns(tables["train"], self.labels)
            yield find_shifted(tables["train"], tables.get("test") or {})
        yield by_class.find_rare(self.labels, self.classes)
        yield from self._annotators()
        yield from self._by_features(wanted, issues)

    @property
    def splits(self) -> dict[str, Split]:
        return {name: split for name, split in self.original.splits.items() if name in ("train", "val", "test")}

    def _by_features(self, wanted: set[str], issues: LabelIssues) -> Iterator[list[Finding]]:
        """What needs embeddings, neighbors or predictions."""
        self.say("duplicates")
        keys = {name: content_keys(split.inputs) for name, split in self.splits.items()}
        features = self._features()
        own = features.get("train")
        near: Neighbors | None = None
        if own is not None:
            self.say(f"nearest neighbors of {len(own):,} samples")
            near = nearest(own, _NEIGHBORS)
            yield find_outliers(near)
        yield find_duplicates(self.labels, keys["train"], near, self.classes)
        others = {name: found for name, found in keys.items() if name != "train"}
        typical = None if near is None or not near.distance.size else typical_distance(near.distance)
        yield find_leaks(keys["train"], others, own, features, typical)
        probabilities = self._probabilities(own)
        if probabilities is not None:
            yield by_class.find_overlapping(self.labels, probabilities, self.classes)
        if own is not None and "heterogeneous_class" in wanted:
            flagged = issues.numbers("index")[issues.numbers("is_label_issue")]
            yield by_class.find_heterogeneous(self.labels, own, self.classes, flagged)
        test = self.original.test
        if test is not None:
            yield find_label_shift(self.labels, test.labels, self.classes)
            if own is not None and "test" in features:
                yield find_shift(own, features["test"])

    # --- what they need

    def _features(self) -> dict[str, Rows]:
        """Embeddings by split; none where there is no pretrained model for this data."""
        if self.given_features is not None:
            return {"train": self.given_features}
        task, config = self.task, RunConfig(skip_damaged=False)
        kind = task.modality
        if kind.name in ("images", "texts"):
            named = str(self.run.config.get("backbone") or NONE)
            if named in (NONE, "auto") or ":" in named:
                encoder, choice = choose_encoder(task.dataset, "cpu")
                reason = choice.reason
            else:
                encoder, reason = named_encoder(named, task.dataset, "cpu"), f"backbone {named}"
            if encoder is not None:
                task = on_features(task, encoder, reason, 0, self.say)
            elif kind.name == "texts" or not _small(task.dataset):
                self.notes.append(f"No near duplicates, outliers or heterogeneous classes: {reason}.")
                return {}
        elif kind.name != "features":
            self.notes.append(f"No near duplicates, outliers or heterogeneous classes: the data is {kind.name}.")
            return {}
        found = {name: split for name, split in task.dataset.splits.items() if name in ("train", "val", "test")}
        return {name: feature_rows(config, task, split).numpy() for name, split in found.items()}

    def _probabilities(self, features: Rows | None) -> Rows | None:
        """Out-of-fold class probabilities: given, the run's, or those of the recommended classifier."""
        if self.given_probabilities is not None:
            return self.given_probabilities
        known = load_oof(self.run.folder)
        if known is not None and known.belong_to(self.labels):
            return known.probabilities
        if features is None or not 5 < len(self.labels) <= _MOST_FITTED:
            self.notes.append(
                "No overlapping classes: the run has no out-of-fold predictions (ncsam issues --folds 5)."
            )
            return None
        self.say("out-of-fold predictions")
        x, y = torch.from_numpy(features), torch.from_numpy(self.labels)
        fitted = classifiers.cross_fit(recommended_model(self.task), x, y, len(self.classes))
        return fitted.probabilities.astype(np.float32)

    def _annotators(self) -> Iterator[list[Finding]]:
        people = self.task.dataset.annotators
        if not people:
            return
        yield by_class.find_annotators([p.name for p in people], [p.accuracy for p in people], len(self.classes))
        path = Path(str(self.run.config.get("data")))
        if path.suffix.lower() not in TABLE_SUFFIXES or not path.is_file():
            return
        given = read_annotations(path)
        if len(given.items) != len(self.labels) or tuple(given.classes) != tuple(self.classes):
            self.notes.append("No disagreement by sample: the answers are not those of the training split alone.")
            return
        yield by_class.find_disagreement(given.answers, self.classes)
        joined = join(given.answers, len(self.classes))
        bad = by_class.find_annotators(given.annotators, joined.accuracy, len(self.classes))
        yield by_class.without_annotators(given.answers, given.annotators, bad, self.labels, self.classes)


def _rows(name: str, given: npt.ArrayLike, count: int) -> Rows:
    found = np.asarray(given, dtype=np.float32)
    if found.ndim != 2 or len(found) != count or not np.isfinite(found).all():
        raise bad_value(
            name, f"{found.dtype} {found.shape}", f"a finite row for each of the {count:,} training samples"
        )
    return found


def _small(dataset: DataSet) -> bool:
    """Whether images are small enough to be compared pixel by pixel."""
    height, width = dataset.size or (0, 0)
    return len(dataset.train) * height * width * 3 * 4 <= _MOST_BYTES


def content_keys(inputs: Inputs) -> list[str]:
    """A text for each sample that is the same for samples of the same content.

    Args:
        inputs: The inputs of a split.
    """
    if isinstance(inputs, TableRows):
        return [text_hash(repr(list(row.values()))) for row in inputs]
    return sample_hashes(inputs)


def _table(dataset: DataSet, split: Split) -> Mapping[str, Sequence[Any]]:
    """The named columns of a split; none for other data."""
    if isinstance(split.inputs, TableRows):
        return split.inputs.table()
    if isinstance(split.inputs, np.ndarray) and dataset.columns:
        return {name: split.inputs[:, i].tolist() for i, name in enumerate(dataset.columns)}
    return {}


def _measured(inputs: Inputs) -> Iterator[Measured]:
    for i in range(len(inputs)):
        item: Any = inputs[i]
        if isinstance(item, np.ndarray):
            yield measure(item)
            continue
        try:
            with open_image(item) as file:
                size = (file.height, file.width)
                file.draft("RGB", (_DRAFT, _DRAFT))
                pixels = np.asarray(exif_transpose(file, "RGB"))
            yield measure(pixels, size if size[0] * size[1] else None)
        except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more
            yield Measured(error=str(error) or type(error).__name__)
