"""Find label issues: from labels and out-of-sample probabilities, or from how training went. Nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._arguments import ratio
from ncsam._errors import bad_value
from ncsam.issues.posterior import LabelPosterior, assess, recalibrated
from ncsam.issues.scores import label_quality, ranks
from ncsam.issues.table import LabelIssues
from ncsam.noise import estimate_noise

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

#: The labels whose estimates must agree for any p_wrong to be stated; of small data a tenth.
_RARE = 0.6  # a class with less than this share of an even split is rare
_CHECKED = 100
#: The smallest gap between two accuracies that counts as memorization (docs/experiments/settings.md).
MEMORIZED_GAP = 0.02
_SUM_ERROR = 1e-3
_FOLDS = "cross-validation with 5 folds asks models that never saw the label"


def find_label_issues(
    labels: npt.ArrayLike | Any,
    pred_probs: npt.ArrayLike | None = None,
    *,
    classes: Sequence[str] | None = None,
    train_accuracy: float | None = None,
    clean_labels: npt.ArrayLike | None = None,
) -> LabelIssues:
    """Find the labels that are probably wrong, by the out-of-sample predictions of any model. Nothing is trained.

    A label is an issue (`is_label_issue`) if p_wrong > 0.5, where `p_wrong` can be estimated reliably: the posterior of
    the true class under a transition matrix estimated from the same predictions (`ncsam.issues.posterior`). Where it
    cannot (`issues.reliable` is false, `issues.about["reason"]` says why), the rule is confident learning's: some other
    class has the largest probability among those whose probability reaches their class threshold.

    Args:
        labels: the given labels, one per sample: class numbers from 0, or class names. Or what `Trainer.predict` of
            transformers returns, whose `label_ids` are the labels and whose `predictions` are the logits.
        pred_probs: predicted class probabilities (samples, classes), from a model that was not trained on the sample's
            label, such as those of `sklearn.model_selection.cross_val_predict(..., method="predict_proba")`.
        classes: the class names in the order of the columns; for labels that are names, sorted names by default.
        train_accuracy: the share of labels that the model predicts on its own training samples, if known. It reveals
            a model that has memorized wrong labels.
        clean_labels: the true labels, if known: only for the column `clean_label` and an AUROC.

    Returns:
        A table of all labels, the most likely wrong first.

    Raises:
        UsageError: if the shapes do not match, or a row of `pred_probs` does not hold probabilities.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> truth = rng.integers(3, size=600)
        >>> given = np.where(rng.random(600) < 0.1, (truth + 1) % 3, truth)  # every tenth label is wrong
        >>> logits = 3.0 * np.eye(3)[truth] + rng.normal(size=(600, 3))
        >>> issues = find_label_issues(given, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
        >>> issues.reliable, issues.num_issues, int((given != truth).sum())
        (True, 47, 47)

    References:
        Northcutt, Jiang and Chuang 2021, Confident Learning: Estimating Uncertainty in Dataset Labels.
    """
    if pred_probs is None:
        labels, pred_probs = _of_prediction(labels)
    rows = _probabilities(pred_probs)
    train_accuracy = None if train_accuracy is None else ratio("train_accuracy", train_accuracy)
    given, names = _class_numbers("labels", labels, rows.shape[1], classes)
    if len(given) != len(rows):
        raise bad_value("pred_probs", rows.shape, f"a row for each of the {len(given):,} labels")
    clean = None
    if clean_labels is not None:
        clean, _ = _class_numbers("clean_labels", clean_labels, rows.shape[1], names)
    return judge(given, rows, classes=names, train_accuracy=train_accuracy, extra=_known(clean))


def judge(
    labels: Labels,
    probabilities: npt.NDArray[Any],
    *,
    classes: Sequence[str] | None = None,
    train_accuracy: float | None = None,
    source: str = "out-of-sample predictions",
    extra: Mapping[str, Any] | None = None,
    verified: Mapping[int, int] | None = None,
) -> LabelIssues:
    """`find_label_issues` for checked arrays; `extra` are further columns in the order of the labels.

    A sample with a `verified` label is an issue if that differs from the given one (p_wrong is 1 or 0); the p_wrong of
    the others is calibrated on them.

    Args:
        labels: (N,) class numbers.
        probabilities: (N, K) out-of-sample predictions.
        classes: the K class names, for the table.
        train_accuracy: share in [0, 1] of labels that the model predicts on its own training samples, if known.
        source: whose predictions these are, for `LabelIssues.about`.
        extra: further columns by name, (N,) each.
        verified: true class numbers by position in the data.
    """
    rows = np.asarray(probabilities, dtype=np.float64)
    posterior = assess(labels, rows, train_accuracy)
    quality = label_quality(labels, rows, posterior.p_wrong)
    reason = posterior.reason or _disagreement(posterior, quality)
    if reason and has_rare_class(labels, rows.shape[1]):
        quality = label_quality(labels, rows)  # a wrong transition matrix would put the whole rare class first
    return _table(labels, rows, quality, rows.argmax(axis=1), posterior, reason, classes, source, extra, verified)


def has_rare_class(labels: Labels, num_classes: int) -> bool:
    """Whether some class is given to less than .6 / K of the samples.

    Args:
        labels: (N,) class numbers.
        num_classes: K, which also counts classes that no sample has.
    """
    return bool(np.bincount(labels, minlength=num_classes).min() < _RARE / num_classes * len(labels))


def _disagreement(posterior: LabelPosterior, quality: Floats) -> str:
    """Why the two estimates of the first labels disagree; empty where they do not."""
    order = np.lexsort((np.arange(len(quality)), quality))
    return posterior.disagreement(order[: min(_CHECKED, max(1, len(order) // 10))])


@dataclass(frozen=True)
class TrainingStatistics:
    """What a run recorded about each training sample.

    Attributes:
        label_quality: (N,) in [0, 1]; see `ncsam.engine.label_issues`.
        predicted: (N,) the class with the largest mean probability.
        probabilities: (N, classes) mean predicted probabilities over the epochs, or `None` if they were not kept.
        fitted: (N,) whether the last prediction is the given label.
        diagnostics: further columns.
    """

    label_quality: Floats
    predicted: Labels
    probabilities: Floats | None
    fitted: npt.NDArray[np.bool_]
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


def issues_of_training(
    labels: Labels,
    statistics: TrainingStatistics,
    held_out: npt.NDArray[np.int64] | None,
    *,
    classes: Sequence[str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> LabelIssues:
    """Label issues by the predictions of a run on its own training samples.

    `p_wrong` is stated only if the run fits the labels it was trained on no better than those held out. The fallback
    for `is_label_issue` is confident learning on the mean probabilities or, if these were not kept, whether another
    class led the given label over most of training (label_quality < 0.5).

    Args:
        labels: (N,) given labels.
        statistics: what the run recorded about the same samples.
        held_out: positions of the samples that the run was not trained on; `None` if there are none.
        classes: the class names, for the table.
        extra: further columns by name, (N,) each.
    """
    held = np.zeros(len(labels), dtype=bool)
    held[[] if held_out is None else held_out] = True
    reason = _memorized(statistics, held)
    posterior = None
    if not reason and statistics.probabilities is not None:
        posterior = assess(labels, statistics.probabilities)
        reason = posterior.reason or _disagreement(posterior, statistics.label_quality)
    columns = {**statistics.diagnostics, "held_out": held.astype(np.int64), **(extra or {})}
    return _table(
        labels,
        statistics.probabilities,
        statistics.label_quality,
        statistics.predicted,
        posterior,
        reason,
        classes,
        "predictions of the run itself",
        columns,
    )


def auroc(scores: npt.NDArray[Any], positive: npt.NDArray[np.bool_]) -> float | None:
    """Probability that a positive outscores a negative, ties counting half; `None` if there is none of either.

    Args:
        scores: (N,) larger where a sample is more likely positive.
        positive: (N,) whether each sample is positive.
    """
    count, rest = int(positive.sum()), int((~positive).sum())
    if count == 0 or rest == 0:
        return None
    return float((ranks(scores)[positive].sum() - count * (count + 1) / 2) / (count * rest))


def _table(
    labels: Labels,
    probabilities: Floats | None,
    quality: Floats,
    predicted: Labels,
    posterior: LabelPosterior | None,
    reason: str,
    classes: Sequence[str] | None,
    source: str,
    extra: Mapping[str, Any] | None,
    verified: Mapping[int, int] | None = None,
) -> LabelIssues:
    order = np.lexsort((np.arange(len(labels)), quality))
    reliable = posterior is not None and not reason
    unknown = np.full(len(labels), np.nan)
    extra = dict(extra or {})
    if posterior is not None and reliable:
        p_wrong, suggested, p_suggested = posterior.p_wrong, posterior.suggested, posterior.p_suggested
        if verified:
            before, known = p_wrong, np.fromiter(verified, dtype=np.int64)
            p_wrong = recalibrated(p_wrong, known, labels[known] != np.fromiter(verified.values(), dtype=np.int64))
            p_suggested = p_suggested * p_wrong / np.maximum(before, 1e-12)
        flagged = p_wrong > 0.5
    else:
        p_wrong, p_suggested = unknown, unknown
        suggested = posterior.suggested if posterior is not None else predicted
        flagged = quality < 0.5 if probabilities is None else estimate_noise(labels, probabilities).label_issues
    clean, unseen = extra.get("clean_label"), np.ones(len(labels), dtype=bool)
    if verified:
        known = np.fromiter(verified, dtype=np.int64)
        true = np.fromiter(verified.values(), dtype=np.int64)
        wrong, unseen[known] = labels[known] != true, False
        p_wrong, suggested, p_suggested = p_wrong.copy(), suggested.copy(), p_suggested.copy()
        flagged, quality = flagged.copy(), quality.copy()
        p_wrong[known], p_suggested[known], flagged[known], quality[known] = wrong, wrong, wrong, ~wrong
        suggested[known[wrong]] = true[wrong]
        order = np.lexsort((np.arange(len(labels)), quality))
    columns: dict[str, Any] = {
        "index": np.arange(len(labels)),
        **{name: extra.pop(name) for name in ("path", "text") if name in extra},
        "given_label": labels,
        "predicted_label": predicted,
        "label_quality": quality,
        "p_wrong": p_wrong,
        "is_label_issue": flagged,
        "suggested_label": suggested,
        "p_suggested": p_suggested,
        **extra,
    }
    about: dict[str, Any] = {"reliable": reliable, "reason": reason, "source": source}
    about["label_issues_auroc"] = None if clean is None else auroc(-quality[unseen], (labels != clean)[unseen])
    if posterior is not None:
        about |= {"agreement": posterior.agreement, "scale": posterior.scale}
    if reliable:
        about["expected_wrong"] = float(p_wrong.sum())
    return LabelIssues({name: np.asarray(values)[order] for name, values in columns.items()}, classes, about)


def has_memorized(trained: float, held_out: float, samples: int) -> bool:
    r"""Whether a model fits labels that it was trained on better than labels that it has not seen.

    .. math:: t - v > \max(0.02,\ 2 \sqrt{v (1 - v) / n})

    Args:
        trained: Accuracy t on the given labels of training samples, in [0, 1].
        held_out: Accuracy v on the given labels of held-out samples.
        samples: Number n of held-out samples.
    """
    return trained - held_out > max(MEMORIZED_GAP, 2.0 * math.sqrt(held_out * (1 - held_out) / samples))


def _memorized(statistics: TrainingStatistics, held: npt.NDArray[np.bool_]) -> str:
    """Why a run's own predictions cannot tell, or "": it fits labels it was trained on better than those held out."""
    if statistics.probabilities is None or not held.any():
        return f"the run was trained on all of these labels; {_FOLDS}"
    t, v = float(statistics.fitted[~held].mean()), float(statistics.fitted[held].mean())
    if has_memorized(t, v, int(held.sum())):
        return (
            f"the run has memorized labels (it fits {100 * t:.0f} % of those it was trained on and {100 * v:.0f} % of "
            f"those held out); {_FOLDS}"
        )
    return ""


def _of_prediction(output: Any) -> tuple[npt.ArrayLike, npt.ArrayLike]:
    """Labels and probabilities of the output of `Trainer.predict`: the softmax of its predictions."""
    logits, labels = getattr(output, "predictions", None), getattr(output, "label_ids", None)
    if isinstance(logits, tuple) and logits:  # some models return more than logits, which come first
        logits = logits[0]
    if logits is None or labels is None:
        raise bad_value("pred_probs", None, "probabilities, unless `labels` is what Trainer.predict returned for them")
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2:
        raise bad_value("predictions", f"array of shape {values.shape}", "logits (samples, classes)")
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))
    return labels, exponentials / exponentials.sum(axis=1, keepdims=True)


