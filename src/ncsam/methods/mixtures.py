"""Who is clean: two-component mixtures fitted to the losses of all samples."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats: TypeAlias = "npt.NDArray[np.float64]"


def losses_under(probabilities: Tensor, labels: Tensor) -> Tensor:
    """-log p_y of each sample; a probability that underflowed counts as 1e-12.

    Args:
        probabilities: (samples, classes).
        labels: Class numbers (rows,).
    """
    return -probabilities.gather(1, labels.unsqueeze(1)).squeeze(1).clamp(min=1e-12).log()


def scaled(values: Tensor) -> Tensor:
    """Brought to [0, 1] by the smallest and the largest; all 0 where these are the same.

    Args:
        values: The values.
    """
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def gaussian_posterior(values: Floats, *, steps: int = 10, tol: float = 1e-2, floor: float = 5e-4) -> Floats:
    """The probability of the component with the smaller mean, of a mixture of two Gaussians fitted to the values.

    Expectation maximization from the two-means split. The defaults are DivideMix's for scikit-learn's mixture, whose
    start is random and whose answer is the same where both converge.

    Args:
        values: The values.
        steps: Largest number of steps.
        tol: Gain of the mean log-likelihood below which it stops.
        floor: Added to each variance.
    """
    low = _two_means(values)
    parts = _moments(values, np.stack((low, ~low)).astype(np.float64), floor)
    before = -np.inf
    for _ in range(steps):
        share, likelihood = _gaussian_shares(values, *parts)
        parts = _moments(values, share, floor)
        if abs(likelihood - before) < tol:
            break
        before = likelihood
    posterior: Floats = _gaussian_shares(values, *parts)[0][int(parts[1].argmin())]
    return posterior


def beta_posterior(values: Floats, *, at: Floats | None = None, steps: int = 10) -> Floats:
    """The probability of the component with the larger mean, of a mixture of two Betas fitted to values in [0, 1].

    Expectation maximization from Beta(1, 2) and Beta(2, 1), with the moments' parameters in each M-step, alpha = m (m
    (1 - m) / v - 1), beta = alpha (1 - m) / m. Values are kept 1e-4 away from 0 and 1. As in the authors' code the
    posterior never falls beyond its maximum: the largest losses are noisy too.

    Args:
        values: The values to fit.
        at: Where to evaluate the posterior; by default at the values.
        steps: Number of steps.

    References:
        Arazo et al., 2019, arXiv 1904.11238.
    """
    x = np.clip(values, 1e-4, 1 - 1e-4)
    shapes = np.array([[1.0, 2.0], [2.0, 1.0]])
    weight = np.array([0.5, 0.5])
    for _ in range(steps):
        weight, mean, variance = _moments(x, _beta_shares(x, weight, shapes), 1e-8)
        alpha = mean * np.maximum(mean * (1 - mean) / variance - 1, 1e-3)
        shapes = np.stack((alpha, alpha * (1 - mean) / mean), axis=1)
    high = int((shapes[:, 0] / shapes.sum(axis=1)).argmax())
    x = x if at is None else np.clip(at, 1e-4, 1 - 1e-4)
    posterior: Floats = _beta_shares(x, weight, shapes)[high]
    posterior[x >= x[posterior.argmax()]] = posterior.max()
    return posterior


def _moments(values: Floats, share: Floats, floor: float) -> tuple[Floats, Floats, Floats]:
    """Weight, mean and variance of each component."""
    count = share.sum(axis=1) + 10 * np.finfo(np.float64).eps
    mean = share @ values / count
    variance = (share * (values - mean[:, None]) ** 2).sum(axis=1) / count + floor
    return count / len(values), mean, variance


def _gaussian_shares(values: Floats, weight: Floats, mean: Floats, variance: Floats) -> tuple[Floats, float]:
    """How far each component answers for each value, and the mean log-likelihood."""
    distance = (values - mean[:, None]) ** 2 / variance[:, None]
    density = np.log(weight)[:, None] - 0.5 * (distance + np.log(2 * np.pi * variance)[:, None])
    total = np.logaddexp(*density)
    return np.exp(density - total), float(total.mean())


def _beta_shares(x: Floats, weight: Floats, shapes: Floats) -> Floats:
    log_norm = _log_gamma(shapes.sum(axis=1)) - _log_gamma(shapes).sum(axis=1)
    density = (shapes[:, :1] - 1) * np.log(x) + (shapes[:, 1:] - 1) * np.log1p(-x)
    density += (np.log(weight) + log_norm)[:, None]
    result: Floats = np.exp(density - np.logaddexp(*density))
    return result


def _log_gamma(values: Floats) -> Floats:
    result: Floats = torch.lgamma(torch.from_numpy(values)).numpy()
    return result


def _two_means(values: Floats) -> npt.NDArray[np.bool_]:
    """True for the lower cluster of the split with the smallest squared distances to the means, found exactly."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    count = np.arange(1, len(values))
    left = np.cumsum(ranked)[:-1]
    right = ranked.sum() - left
    # the squared distances are smallest where the clusters' sums, squared, over their sizes are largest
    cut = 1 + int(np.argmax(left**2 / count + right**2 / (len(values) - count)))
    lower = np.zeros(len(values), dtype=bool)
    lower[order[:cut]] = True
    return lower
