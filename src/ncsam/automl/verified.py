"""Labels that a person has verified: which samples to ask about, and what can be estimated from the answers.

Samples are drawn with known probabilities pi. For any quantity z_i (a prediction is right, a given label is wrong) with
a prediction m_i made without the answers, each draw contributes

    mean(m) + (z_i - m_i) / (n pi_i),

whose expectation is the mean of z over all n samples for any pi and m. So questions can focus on the most informative
samples, and estimates stay unbiased (augmented inverse probability weighting; Robins, Rotnitzky and Zhao 1994).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.models.stacked import SMALLEST

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_UNIFORM = 0.3  # share of the questions that is spread evenly, which bounds the weights
_STEPS = 25  # of Newton's method
_PARTS = 5  # of the answers, each predicted by a stack fitted to the others
_FIRST, _SECOND = 0.8, 0.2  # prior weights of the recommended and of a more regularized model
_SCALES, _BIAS_SCALE = (0.5, 0.4, 0.4), 0.5  # prior standard deviations
_GIVEN_LABEL = 1.0  # prior weight of the given label in the posterior of the true one


@dataclass(frozen=True)
class Verified:
    """Verified labels of some samples.

    Attributes:
        rows: positions of the samples, one per draw; a sample that was drawn twice counts twice.
        labels: their true classes, as numbers.
        probabilities: the probability with which each was drawn, out of all samples. NaN for answers that were not
            drawn at random, which are used for everything but estimates. `None` for a simple random sample.

    Raises:
        UsageError: if there are no rows, lengths differ, or a probability is not in (0, 1].
    """

    rows: Labels
    labels: Labels
    probabilities: Floats | None = None

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.labels) or not len(self.rows):
            raise bad_value("verified", len(self.rows), "one or more samples with a label each")
        chances = np.asarray(1.0 if self.probabilities is None else self.probabilities)
        if ((chances <= 0) | (chances > 1)).any():
            raise bad_value("verified", "probabilities", "numbers above 0 and at most 1")

    def __len__(self) -> int:
        return len(self.rows)

    def drawn(self) -> Verified | None:
        """Return the answers that were drawn at random, which allow unbiased estimates; `None` if there are none."""
        if self.probabilities is None:
            return self
        known = ~np.isnan(self.probabilities)
        return Verified(self.rows[known], self.labels[known], self.probabilities[known]) if known.any() else None

    def sha256(self) -> str:
        """Return a hash of all answers, to compare two sets."""
        parts = [self.rows.astype("<i8"), self.labels.astype("<i8")]
        if self.probabilities is not None:
            parts.append(self.probabilities.astype("<f8").view("<i8"))
        return hashlib.sha256(np.concatenate(parts).tobytes()).hexdigest()


@dataclass(frozen=True)
class Interval:
    """An estimate with a 95 % interval.

    Attributes:
        value: the estimate, a fraction.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def to_dict(self) -> dict[str, float]:
        return {"estimate": self.value, "low": self.low, "high": self.high}


class ConditionalLogit:
    r"""q_i(k) = softmax_k(\sum_f theta_f feature_{ikf}) with a Gaussian prior on theta.

    Args:
        features: (n, K, F).
        mean: prior mean of theta (F,).
        scale: prior standard deviation of theta (F,).
    """

    def __init__(self, features: Floats, mean: Floats, scale: Floats) -> None:
        self.features = features
        self.mean = mean
        self.scale = scale
        self.theta = mean.copy()

    def fit(self, rows: Labels, labels: Labels) -> None:
        """Find the most probable theta given some labels, by damped Newton steps.

        Args:
            rows: positions in `features` (m,).
            labels: their true classes (m,).
        """
        f = self.features[rows]
        precision = np.diag(1 / self.scale**2)
        for _ in range(_STEPS):
            p = _softmax(f @ self.theta)
            expected = np.einsum("nk,nkf->nf", p, f)
            gradient = (f[np.arange(len(rows)), labels] - expected).sum(axis=0) - precision @ (self.theta - self.mean)
            hessian = np.einsum("nk,nkf,nkg->fg", p, f, f) - expected.T @ expected + precision
            step = np.linalg.solve(hessian, gradient)
            self.theta = self.theta + step * min(1.0, 1.0 / max(1e-9, float(np.abs(step).max())))
            if np.abs(step).max() < 1e-6:
                return

    def probabilities(self) -> Floats:
        return _softmax(self.features @ self.theta)


