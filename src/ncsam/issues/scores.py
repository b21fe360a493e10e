"""How suspicious a label is, from out-of-sample probabilities. Higher is more suspicious; all are in [0, 1].

p is the predicted distribution of a sample, s its observed label, K the number of classes. The names are those of
Northcutt et al. 2021 (Confident learning) and of cleanlab, where lower is more suspicious.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

_TINY = 1e-12


def self_confidence(labels: Labels, probabilities: Floats) -> Floats:
    """1 - p[s]."""
    return 1.0 - _own(labels, probabilities)


def normalized_margin(labels: Labels, probabilities: Floats) -> Floats:
    """(1 - (p[s] - max over k != s of p[k])) / 2."""
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    margin: Floats = _own(labels, probabilities) - others.max(axis=1)
    return (1.0 - margin) / 2.0


def weighted_entropy(labels: Labels, probabilities: Floats) -> Floats:
    """1 - log(1 + w) / w of w = H(p) / p[s], the entropy H in units of log K."""
    entropy = -(probabilities * np.log(probabilities + _TINY)).sum(axis=1) / np.log(probabilities.shape[1])
    weighted = np.maximum(entropy / np.maximum(_own(labels, probabilities), _TINY), _TINY)
    return np.asarray(1.0 - np.log1p(weighted) / weighted)


def odds(labels: Labels, probabilities: Floats) -> Floats:
    """max over k != s of p[k] / (p[s] + p[k]): how the label fares against the best other class alone."""
    others = probabilities.copy()
    own = _own(labels, probabilities)
    others[np.arange(len(labels)), labels] = 0.0
    best: Floats = others.max(axis=1)
    return (best + _TINY) / (own + best + 2 * _TINY)


#: The scores by name.
SCORES: dict[str, Callable[[Labels, Floats], Floats]] = {
    "self-confidence": self_confidence,
    "normalized margin": normalized_margin,
    "confidence-weighted entropy": weighted_entropy,
    "odds": odds,
}


def ranks(scores: Floats) -> Floats:
    """The rank of each value, from 1; equal ones share the mean of theirs."""
    _, inverse, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    found: Floats = (np.cumsum(sizes) - (sizes - 1) / 2)[inverse]
    return found


def suspicion(labels: Labels, probabilities: Floats, wrong: Floats) -> Floats:
    """(rank of `wrong` + 2 rank of the odds) / 3 N.

    The probability that a label is wrong, by a transition matrix, finds errors that follow the class alone; the odds
    find those that follow the sample, as people's mostly do. Their mean is near the better one for either.
    """
    return (ranks(wrong) + 2.0 * ranks(odds(labels, probabilities))) / (3.0 * len(labels))


def _own(labels: Labels, probabilities: Floats) -> Floats:
    return np.asarray(probabilities[np.arange(len(labels)), labels], dtype=np.float64)
