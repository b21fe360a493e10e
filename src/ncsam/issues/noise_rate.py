"""The noise rate of a run: one estimate with an interval, and its wording, which is the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

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
    """The estimate in a sentence without its period."""
    if not found:
        return UNKNOWN_RATE
    value, low, high = (100 * found[name] for name in ("estimate", "low", "high"))
    share = f"{100 * found.get('coverage', _COVERAGE):.0f} %"
    interval = f"{share} interval {low:.0f} to {high:.0f} %, from {found.get('source')}"
    return f"about {value:.0f} % of the labels are wrong ({interval})"
