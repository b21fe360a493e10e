"""The generalization bound of sharpness-aware training under label noise, term by term."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ncsam._arguments import above_zero, number
from ncsam._errors import bad_value
from ncsam.errors import UsageError

Number: TypeAlias = "float | npt.NDArray[np.float64]"
_MOST_SAMPLES = 1e100
_ROUNDING = 1e-9  # n (1 - alpha) of 100 and .99 is 1 but for rounding


@dataclass(frozen=True)
class NoisyLabelBound:
    """The right-hand side of Theorem 1 in its three terms; numbers, or arrays where an argument was one.

    Attributes:
        empirical: max L_M / (1 - alpha), `amplification` times the loss that training sees.
        gaussian_tail: 1 / ((1 - alpha) sqrt(n_s)), for Gaussian steps that leave the ball.
        complexity: sqrt(X / (n_s - 1)), for weights that were chosen by the data.
        total: Their sum. The loss is never above 1, so a total of 1 or more says nothing (`vacuous`).
        sigma: The Gaussian width used in the proof.
        clean_samples: n_s = n (1 - alpha).
        amplification: 1 / (1 - alpha).
    """

    empirical: Number
    gaussian_tail: Number
    complexity: Number
    total: Number
    sigma: Number
    clean_samples: Number
    amplification: Number

    @property
    def vacuous(self) -> bool | npt.NDArray[np.bool_]:
        """Whether the total is no better than the trivial bound of 1."""
        found = np.asarray(self.total) >= 1.0
        return bool(found) if found.ndim == 0 else found


def noisy_label_bound(
    neighborhood_loss: npt.ArrayLike,
    n: npt.ArrayLike,
    alpha: npt.ArrayLike,
    num_parameters: npt.ArrayLike,
    weight_norm: npt.ArrayLike,
    rho: npt.ArrayLike,
    delta: npt.ArrayLike = 0.05,
) -> NoisyLabelBound:
    """Theorem 1 [eq:noisy_sam_bound_alpha]: an upper bound of the clean risk L_D(w), with probability 1 - delta.

        L_D(w) <= max_{||eps|| <= rho} L_M(w + eps) / (1 - alpha) + 1 / ((1 - alpha) sqrt(n_s)) + sqrt(X / (n_s - 1)),
        n_s = n (1 - alpha),
        X = K/4 log(1 + ||w||^2 / rho^2 (1 + sqrt(log(n_s) / K))^2) + 1/4 + log(n_s / delta) + 2 log(6 n_s + 3 K),
        sigma = rho / (sqrt(K) + sqrt(log n_s)).

    It holds if 0 <= L <= 1, if the n_s samples with right labels are drawn from the clean distribution, if the prior
    does not depend on them, and if L_D(w) <= E L_D(w + eps) for eps ~ N(0, sigma^2 I) (the paper's Assumption). The
    probability is over the clean samples, with the mislabeled ones fixed. By the Corollary it is also over the joint
    draw, if the theorem holds for every mislabeled subset with fixed n_s and n_n; where n_s itself is random, read it
    conditional on n_s, or pay a union bound over its values.

    With alpha = 0 it is SAM's own bound, `sam_bound`. It grows with alpha, and is infinite at n_s = 1. All arguments
    may be arrays, which are broadcast.

    Args:
        neighborhood_loss: max over the rho-ball of L_M, the mean loss on all training samples with their observed
            labels, in [0, 1]. `neighborhood_maximum` estimates it from below; then the total is an estimate too.
        n: Number of training samples, right and wrong.
        alpha: The realized share of wrong labels, in [0, 1).
        num_parameters: K.
        weight_norm: ||w||.
        rho: The radius, above 0.
        delta: In (0, 1).

    Returns:
        The bound and its terms.

    Raises:
        UsageError: An argument is outside its range.
    """
    given = locals()
    numbers = {name: _real(name, value) for name, value in given.items()}
    try:
        loss, n_, alpha_, K, w, rho_, delta_ = np.broadcast_arrays(*numbers.values())
    except ValueError:
        shapes = ", ".join(f"{name} {values.shape}" for name, values in numbers.items() if values.ndim)
        raise UsageError(f"invalid shapes {shapes}: expected numbers, or arrays of one shape") from None
    _check("neighborhood_loss", loss, (loss >= 0) & (loss <= 1), "a loss in [0, 1]")
    _check("alpha", alpha_, (alpha_ >= 0) & (alpha_ < 1), "a share of wrong labels in [0, 1)")
    _check("num_parameters", K, (K >= 1) & np.isfinite(K), "a finite number, 1 or larger")
    _check("weight_norm", w, (w >= 0) & np.isfinite(w), "a finite number, 0 or larger")
    _check("rho", rho_, (rho_ > 0) & np.isfinite(rho_), "a finite number above 0")
    _check("delta", delta_, (delta_ > 0) & (delta_ < 1), "a probability in (0, 1)")
    _check("n", n_, (n_ >= 1) & np.isfinite(n_), "a finite number, 1 or larger")
    clean = n_ * (1.0 - alpha_)
    _check(
        "alpha", alpha_, clean >= 1.0 - _ROUNDING, "a share that leaves at least one right label, n (1 - alpha) >= 1"
    )
    clean = np.maximum(clean, 1.0)

    amplification = 1.0 / (1.0 - alpha_)
    empirical = amplification * loss
    tail = amplification / np.sqrt(clean)
    squared = _complexity(clean, K, w, rho_, delta_)
    with np.errstate(divide="ignore"):
        complexity = np.sqrt(squared / (clean - 1.0))
    sigma = rho_ / (np.sqrt(K) + np.sqrt(np.log(clean)))
    parts = (empirical, tail, complexity, empirical + tail + complexity, sigma, clean, amplification)
    return NoisyLabelBound(*map(_number, parts))


def sam_bound(
    neighborhood_loss: npt.ArrayLike,
    n: npt.ArrayLike,
    num_parameters: npt.ArrayLike,
    weight_norm: npt.ArrayLike,
    rho: npt.ArrayLike,
    delta: npt.ArrayLike = 0.05,
) -> NoisyLabelBound:
    """SAM's bound for right labels: `noisy_label_bound` at alpha = 0.

    Args:
        neighborhood_loss: max over the rho-ball of the mean training loss, in [0, 1].
        n: Number of training samples.
        num_parameters: K.
        weight_norm: ||w||.
        rho: The radius, above 0.
        delta: In (0, 1).

    References:
        Foret et al., 2021, Sharpness-aware minimization, arXiv 2010.01412, Appendix A.1.
    """
    return noisy_label_bound(neighborhood_loss, n, 0.0, num_parameters, weight_norm, rho, delta)


def amplification_factor(alpha: npt.ArrayLike) -> Number:
    """1 / (1 - alpha) [eq:noise_amplification_factor], the factor by which wrong labels multiply the loss.

    Args:
        alpha: The share of wrong labels, in [0, 1).

    Examples:
        >>> amplification_factor(0.5)
        2.0
    """
    share = _real("alpha", alpha)
    _check("alpha", share, (share >= 0) & (share < 1), "a share of wrong labels in [0, 1)")
    return _number(1.0 / (1.0 - share))


def clean_samples_needed(
    num_parameters: float, weight_norm: float, rho: float, delta: float = 0.05, complexity: float = 1.0
) -> float:
    """How many right labels bring the complexity term down to `complexity`; it falls monotonically as they grow.

    Args:
        num_parameters: K.
        weight_norm: ||w||.
        rho: The radius, above 0.
        delta: In (0, 1).
        complexity: The wanted value of the term, above 0.
    """
    above_zero("complexity", complexity)
    given = {"num_parameters": num_parameters, "weight_norm": weight_norm, "rho": rho, "delta": delta}
    for name, value in given.items():
        number(name, value)  # here, an array of them is none

    def term(n: float) -> float:
        return float(sam_bound(0.0, n, num_parameters, weight_norm, rho, delta).complexity)

    high = 2.0
    while term(high) > complexity:
        if high > _MOST_SAMPLES:
            raise bad_value("complexity", complexity, f"a number that needs no more than {_MOST_SAMPLES:g} samples")
        high *= 2.0
    low = high / 2.0
    for _ in range(60):  # halves the bracket to the last bits of a double
        middle = 0.5 * (low + high)
        low, high = (middle, high) if term(middle) > complexity else (low, middle)
    return high


def _complexity(clean: Any, K: Any, w: Any, rho: Any, delta: Any) -> Any:
    """X. log(1 + r^2) is taken from log r, so that neither a huge nor a tiny ratio ||w|| / rho loses anything."""
    with np.errstate(divide="ignore"):  # log 0 = -inf is right for w = 0
        log_ratio = np.log(w) - np.log(rho) + np.log1p(np.sqrt(np.log(clean) / K))
    divergence = 0.25 * K * np.logaddexp(0.0, 2.0 * log_ratio)
    return divergence + 0.25 + np.log(clean) - np.log(delta) + 2.0 * np.log(6.0 * clean + 3.0 * K)


def _real(name: str, value: npt.ArrayLike) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise bad_value(name, value, "a number, or an array of numbers") from None


def _check(name: str, values: npt.NDArray[np.float64], fine: npt.NDArray[np.bool_], allowed: str) -> None:
    if not np.all(fine):
        raise bad_value(name, float(values[~np.asarray(fine)].flat[0]), allowed)


def _number(values: npt.NDArray[np.float64]) -> Number:
    return float(values) if values.ndim == 0 else values
