"""The label issues of a run: from its training statistics, its out-of-fold predictions, or another model's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from ncsam._errors import bad_value, unknown_name
from ncsam._files import read_json
from ncsam.data.modalities.text import TextList
from ncsam.data.types import DataSet, Split
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.evaluate import Predictions
from ncsam.engine.given_model import Model
from ncsam.engine.learner import matches_structure
from ncsam.engine.predictor import load_predictor
from ncsam.engine.task import Task, task_of
from ncsam.issues.find import TrainingStatistics, issues_of_training, judge
from ncsam.issues.posterior import noise_rate_of
from ncsam.issues.table import LabelIssues
from ncsam.runs import layout
from ncsam.runs.reader import load_oof, read_verified_labels
from ncsam.runs.writer import OutOfFold, save_oof, write_json, write_label_issues


class SampleTable:
    """Named columns of `samples` rows each, on one device.

    Rows may be changed through `write` and `add`, by one rank alone, or in place through `table[name]`, by all ranks
    alike.

    Args:
        samples: Number of rows.
        device: Where the columns are stored.
    """

    def __init__(self, samples: int, device: torch.device | str = "cpu") -> None:
        self.samples = samples
        self.device = torch.device(device)
        self._columns: dict[str, Tensor] = {}
        self._written: dict[str, Tensor] = {}  # rows this rank wrote since the last synchronize
        self._added: dict[str, Tensor] = {}  # what this rank added since then

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def column(
        self, name: str, shape: Sequence[int] = (), dtype: torch.dtype = torch.float32, fill: float = 0.0
    ) -> Tensor:
        """Make a column filled with `fill`, unless it is there already; the tensor (samples, *shape).

        Args:
            name: Name of the column.
            shape: Shape of one row; empty for a number per sample.
            dtype: Type of the values.
            fill: Initial value.

        Raises:
            UsageError: There is a column of that name with another shape or type.
        """
        if name not in self._columns:
            self._columns[name] = torch.full((self.samples, *shape), fill, dtype=dtype, device=self.device)
        here = self._columns[name]
        if here.shape[1:] != torch.Size(shape) or here.dtype != dtype:
            raise bad_value("column", name, f"a column of the same form as the existing one, {_form(here)}")
        return here

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._columns:
            raise unknown_name("column", name, self._columns)
        return self._columns[name]

    def write(self, name: str, index: Tensor, values: Tensor) -> None:
        """Set the rows `index`. Where ranks write the same row, the highest rank's value stays.

        Args:
            name: Name of an existing column.
            index: Rows, each at most once.
            values: One for each of the rows; converted to the type of the column.
        """
        column = self[name]
        column[index] = values.to(column)
        if _distributed():
            self._written.setdefault(name, self._rows(torch.bool))[index] = True

    def add(self, name: str, index: Tensor, values: Tensor | float) -> None:
        """Add to the rows `index` (each at most once); the ranks' additions are summed.

        Args:
            name: Name of an existing column.
            index: Rows, each at most once.
            values: One number for all rows, or one value for each.
        """
        column = self[name]
        column[index] += values
        if _distributed():
            self._added.setdefault(name, torch.zeros_like(column))[index] += values

    def synchronize(self) -> None:
        """Make the table the same on all ranks. Every rank must call it."""
        if not _distributed():
            return
        for name, column in self._columns.items():
            self._share_additions(name, column)
            self._share_writes(name, column)

    def _share_additions(self, name: str, column: Tensor) -> None:
        if not _anywhere(name in self._added, self.device):
            return
        own = self._added.pop(name, torch.zeros_like(column))
        every = own.clone()
        dist.all_reduce(every)
        column += every - own

    def _share_writes(self, name: str, column: Tensor) -> None:
        if not _anywhere(name in self._written, self.device):
            return
        rows = self._written.pop(name, self._rows(torch.bool)).nonzero().flatten()
        for index, values in zip(*_gathered((rows, column[rows])), strict=True):
            column[index] = values

    def _rows(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros(self.samples, dtype=dtype, device=self.device)

    def state_dict(self) -> dict[str, Any]:
        """The columns by name; `synchronize` first."""
        return dict(self._columns)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave, for as many samples.

        Args:
            state: Columns by name.

        Raises:
            UsageError: The number of samples or the form of a column differs; columns before that one are loaded.
        """
        for name, values in state.items():
            if len(values) != self.samples:
                raise bad_value("samples", self.samples, f"{len(values)}, as in the saved table")
            if name in self._columns and not matches_structure(values, self._columns[name]):
                raise bad_value(
                    "column", name, f"a column of the same form as the existing one, {_form(self._columns[name])}"
                )
            self._columns[name] = values.to(self.device)
        self._written.clear()
        self._added.clear()


