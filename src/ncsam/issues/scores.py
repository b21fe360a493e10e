"""Label quality scores from out-of-sample probabilities: all in [0, 1], and low where the label is likely wrong.

p is the predicted distribution of a sample, s its given label, K the number of classes. The first three are those of
Northcutt et al. 2021 (Confident learning), under the names that cleanlab uses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_TINY = 1e-12


def self_confidence(labels: Labels, probabilities: Floats) -> Floats:
    """p[s].

    Args:
        labels: (N,) given labels.
        probabilities: (N, K).
    """
    return _own(labels, probabilities)


def normalized_margin(labels: Labels, probabilities: Floats) -> Floats:
    """(1 + p[s] - max over k != s of p[k]) / 2.

    Args:
        labels: (N,) given labels.
        probabilities: (N, K), K at least 2.
    """
    margin: Floats = _own(labels, probabilities) - _best_other(labels, probabilities)
    return (1.0 + margin) / 2.0


def confidence_weighted_entropy(labels: Labels, probabilities: Floats) -> Floats:
    """log(1 + w) / w with w = H(p) / p[s], where the entropy H is in units of log K.

    Args:
        labels: (N,) given labels.
        probabilities: (N, K), K at least 2.
    """
    entropy = -(probabilities * np.log(probabilities + _TINY)).sum(axis=1) / np.log(probabilities.shape[1])
    weighted = np.maximum(entropy / np.maximum(_own(labels, probabilities), _TINY), _TINY)
    return np.asarray(np.log1p(weighted) / weighted)


def odds(labels: Labels, probabilities: Floats) -> Floats:
    """p[s] / (p[s] + max over k != s of p[k]): the label against the best other class alone.

    Args:
        labels: (N,) given labels.
        probabilities: (N, K), K at least 2.
    """
    own = _own(labels, probabilities)
    return (own + _TINY) / (own + _best_other(labels, probabilities) + 2 * _TINY)


#: The scores by name.
SCORES: dict[str, Callable[[Labels, Floats], Floats]] = {
    "self_confidence": self_confidence,
    "normalized_margin": normalized_margin,
    "confidence_weighted_entropy": confidence_weighted_entropy,
    "odds": odds,
}


def ranks(scores: Floats) -> Floats:
    """The rank of each value, from 1; equal ones share the mean of theirs.

    Args:
        scores: (N,); the smallest gets the lowest rank.
    """
    _, inverse, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(sizes) - (sizes - 1) / 2)[inverse]
    return found


def label_quality(labels: Labels, probabilities: Floats, p_wrong: Floats | None = None) -> Floats:
    """((rank of 1 - p_wrong + 2 rank of the odds) / 3 - 1/2) / N, in (0, 1); without p_wrong by the odds alone.

    p_wrong, which rests on a transition matrix, finds errors that depend on the class alone; the odds find those that
    depend on the sample, as most human errors do. Their mean rank is close to the better of the two for either kind
    (docs/experiments/label_issues.md has the comparison).

    Args:
        labels: (N,) given labels.
        probabilities: (N, K) out-of-sample predictions.
        p_wrong: (N,) probability that each label is wrong, or `None`.
    """
    mean = ranks(odds(labels, probabilities))
    if p_wrong is not None:
        mean = (ranks(1.0 - p_wrong) + 2.0 * mean) / 3.0
    return np.asarray((mean - 0.5) / len(labels))


def _own(labels: Labels, probabilities: Floats) -> Floats:
    return np.asarray(probabilities[np.arange(len(labels)), labels], dtype=np.float64)


def _best_other(labels: Labels, probabilities: Floats) -> Floats:
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    best: Floats = others.max(axis=1)
    return best