def stack(groups: Sequence[Floats], verified: Verified, *, balanced: bool = False) -> tuple[Floats, Floats]:
    """Fit weights of groups of models, and a bias per class, to verified labels.

    With few answers the result stays close to the first group.

    Args:
        groups: out-of-fold probabilities (n, K) of the recommended, a more regularized and a more flexible group; up to
            three.
        verified: rows and their true classes.
        balanced: predict the class with the largest p_k / mean(p_k) rather than p_k. This maximizes the mean recall of
            the classes (balanced accuracy) rather than accuracy.

    Returns:
        theta (groups,) and bias (K,) of `ncsam.models.stacked.Stacked`.
    """
    classes = groups[0].shape[1]
    logs = _logs(groups)
    biases = np.broadcast_to(np.eye(classes), (len(logs), classes, classes))
    mean = np.concatenate([_prior_weights(len(groups)), np.zeros(classes)])
    scale = np.concatenate([_SCALES[: len(groups)], np.full(classes, _BIAS_SCALE)])
    model = ConditionalLogit(np.concatenate([logs, biases], axis=2), mean, scale)
    rows, first = np.unique(verified.rows, return_index=True)
    model.fit(rows, verified.labels[first])
    theta, bias = model.theta[: len(groups)], model.theta[len(groups) :]
    return theta, bias - np.log(model.probabilities().mean(axis=0)) if balanced else bias


def stacked_probabilities(groups: Sequence[Floats], theta: Floats, bias: Floats) -> Floats:
    """Return what `ncsam.models.stacked.Stacked` predicts from the probabilities of the groups.

    Args:
        groups: probabilities (n, K) of each group.
        theta: weights of the groups.
        bias: a bias per class (K,).

    Returns:
        Probabilities (n, K).
    """
    return _softmax(_logs(groups) @ theta + bias)


def held_out_predictions(groups: Sequence[Floats], verified: Verified, *, balanced: bool = False) -> Labels:
    """Return the classes that the stack predicts, using for answered samples a stack fitted without their answers.

    The stack fits the answers it was trained on better than others, so its accuracy must be estimated from these
    predictions.

    Args:
        groups: out-of-fold probabilities (n, K) of each group.
        verified: rows and their true classes.
        balanced: as in `stack`.

    Returns:
        Class numbers (n,). With five answers or fewer, all come from the stack fitted to all answers.
    """
    predicted = stacked_probabilities(groups, *stack(groups, verified, balanced=balanced)).argmax(axis=1)
    rows = np.unique(verified.rows)
    part_of = {row: number % _PARTS for number, row in enumerate(rows.tolist())}
    parts = np.array([part_of[row] for row in verified.rows.tolist()])
    for part in range(_PARTS) if len(rows) > _PARTS else ():
        others = parts != part
        held = np.unique(verified.rows[~others])
        fitted = stack(groups, Verified(verified.rows[others], verified.labels[others]), balanced=balanced)
        predicted[held] = stacked_probabilities([p[held] for p in groups], *fitted).argmax(axis=1)
    return np.asarray(predicted, dtype=np.int64)


def posterior(groups: Sequence[Floats], given: Labels, verified: Verified | None = None) -> Floats:
    """Return P(true class | models, given label): a conditional logit, fitted to verified labels if there are any.

    Args:
        groups: out-of-fold probabilities (n, K) of each group.
        given: given labels (n,).
        verified: rows and their true classes. `None` uses the prior weights.

    Returns:
        Probabilities (n, K).
    """
    classes = groups[0].shape[1]
    indicator = np.eye(classes)[given][:, :, None]
    mean = np.concatenate([_prior_weights(len(groups)), [_GIVEN_LABEL]])
    scale = np.concatenate([_SCALES[: len(groups)], [1.0]])
    model = ConditionalLogit(np.concatenate([_logs(groups), indicator], axis=2), mean, scale)
    if verified is not None:
        model.fit(verified.rows, verified.labels)
    return model.probabilities()