def _probabilities(pred_probs: npt.ArrayLike) -> Floats:
    given = _array("pred_probs", pred_probs)
    if given.ndim != 2 or given.dtype.kind not in "fiu" or given.shape[1] < 2 or len(given) == 0:
        raise bad_value("pred_probs", f"{given.dtype} {given.shape}", "probabilities (samples, classes)")
    rows = given.astype(np.float64)
    in_range = np.asarray(((rows >= 0) & (rows <= 1 + _SUM_ERROR)).all(axis=1))  # false for NaN
    fine = in_range & (np.abs(np.where(in_range[:, None], rows, 0.0).sum(axis=1) - 1) <= _SUM_ERROR)
    if not fine.all():
        first = int(np.argmin(fine))
        shown = ", ".join(f"{value:g}" for value in rows[first, :3]) + (", ..." if rows.shape[1] > 3 else "")
        raise bad_value(f"pred_probs[{first}]", f"[{shown}]", "probabilities: numbers of at least 0 that sum to 1")
    return rows


def _class_numbers(
    name: str, labels: npt.ArrayLike, size: int, classes: Sequence[str] | None
) -> tuple[Labels, list[str] | None]:
    """Labels as class numbers, and the class names where there are any."""
    given = _array(name, labels)
    if given.ndim != 1:
        raise bad_value(name, given.shape, "one label per sample")
    if classes is not None and not isinstance(classes, Iterable):
        raise bad_value("classes", classes, f"a name for each of the {size} columns of pred_probs")
    names = None if classes is None else [_text("classes", each) for each in classes]
    if names is not None and len(names) != size:
        raise bad_value("classes", names, f"a name for each of the {size} columns of pred_probs")
    if given.dtype.kind in "iu":
        if len(given) and not (given.min() >= 0 and given.max() < size):
            worst = int(given.min() if given.min() < 0 else given.max())
            raise bad_value(name, worst, f"class numbers from 0 to {size - 1}")
        return given.astype(np.int64), names
    texts = [_text(name, each) for each in given.tolist()]
    if names is None:
        names = sorted(set(texts))
        if len(names) != size:
            expected = f"one for each of the {size} columns of pred_probs; name them with classes="
            raise bad_value(name, f"{len(names)} different names", expected)
    number = {each: i for i, each in enumerate(names)}
    if odd := sorted(set(texts) - number.keys()):
        raise bad_value(name, odd[0], f"one of the classes {names}")
    return np.array([number[each] for each in texts], dtype=np.int64), names


def _array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors with gradients or on a GPU
        raise bad_value(name, type(values).__name__, "an array, or a list of equal rows") from error


def _text(name: str, value: object) -> str:
    try:
        return str(value)
    except ValueError as error:  # more digits than Python prints
        raise bad_value(name, value, "names, or class numbers") from error


def _known(clean: Labels | None) -> dict[str, Any]:
    return {} if clean is None else {"clean_label": clean}
