"""The steps of the theorem's proof as functions, so that each of its inequalities can be looked at on its own.

The prior is N(0, sigma_P^2 I), the posterior N(w, sigma^2 I). The paper leaves the grid of prior variances to SAM's
Appendix A.1 (Foret et al., 2021); it is written out here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


def gaussian_kl(distance: float, sigma_q: float, sigma_p: float, K: int) -> float:
    """KL(Q || P) of N(mu_Q, sigma_Q^2 I) and N(mu_P, sigma_P^2 I), ||mu_P - mu_Q|| = distance [eq:app_gaussian_kl].

    Args:
        distance: ||mu_P - mu_Q||.
        sigma_q: Width of Q.
        sigma_p: Width of P.
        K: Number of parameters.
    """
    ratio = (sigma_q / sigma_p) ** 2
    return 0.5 * (K * (ratio - 1.0 - math.log(ratio)) + (distance / sigma_p) ** 2)


def kl_bound(weight_norm: float, sigma: float, K: int) -> float:
    """What the best prior of the grid leaves of the KL at most [eq:app_kl_bound].

    Args:
        weight_norm: ||w||.
        sigma: Width of the posterior.
        K: Number of parameters.
    """
    return 0.5 * (1.0 + K * math.log1p(weight_norm**2 / (K * sigma**2)))


class Prior(NamedTuple):
    """A prior of the grid: its place j = 1, 2, ..., and its width."""

    place: int
    sigma: float


def best_prior(weight_norm: float, sigma: float, K: int, clean_samples: float) -> Prior | None:
    """The prior of the grid sigma_P^2 = c exp((1 - j) / K), c = sigma^2 (1 + exp(4 n_s / K)), that the proof takes.

    The KL is least at sigma_P^2 = sigma^2 + ||w||^2 / K; the next variance of the grid above that is at most
    exp(1 / K) times as large. `None` where ||w|| lies beyond the grid: there the complexity term alone is above 1, and
    the bound holds for want of content.

    Args:
        weight_norm: ||w||.
        sigma: Width of the posterior.
        K: Number of parameters.
        clean_samples: n_s.
    """
    log_best = math.log(sigma**2 + weight_norm**2 / K)
    log_largest = 2.0 * math.log(sigma) + float(np.logaddexp(0.0, 4.0 * clean_samples / K))
    if log_best > log_largest:
        return None
    place = math.floor(1.0 + K * (log_largest - log_best))
    return Prior(place, math.exp(0.5 * (log_largest + (1.0 - place) / K)))


def confidence_penalty(place: int, clean_samples: float, delta: float) -> float:
    """log(n_s / delta_j), delta_j = 6 delta / (pi j)^2: the deltas of the whole grid sum to delta.

    Args:
        place: j.
        clean_samples: n_s.
        delta: In (0, 1).
    """
    return math.log(clean_samples / delta) + math.log(math.pi**2 / 6.0) + 2.0 * math.log(place)


def penalty_bound(K: int, clean_samples: float, delta: float) -> float:
    """What the penalty is at most for any j that `best_prior` can take [eq:app_union_penalty].

    Args:
        K: Number of parameters.
        clean_samples: n_s.
        delta: In (0, 1).
    """
    return math.log(clean_samples / delta) + 2.0 * math.log(6.0 * clean_samples + 3.0 * K)


def tail_radius(sigma: float, K: int, u: float) -> float:
    """||eps|| exceeds this with probability at most exp(-u), eps ~ N(0, sigma^2 I) [eq:app_laurent_massart].

    Args:
        sigma: Width of the posterior.
        K: Number of parameters.
        u: Minus the log of the probability.
    """
    return sigma * math.sqrt(K + 2.0 * math.sqrt(K * u) + 2.0 * u)


def sam_radius(sigma: float, K: int, clean_samples: float) -> float:
    """sigma sqrt(K) (1 + sqrt(log n_s / K)), SAM's simpler radius above the tail's [eq:app_radius_bound].

    Args:
        sigma: Width of the posterior.
        K: Number of parameters.
        clean_samples: n_s.
    """
    return sigma * (math.sqrt(K) + math.sqrt(math.log(clean_samples)))
