"""The probability that a label is wrong, and that the suggested one is right, without any clean labels.

Let z be the prediction for a sample of a model that never saw its label, y its true class and s its given label:

1. Calibration. p(s | z) is the prediction mapped so that it fits the given labels of other samples
   (`ncsam.issues.calibration`); these also decide how flexible the map is.
2. Transition matrix T[k, j] = P(s = j | y = k), taken to be the same for all samples of a class, twice. The one that
   counts: its diagonal is how often the label agrees with the tenth of each class that is predicted the most surely,
   which takes labels of hard samples to be as good as those of easy ones. The other, by confident-learning counts
   (`ncsam.noise.estimate_noise`), takes errors of the model for errors of the labels, and so mostly overstates.
3. Posterior. P(y | z) = q is fitted as in step 1 but to the labels as T makes them of y: max of the mean log (q T)[s].
   By Bayes P(y = k | z, s) = q[k] T[k, s] / sum over i of q[i] T[i, s].

The posterior of the first is stated, unless the second is far from it. A model that has learned little makes correct
labels look wrong, and no statistic of noisy labels tells the two apart for certain; `reliable` is false where there are
signs of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.issues.calibration import best_stiffness, calibrated
from ncsam.noise import estimate_noise

#: A model that agrees with fewer labels has learned too little to judge them, or the labels are too bad to learn from.
LEAST_AGREEMENT = 0.45
#: Half width of the interval without verified labels, meant to hold for nine datasets in ten
#: (docs/experiments/recommendations.md says how it was found).
HALF_WIDTH = 0.15
_COVERAGE, _QUANTILE = 0.9, 1.645
_FEWEST_SAMPLES = 20
UNKNOWN_RATE = "the share of wrong labels cannot be determined without verified labels"


def confident_noise_rate(labels: npt.NDArray[np.int64], probabilities: npt.NDArray[np.floating[Any]]) -> float:
    """Share of wrong labels among the samples with a confident prediction, as confident learning counts them.

    A class is confident if its probability reaches the mean probability of the class among the samples labeled so.

    Args:
        labels: (N,) given labels.
        probabilities: (N, K) out-of-sample predictions.

    Returns:
        A share in [0, 1]; 0 if no prediction is confident.
    """
    classes = probabilities.shape[1]
    sums = np.bincount(labels, probabilities[np.arange(len(labels)), labels], minlength=classes)
    counts = np.bincount(labels, minlength=classes)
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), 1.0)
    confident = probabilities >= thresholds
    believed = np.where(confident, probabilities, -1.0).argmax(axis=1)
    counted = confident.any(axis=1)
    return float((believed != labels)[counted].mean()) if counted.any() else 0.0


def noise_rate_of(labels: npt.NDArray[np.int64], probabilities: npt.NDArray[np.floating[Any]]) -> dict[str, Any] | None:
    """The noise rate from predictions of models that never saw the labels: `estimate`, `low`, `high`, `coverage`,
    `source`.

    `None`, for "cannot be determined without verified labels", with fewer than 20 samples and for a model that agrees
    with fewer than 45 % of the labels, whose errors look like wrong labels. The interval is plus and minus 15 points,
    or wider where there are few samples.

    Args:
        labels: the given labels (n,).
        probabilities: (n, K).
    """
    if len(labels) < _FEWEST_SAMPLES or (probabilities.argmax(axis=1) == labels).mean() < LEAST_AGREEMENT:
        return None
    rate = confident_noise_rate(labels, probabilities)
    half = max(HALF_WIDTH, _QUANTILE * math.sqrt(rate * (1 - rate) / len(labels)))
    low, high = max(0.0, rate - half), min(1.0, rate + half)
    return {"estimate": rate, "low": low, "high": high, "coverage": _COVERAGE, "source": "held-out predictions"}


def noise_rate_words(found: Mapping[str, Any] | None) -> str:
    """The estimate in a sentence without its period.

    Args:
        found: an estimate as `noise_rate_of` returns it, with shares in [0, 1]; `None` if there is none.
    """
    if not found:
        return UNKNOWN_RATE
    value, low, high = (100 * found[name] for name in ("estimate", "low", "high"))
    share = f"{100 * found.get('coverage', _COVERAGE):.0f} %"
    interval = f"{share} interval {low:.0f} to {high:.0f} %, from {found.get('source')}"
    return f"about {value:.0f} % of the labels are wrong ({interval})"


Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_SURE = 0.1  # share of each predicted class whose predictions are taken to be right
_PSEUDO = 10  # samples by which a class leans on the mean of all classes
_LEAST_NOISE = 1e-4  # of any entry of T: no label is impossible
#: Below this scale predictions were so overconfident that calibration cannot fix them.
LEAST_SCALE = 0.4
#: A model that fits the labels it was trained on better by more than this has memorized wrong labels, which makes
#: correct ones look wrong.
MOST_MEMORIZED = 0.2
#: Largest distance between the two estimates, for the first label issues.
WIDEST = 0.2


@dataclass(frozen=True)
class LabelPosterior:
    """The posterior of every label.

    Attributes:
        p_wrong: (N,) probability that the given label is wrong.
        suggested: (N,) the most probable other class.
        p_suggested: (N,) probability that this is the true class.
        other: (2, N) the same two probabilities by confident-learning counts.
        reason: why the probabilities cannot be estimated, in a sentence; empty where they can.
        agreement: the share of labels that the model predicts.
        scale: a of step 1.
    """

    p_wrong: Floats
    suggested: Labels
    p_suggested: Floats
    other: Floats
    reason: str
    agreement: float
    scale: float

    @property
    def reliable(self) -> bool:
        return not self.reason

    def disagreement(self, first: Labels) -> str:
        """Why nothing is stated, if the two estimates for the samples `first` differ too much; else "".

        Args:
            first: positions of the labels that are most likely wrong.
        """
        wrong, other = self.p_wrong[first].mean(), self.other[:, first].mean(axis=1)
        if max(abs(other[0] - wrong), abs(other[1] - self.p_suggested[first].mean())) <= WIDEST:
            return ""
        return (
            f"two estimates disagree (of the first {len(first)} labels, {len(first) * wrong:.0f} or "
            f"{len(first) * other[0]:.0f} are wrong). Hard samples may look like wrong labels; review some to find out"
        )


def assess(labels: npt.ArrayLike, probabilities: npt.ArrayLike, fit: float | None = None) -> LabelPosterior:
    """The posterior of every label, by out-of-sample predictions.

    Args:
        labels: (N,) class numbers.
        probabilities: (N, classes).
        fit: the share of labels that the model predicts on its own training samples, where that is known.
    """
    given = np.asarray(labels, dtype=np.int64)
    rows = np.asarray(probabilities, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(given) or rows.shape[1] < 2:
        raise bad_value("probabilities.shape", rows.shape, f"({len(given)}, number of classes)")
    stiffness, fitted, scale = best_stiffness(rows, given)
    high = np.nan_to_num(estimate_noise(given, fitted).transition)
    high[high.sum(axis=1) == 0] = np.eye(rows.shape[1])[high.sum(axis=1) == 0]
    low = _lowered(high, fitted, given)
    stated, other = (_posterior(rows, transition, given, stiffness) for transition in (low, high))
    every = np.arange(len(given))
    others = stated.copy()
    others[every, given] = -1.0
    suggested = others.argmax(axis=1).astype(np.int64)
    agreement = float((rows.argmax(axis=1) == given).mean())
    return LabelPosterior(
        p_wrong=1 - stated[every, given],
        suggested=suggested,
        p_suggested=stated[every, suggested],
        other=np.stack([1 - other[every, given], other[every, suggested]]),
        reason=_unreliable_reason(agreement, scale, fit),
        agreement=agreement,
        scale=scale,
    )


def recalibrated(p_wrong: Floats, rows: Labels, wrong: npt.NDArray[np.bool_]) -> Floats:
    r"""p_wrong after a few labels were verified.

    .. math:: \mathrm{logit}\, p' = a + b\, \mathrm{logit}\, p, \qquad a \sim N(0, 1),\ b \sim N(1, 1/4)

    with the most probable a and b given the verified labels (Platt scaling; Platt 1999). Without any, p' = p.

    Args:
        p_wrong: (N,).
        rows: positions of the verified labels.
        wrong: whether each of them is wrong.
    """
    clipped = np.clip(p_wrong, _LEAST_NOISE, 1 - _LEAST_NOISE)
    features = np.stack([np.ones(len(p_wrong)), np.log(clipped / (1 - clipped))], axis=1)
    mean, precision = np.array([0.0, 1.0]), np.diag([1.0, 4.0])
    theta, seen, target = mean.copy(), features[rows], wrong.astype(np.float64)
    for _ in range(25):  # of Newton's method
        p = 1 / (1 + np.exp(-seen @ theta))
        gradient = seen.T @ (target - p) - precision @ (theta - mean)
        step = np.linalg.solve((seen * (p * (1 - p))[:, None]).T @ seen + precision, gradient)
        theta = theta + step * min(1.0, 1.0 / max(1e-9, float(np.abs(step).max())))
    found: Floats = 1 / (1 + np.exp(-features @ theta))
    return found


def _unreliable_reason(agreement: float, scale: float, fit: float | None) -> str:
    if agreement < LEAST_AGREEMENT:
        return (
            f"the model agrees with only {100 * agreement:.0f} % of the labels, too few to tell wrong labels from hard "
            "samples. Train longer, or use a better model"
        )
    advice = "Train for fewer epochs, or use a method or optimizer that resists memorization"
    if fit is not None and fit - agreement > MOST_MEMORIZED:
        return (
            f"the model has memorized labels (it fits {100 * fit:.0f} % of those it was trained on and "
            f"{100 * agreement:.0f} % of those held out). {advice}"
        )
    if scale < LEAST_SCALE:
        return f"the predictions are overconfident (calibration scale {scale:.2f}, below {LEAST_SCALE}). {advice}"
    return ""


def _lowered(high: Floats, fitted: Floats, labels: Labels) -> Floats:
    """The `low` transition matrix: the diagonal of sure predictions, the rest of each row shared out as in `high`."""
    predicted, surety = fitted.argmax(axis=1), fitted.max(axis=1)
    size = fitted.shape[1]
    agreed, counted = np.zeros(size), np.zeros(size)
    for c in range(size):
        members = np.flatnonzero(predicted == c)
        sure = members[np.argsort(-surety[members], kind="stable")[: int(np.ceil(_SURE * len(members)))]]
        agreed[c], counted[c] = (labels[sure] == c).sum(), len(sure)
    overall = agreed.sum() / counted.sum()
    kept = (agreed + _PSEUDO * overall) / (counted + _PSEUDO)
    rest = high * (1 - np.eye(size))
    rest[rest.sum(axis=1) == 0] = 1 - np.eye(size)[rest.sum(axis=1) == 0]
    low: Floats = rest / rest.sum(axis=1, keepdims=True) * (1 - kept)[:, None] + np.diag(kept)
    return low


def _posterior(probabilities: Floats, transition: Floats, labels: Labels, stiffness: float) -> Floats:
    """Step 3: P(y | z, s)."""
    transition = np.maximum(transition, _LEAST_NOISE)
    transition = transition / transition.sum(axis=1, keepdims=True)
    truth, _ = calibrated(probabilities, labels, transition, stiffness)
    joint = truth * transition[:, labels].T
    posterior: Floats = joint / joint.sum(axis=1, keepdims=True)
    return posterior