def _form(column: Tensor) -> str:
    return f"{column.dtype} of shape {tuple(column.shape)}"


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _anywhere(here: bool, device: torch.device) -> bool:
    flag = torch.tensor(int(here), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def _gathered(parts: tuple[Tensor, ...]) -> list[list[Tensor]]:
    """Each of the tensors from every rank, in rank order; their lengths may differ."""
    count = torch.tensor([len(parts[0])], device=parts[0].device)
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    longest = max(int(c) for c in counts)
    result = []
    for part in parts:
        padded = part.new_zeros((longest, *part.shape[1:]))
        padded[: len(part)] = part
        every = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(every, padded)
        result.append([values[: int(c)] for values, c in zip(every, counts, strict=True)])
    return result


Floats = npt.NDArray[np.float64]
_STEEPNESS = 4.0  # from where a margin counts almost fully
_MOST_NUMBERS = 20_000_000  # of samples times classes; beyond, the last prediction suggests the label


class Dynamics:
    """Statistics of every sample of the training split over the epochs, in the run's sample table.

    Args:
        table: Gets the columns, one row per training sample.
        num_classes: Number of classes; class probabilities are kept for up to 20 million numbers.
    """

    def __init__(self, table: SampleTable, num_classes: int) -> None:
        self.table = table
        self.keeps_probabilities = table.samples * num_classes <= _MOST_NUMBERS
        table.column("evaluations", dtype=torch.int64)
        table.column("margin_sum", dtype=torch.float64)
        table.column("lead_sum", dtype=torch.float64)
        table.column("loss_sum", dtype=torch.float64)
        table.column("was_right", dtype=torch.bool)
        table.column("last_predicted", dtype=torch.int64)
        table.column("times_forgotten", dtype=torch.int64)
        table.column("first_learned", dtype=torch.int64)  # epoch; 0 for never
        table.column("times_flipped", dtype=torch.int64)
        if self.keeps_probabilities:
            table.column("probability_sum", (num_classes,))

    def update(self, predictions: Predictions, labels: npt.NDArray[np.int64], epoch: int) -> None:
        """Take the predictions after an epoch; the same on all ranks.

        Args:
            predictions: Of the whole training split; with probabilities where `keeps_probabilities`.
            labels: The given labels of the training split.
            epoch: The finished epoch, from 1.
        """
        table = self.table

        def here(values: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(values).to(table.device)

        right = here(predictions.predicted == labels)
        table["times_forgotten"].add_(table["was_right"] & ~right)
        table["first_learned"][right & (table["first_learned"] == 0)] = epoch
        table["was_right"].copy_(right)
        table["last_predicted"].copy_(here(predictions.predicted))
        table["evaluations"].add_(1)
        table["margin_sum"].add_(here(predictions.margin))
        table["lead_sum"].add_(here(np.tanh(_STEEPNESS * predictions.margin.astype(np.float64))))
        table["loss_sum"].add_(here(predictions.loss))
        if predictions.probabilities is not None:
            table["probability_sum"].add_(here(predictions.probabilities))

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """A column of the table as an array on the CPU.

        Args:
            name: Name of the column, such as "times_forgotten".
        """
        values: npt.NDArray[Any] = self.table[name].cpu().numpy()
        return values

    def mean(self, name: str) -> Floats:
        """Mean over the evaluations of a summed column.

        Args:
            name: "margin", "lead" or "loss".
        """
        means: Floats = self.numbers(f"{name}_sum") / np.maximum(1, self.numbers("evaluations"))
        return means

    def label_quality(self) -> Floats:
        """(1 + mean over epochs of tanh(4 margin)) / 2, in [0, 1]; low where the label is likely wrong.

        Between how often another class led the label and how far it led: of the statistics tried, the one that is
        never far from the best, whether the model ends up memorizing wrong labels or not (docs/engine.md).
        """
        return (1.0 + self.mean("lead")) / 2.0

    def predicted(self) -> npt.NDArray[np.int64]:
        """The class with the largest mean probability over training; it may be the given label."""
        if self.keeps_probabilities:
            classes: npt.NDArray[np.int64] = self.numbers("probability_sum").argmax(axis=1)
            return classes
        return self.numbers("last_predicted")

    def statistics(self) -> TrainingStatistics:
        """All of it as `ncsam.issues` takes it."""
        probabilities = None
        if self.keeps_probabilities:
            sums = self.numbers("probability_sum").astype(np.float64)
            probabilities = sums / sums.sum(axis=1, keepdims=True)
        diagnostics: dict[str, npt.NDArray[Any]] = {name: self.mean(name) for name in ("loss", "margin")}
        diagnostics |= {name: self.numbers(name) for name in ("times_flipped", "times_forgotten", "first_learned")}
        return TrainingStatistics(
            self.label_quality(), self.predicted(), probabilities, self.numbers("was_right"), diagnostics
        )


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
    """What a finished run recorded about each of its samples.

    Args:
        folder: The run folder.
        task: The run's data.

    Raises:
        UsageError: The run is not finished, or the labels have changed since.
    """
    state = load_checkpoint(layout.checkpoints(folder))
    if state is None or not layout.is_finished(folder) or state["labels_sha256"] != task.labels_sha256:
        raise bad_value("run", str(folder), "a finished run whose data still has the labels it was trained on")
    table = SampleTable(len(task.dataset.train))
    table.load_state_dict(state["samples"])
    return table


@dataclass(frozen=True)
class TrainingPredictions:
    """Class probabilities of the samples of a training split.

    Attributes:
        probabilities: float32 (samples, classes) in the order of the training split.
        out_of_fold: Whether each row is by a model that never saw the label.
    """

    probabilities: npt.NDArray[np.float32]
    out_of_fold: bool


def training_predictions(
    folder: str | os.PathLike[str],
    *,
    dataset: DataSet | None = None,
    model: str | Model | None = None,
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
    """Judge a run's labels by the out-of-sample predictions of another model, and rewrite its label issues.

    Args:
        folder: The folder of a finished run.
        probabilities: Floats (samples, classes) in the order of the training split, by models that never saw the label.
        dataset: The data, where it is in memory.

    Raises:
        UsageError: The rows are no probabilities of this data, or the run cannot be judged; nothing is written then.
    """
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