def question_probabilities(predictions: Labels, belief: Floats, weights: Floats, uniform: float = _UNIFORM) -> Floats:
    r"""Return the probabilities with which to draw the next questions: high where good candidates disagree.

    .. math:: \pi_i \propto \sqrt{\sum_c w_c \mathrm{E}[(r_{ic} - \bar r_i)^2]}, \qquad r_{ic} = 1[y_i = f_c(x_i)]

    with the expectation over the belief about the true class y_i. This choice minimizes the summed variance of the
    estimated differences between candidates.

    Args:
        predictions: predicted class of every candidate, (n, C).
        belief: P(true class), (n, K), see `posterior`.
        weights: weights of the candidates (C,), summing to 1; larger for better ones.
        uniform: fraction of the probability that is spread evenly over all samples.

    Returns:
        Probabilities (n,), summing to 1.
    """
    n, classes = belief.shape
    votes = np.zeros((n, classes))
    for column, weight in zip(predictions.T, weights, strict=True):
        votes[np.arange(n), column] += weight
    # the mean over candidates of (r - mean r)^2 is v (1 - v) where v is the vote for the true class
    spread = np.sqrt((belief * votes * np.maximum(1 - votes, 0)).sum(axis=1))
    focused = spread / spread.sum() if spread.sum() > 0 else np.full(n, 1 / n)
    return np.asarray(uniform / n + (1 - uniform) * focused)


def estimate(values: Floats, predicted: Floats, verified: Verified) -> Interval:
    """Estimate the mean of a 0/1 quantity over all samples without bias, with a 95 % interval.

    The variance is the larger of the sample variance and the variance that the predictions imply: a few draws can miss
    rare samples with large weights.

    Args:
        values: the quantity for the drawn samples (m,).
        predicted: predictions of it for all samples (n,), made without the answers.
        verified: the draws, all made at random.

    Returns:
        The estimate, clipped to [0, 1].
    """
    n, draws = len(predicted), len(verified)
    pi = np.full(draws, 1 / n) if verified.probabilities is None else verified.probabilities
    parts = predicted.mean() + (values - predicted[verified.rows]) / (n * pi)
    sample = float(parts.var(ddof=1)) if draws > 1 else math.inf
    chance = predicted[verified.rows] * (1 - predicted[verified.rows]) / (n * pi) ** 2  # mean over draws
    error = math.sqrt(max(sample, float(chance.mean())) / draws) if math.isfinite(sample) else 1.0
    value = float(parts.mean())
    low, high = max(0.0, value - 1.96 * error), min(1.0, value + 1.96 * error)
    return Interval(min(1.0, max(0.0, value)), low, high)


def noise_rate(groups: Sequence[Floats], given: Labels, verified: Verified) -> Interval:
    """Estimate the share of wrong labels among all samples.

    Args:
        groups: out-of-fold probabilities (n, K) of each group.
        given: given labels (n,).
        verified: answers that were drawn at random (`Verified.drawn`).
    """
    wrong = 1 - posterior(groups, given)[np.arange(len(given)), given]
    return estimate((verified.labels != given[verified.rows]).astype(np.float64), wrong, verified)


def clean_accuracy(predictions: Labels, groups: Sequence[Floats], given: Labels, verified: Verified) -> Interval:
    """Estimate the share of samples whose predicted class is the true one.

    Args:
        predictions: predicted classes (n,), made without the answers for the samples in question.
        groups: out-of-fold probabilities (n, K) of each group.
        given: given labels (n,).
        verified: answers that were drawn at random (`Verified.drawn`).
    """
    right = posterior(groups, given)[np.arange(len(given)), predictions]
    return estimate((verified.labels == predictions[verified.rows]).astype(np.float64), right, verified)


def _prior_weights(groups: int) -> Floats:
    return np.array([_FIRST, _SECOND, *([0.0] * groups)])[:groups]


def _logs(groups: Sequence[Floats]) -> Floats:
    return np.stack([np.log(p + SMALLEST) for p in groups], axis=2)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found: Floats = powers / powers.sum(axis=-1, keepdims=True)
    return found
