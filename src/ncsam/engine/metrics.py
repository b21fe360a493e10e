"""What is measured after an epoch, and the summary of a run. Accuracies and shares are percentages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam.data.types import UNKNOWN, Labels
from ncsam.issues.posterior import noise_rate_of
from ncsam.noise import estimate_noise

if TYPE_CHECKING:
    from ncsam.engine.evaluate import Evaluator

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
MOST_NUMBERS = 10_000_000  # samples times classes for which an AUC is computed after every epoch
_FEWEST_SAMPLES = 20


@dataclass(frozen=True)
class ByClass:
    """Matrices (classes, classes), each `None` where there are no such samples.

    Attributes:
        test: Counts of true class against predicted class.
        held_out: Counts of given label against predicted class, for samples that the model was not trained on.
        transition: Estimated P(given label | true class); rows may be NaN.
        noise: The estimated noise rate, see `noise_rate_of`.
    """

    test: Counts | None
    held_out: Counts | None
    transition: npt.NDArray[np.float64] | None
    noise: dict[str, Any] | None

    def arrays(self) -> dict[str, npt.NDArray[Any] | None]:
        """What `by_class.npz` holds, by name."""
        return {"test": self.test, "held_out": self.held_out, "transition": self.transition}


def measure_by_class(evaluator: Evaluator, networks: Sequence[nn.Module]) -> ByClass:
    """Evaluate once more, on the test split and on the held-out samples. Every rank must call it.

    Args:
        evaluator: Predicts the splits.
        networks: The method's models.
    """
    classes = evaluator.task.dataset.num_classes
    test = held_out = transition = noise = None
    if evaluator.test is not None:
        test = confusion(evaluator.test.split.labels, evaluator.predict(networks, evaluator.test).predicted, classes)
    if evaluator.val is not None:
        labels, probabilities = evaluator.out_of_sample(networks)
        held_out = confusion(labels, probabilities.argmax(axis=1), classes)
        known = labels != UNKNOWN
        if known.sum() >= _FEWEST_SAMPLES:
            noise = noise_rate_of(labels[known], probabilities[known])
            transition = estimate_noise(labels[known], probabilities[known]).transition
    return ByClass(test, held_out, transition, noise)


def confusion(labels: Labels, predicted: Labels, classes: int) -> Counts:
    """How many samples of each label (rows) were predicted as each class (columns).

    Args:
        labels: Classes (n,); samples whose label is not known do not count.
        predicted: Classes (n,).
        classes: Number of classes.
    """
    known = labels != UNKNOWN
    counts = np.bincount(labels[known] * classes + predicted[known], minlength=classes * classes)
    return counts.astype(np.int64).reshape(classes, classes)


def balanced_accuracy(predicted: Labels, labels: Labels) -> float:
    """Mean over the classes in `labels` of the share of their samples that is predicted as such (recall).

    Args:
        predicted: Classes (n,).
        labels: Classes (n,), all known.

    Returns:
        A number in [0, 1].
    """
    hits, given, _ = _counts(predicted, labels)
    return float((hits[given > 0] / given[given > 0]).mean())


def macro_f1(predicted: Labels, labels: Labels) -> float:
    """Mean over the classes of 2 TP / (2 TP + FP + FN); classes that are neither labeled nor predicted do not count.

    Args:
        predicted: Classes (n,).
        labels: Classes (n,), all known.

    Returns:
        A number in [0, 1].
    """
    hits, given, found = _counts(predicted, labels)
    there = given + found > 0
    return float((2 * hits[there] / (given + found)[there]).mean())


def macro_auc(probabilities: npt.NDArray[np.floating[Any]], labels: Labels) -> float | None:
    """Mean over the classes of the area under the ROC curve of one class against the rest; `None` for one class only.

    With two classes both areas are the same.

    Args:
        probabilities: Scores (n, K), a column per class.
        labels: Classes (n,), all known; classes without samples do not count.

    Returns:
        A number in [0, 1].
    """
    areas = []
    for c in np.unique(labels):
        positive = labels == c
        count, rest = int(positive.sum()), int((~positive).sum())
        if rest:
            ranked = _ranks(probabilities[:, c])
            areas.append((ranked[positive].sum() - count * (count + 1) / 2) / (count * rest))
    return float(np.mean(areas)) if areas else None


def class_metrics(
    split: str, predicted: Labels, labels: Labels, probabilities: npt.NDArray[np.floating[Any]] | None
) -> dict[str, float | None]:
    """Balanced accuracy, mean F1 and mean AUC in percent, as a record of metrics names them.

    Args:
        split: "test" or "val", before the names.
        predicted: classes (n,).
        labels: (n,); samples whose label is not known do not count.
        probabilities: (n, K); without, and for more than ten million numbers, there is no AUC.
    """
    names = [f"{split}_{metric}" for metric in ("balanced_accuracy", "f1", "auc")]
    known = labels != UNKNOWN
    if not known.any():
        return dict.fromkeys(names)
    predicted, labels = predicted[known], labels[known]
    area = None
    if probabilities is not None and probabilities.size <= MOST_NUMBERS:
        area = macro_auc(probabilities[known], labels)
    values = (balanced_accuracy(predicted, labels), macro_f1(predicted, labels), area)
    return {name: None if value is None else 100 * value for name, value in zip(names, values, strict=True)}


def _counts(predicted: Labels, labels: Labels) -> tuple[Labels, Labels, Labels]:
    """Of every class: samples that are both, that are labeled so, and that are predicted so."""
    classes = int(max(predicted.max(), labels.max())) + 1
    hits, given, found = (
        np.bincount(each, minlength=classes) for each in (labels[predicted == labels], labels, predicted)
    )
    return hits, given, found


def _ranks(scores: npt.NDArray[np.floating[Any]]) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(sizes) - (sizes - 1) / 2)[inverse]
    return found


@dataclass(frozen=True)
class Metric:
    """A number that sums up a run: its meaning, the digits it is shown with, and which way is better, if any.

    Attributes:
        meaning: A phrase; `summarize` replaces "WHERE" by the samples that it was measured on.
        more_is_better: `None` if neither way is.
        digits: Decimal places in tables.
    """

    meaning: str
    more_is_better: bool | None = True
    digits: int = 2


#: What sums up a run, in the order of every table. WHERE is the accuracy that the run could measure.
SUMMARY = {
    "best": Metric("largest WHERE of any epoch, percent; chosen on the same samples, so it is optimistic"),
    "last": Metric("WHERE after the last epoch, percent"),
    "last5": Metric("mean WHERE of the last 5 epochs, percent"),
    "last10": Metric("mean WHERE of the last 10 epochs, percent"),
    "val_chosen": Metric("WHERE at the epoch with the best noisy validation accuracy, percent"),
    "test_balanced_accuracy": Metric("mean test recall of the classes after the last epoch, percent"),
    "test_f1": Metric("mean test F1 of the classes after the last epoch, percent"),
    "test_auc": Metric("mean test AUC, each class against the rest, after the last epoch, percent"),
    "memorized": Metric(
        "mislabeled training samples predicted as their wrong label after the last epoch, percent", False
    ),
    "label_issues_auroc": Metric("area under the ROC curve of 1 - label quality against truly wrong labels", digits=3),
    "seconds": Metric("wall-clock time of training", None, digits=1),
}
#: Choices between epochs, which say nothing of a model that is fitted at once.
OF_EPOCHS = ("best", "val_chosen")
#: Further numbers of a summary, which say what was trained on rather than how well.
_FACTS = {
    "noise_estimate": "estimated noise rate, as a fraction, with an interval; null if it cannot be determined",
    "warmup_noise": "what was estimated of held-out samples after warm-up, for flip_ratio only, as a fraction",
    "noise_rate": "realized share of wrong labels among the samples trained on, as a fraction",
}
#: What an evaluation measures, in percent, and `val_loss` in nats; `None` where the dataset does not allow it.
EVALUATED = (
    "test_accuracy",
    "train_accuracy_observed",
    "train_accuracy_clean",
    "memorized",
    "val_accuracy",
    "val_loss",
    "calibration_error",
    *(f"{split}_{metric}" for split in ("test", "val") for metric in ("balanced_accuracy", "f1", "auc")),
)
_OF_CLASSES = ("test_balanced_accuracy", "test_f1", "test_auc")
#: What the optimizer reports of a step, averaged over the steps of an epoch in which it was measured.
TELEMETRY = (
    "rho",
    "strength",
    "grad_norm",
    "noise_grad_norm",
    "cos_grad_noise",
    "compensation_ratio",
    "cos_sam",
    "perturbation_norm",
    "projected",
    "flipped",
    "flipped_mislabeled",
    "cos_clean",
    "cos_clean_sam",
)
_SHARES = ("projected", "flipped_mislabeled")
#: Fields that depend on the machine and differ between two otherwise equal runs.
TIME_FIELDS = ("seconds", "train_seconds", "samples_per_second")


def accuracy(predicted: Labels, labels: Labels) -> float | None:
    """Share of samples predicted as labeled, in percent; of those whose label is known.

    Args:
        predicted: Classes (n,).
        labels: Classes (n,); samples whose label is not known do not count.

    Returns:
        A percentage; `None` if no label is known.
    """
    known = labels != UNKNOWN
    return 100.0 * float(np.mean(predicted[known] == labels[known])) if known.any() else None


def memorized(predicted: Labels, observed: Labels, clean: Labels) -> float | None:
    """Share of the mislabeled samples that are predicted as their wrong label, in percent.

    `None` without any, and for predictions at chance: those that agree with the observed labels no better than always
    naming the commonest one, within two standard errors. They repeat wrong labels without having learned them.

    Args:
        predicted: Classes (n,) of the samples trained on.
        observed: Their given labels.
        clean: Their true labels.
    """
    wrong = observed != clean
    if not wrong.any():
        return None
    commonest = float(np.bincount(observed - observed.min()).max()) / len(observed)
    chance = commonest + 2 * (commonest * (1 - commonest) / len(observed)) ** 0.5
    if float(np.mean(predicted == observed)) <= chance:
        return None
    return 100.0 * float(np.mean(predicted[wrong] == observed[wrong]))


def calibration_error(confidence: npt.NDArray[np.floating[Any]], right: npt.NDArray[np.bool_], bins: int = 15) -> float:
    """Expected calibration error (Guo et al., 2017) in percent: sum over bins of |B|/N |accuracy(B) - confidence(B)|.

    The bins divide (0, 1] into equal widths, closed above.

    Args:
        confidence: Probability (n,) of the predicted class.
        right: Whether the predicted class is the label (n,).
        bins: Number of bins.
    """
    which = np.clip(np.ceil(confidence.astype(np.float64) * bins).astype(np.int64) - 1, 0, bins - 1)
    gaps = np.bincount(which, weights=right.astype(np.float64) - confidence.astype(np.float64), minlength=bins)
    return 100.0 * float(np.abs(gaps).sum()) / len(confidence)


class EpochSums:
    """What an epoch adds up as it goes: the loss, the optimizer's telemetry, the time. Part of the checkpoint.

    Args:
        device: Where losses are computed; they are summed there, in double precision where it has that.
    """

    def __init__(self, device: torch.device) -> None:
        # MPS has no double precision, so sums are kept on the CPU there
        self.loss = torch.zeros((), dtype=torch.float64, device="cpu" if device.type == "mps" else device)
        self.samples = 0.0
        self.seconds = 0.0
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add_loss(self, loss: Tensor, samples: float) -> None:
        """The mean loss of so many samples.

        Args:
            loss: One number, on any device.
            samples: Its weight; a fraction where several models share a batch.
        """
        self.loss += loss.to(self.loss) * samples
        self.samples += samples

    def add_telemetry(self, report: Mapping[str, Any]) -> None:
        """What the optimizer reports of a step; quantities that were not measured are missing.

        Args:
            report: Numbers by name, as `StepReport.as_dict` returns them; other names than `TELEMETRY` are ignored.
        """
        for name in TELEMETRY:
            if name in report:
                self._totals[name] = self._totals.get(name, 0.0) + float(report[name])
                self._counts[name] = self._counts.get(name, 0) + 1

    def mean_loss(self) -> float:
        """Over the samples of all ranks; every rank must call it."""
        sums = torch.stack((self.loss, self.loss.new_tensor(self.samples)))
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(sums)
        return float(sums[0] / sums[1])

    def telemetry(self) -> dict[str, float]:
        """Means over the steps that measured; shares in percent."""
        scale = dict.fromkeys(_SHARES, 100.0)
        return {n: scale.get(n, 1.0) * self._totals[n] / self._counts[n] for n in TELEMETRY if n in self._totals}

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": self.loss.cpu(),
            "samples": self.samples,
            "seconds": self.seconds,
            "totals": dict(self._totals),
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what `state_dict` returned.

        Args:
            state: The sums by name.
        """
        self.loss.copy_(state["loss"])
        self.samples, self.seconds = float(state["samples"]), float(state["seconds"])
        self._totals = {name: float(value) for name, value in state["totals"].items()}
        self._counts = {name: int(value) for name, value in state["counts"].items()}


