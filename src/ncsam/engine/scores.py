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


def normalised_margin(labels: Labels, probabilities: Floats) -> Floats:
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


#: The scores by name.
SCORES: dict[str, Callable[[Labels, Floats], Floats]] = {
    "self-confidence": self_confidence,
    "normalised margin": normalised_margin,
    "confidence-weighted entropy": weighted_entropy,
}


def _own(labels: Labels, probabilities: Floats) -> Floats:
    return np.asarray(probabilities[np.arange(len(labels)), labels], dtype=np.float64)