def summarize(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Best, last, means of the last 5 and 10 epochs where there are so many, and the epoch chosen on noisy validation.

    All are test accuracies. Where there is no test split they are taken on the noisy validation split, and
    `metric_names` says so. `val_chosen` is the accuracy at the epoch with the best validation accuracy, the first of
    several.

    Args:
        history: One record of metrics per epoch.
    """
    on_test = any(record["test_accuracy"] is not None for record in history)
    measured = "test_accuracy" if on_test else "val_accuracy"
    where = "test accuracy" if on_test else "accuracy on the noisy validation labels (there is no test split)"
    values = [record[measured] for record in history if record[measured] is not None]
    validation = [record["val_accuracy"] for record in history]
    chosen = None
    if values and all(value is not None for value in validation):
        chosen = values[int(np.argmax(validation))]
    return {
        "best": max(values, default=None),
        "last": values[-1] if values else None,
        "last5": float(np.mean(values[-5:])) if len(values) >= 5 else None,
        "last10": float(np.mean(values[-10:])) if len(values) >= 10 else None,
        "val_chosen": chosen,
        **{name: history[-1].get(name) if history else None for name in _OF_CLASSES},
        "memorized": history[-1]["memorized"] if history else None,  # of the last, which may have ended at chance
        "metric_names": {name: metric.meaning.replace("WHERE", where) for name, metric in SUMMARY.items()} | _FACTS,
    }
