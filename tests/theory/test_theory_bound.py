"""The bound against the paper's formula written out plainly, and each inequality of its proof by numbers."""

import decimal
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from ncsam.theory import amplification_factor, clean_samples_needed, noisy_label_bound, sam_bound
from ncsam.theory.proof import (
    best_prior,
    confidence_penalty,
    gaussian_kl,
    kl_bound,
    penalty_bound,
    sam_radius,
    tail_radius,
)

LOSSES = st.floats(0, 1)
PARAMETERS = st.integers(1, 10**10)
NORMS = st.floats(0, 1e6)
RADII = st.floats(1e-3, 1e3)
DELTAS = st.floats(1e-6, 0.5)


def written_out(loss, n, alpha, K, w, rho, delta):
    """[eq:noisy_sam_bound_alpha] in the paper's own order, with no care for large or small numbers."""
    n_s = n * (1 - alpha)
    root = 1 + math.sqrt(math.log(n_s) / K)
    X = 0.25 * K * math.log(1 + w**2 / rho**2 * root**2) + 0.25 + math.log(n_s / delta) + 2 * math.log(6 * n_s + 3 * K)
    return loss / (1 - alpha), 1 / ((1 - alpha) * math.sqrt(n_s)), math.sqrt(X / (n_s - 1)), rho / math.sqrt(K) / root


@pytest.mark.parametrize(
    "arguments",
    [
        (0.1, 1000, 0.4, 50, 3.0, 0.5, 0.05),
        (0.0, 50_000, 0.0, 11_173_962, 40.0, 0.05, 0.01),
        (1.0, 12, 0.75, 1, 0.2, 2.0, 0.3),
        (0.7, 10**9, 0.6, 7, 1.0, 0.1, 1e-6),
    ],
)
def test_terms_are_those_of_the_theorem(arguments):
    bound = noisy_label_bound(*arguments)
    empirical, tail, complexity, sigma = written_out(*arguments)
    assert bound.empirical == pytest.approx(empirical, rel=1e-12)
    assert bound.gaussian_tail == pytest.approx(tail, rel=1e-12)
    assert bound.complexity == pytest.approx(complexity, rel=1e-12)
    assert bound.sigma == pytest.approx(sigma, rel=1e-12)
    assert bound.total == pytest.approx(empirical + tail + complexity, rel=1e-12)
    assert bound.clean_samples == pytest.approx(arguments[1] * (1 - arguments[2]))
    assert bound.vacuous == (bound.total >= 1)


def test_a_case_worked_by_hand():
    # n_s = 2, K = 1, w = 0: X = 1/4 + log(2 / .5) + 2 log 15, and the other terms are 1/.5 and 1/(.5 sqrt 2)
    bound = noisy_label_bound(1.0, 4, 0.5, 1, 0.0, 1.0, 0.5)
    assert bound.empirical == 2.0
    assert bound.gaussian_tail == pytest.approx(math.sqrt(2))
    assert bound.complexity == pytest.approx(math.sqrt(0.25 + 1.3862943611 + 5.4161004022), rel=1e-9)
    assert bound.sigma == pytest.approx(1 / (1 + math.sqrt(0.6931471806)), rel=1e-9)


def test_amplification_as_the_paper_has_it():
    assert round(amplification_factor(0.4), 2) == 1.67
    assert amplification_factor(0.6) == pytest.approx(2.5)
    assert amplification_factor(0.0) == 1.0
    np.testing.assert_allclose(amplification_factor([0.0, 0.5, 0.75]), [1, 2, 4])
    with pytest.raises(ValueError, match=r"alpha=1\.0"):
        amplification_factor(1.0)


@settings(deadline=None)
@given(LOSSES, st.integers(50, 10**8), PARAMETERS, NORMS, RADII, DELTAS, st.floats(0, 0.9), st.floats(0, 0.9))
def test_every_term_grows_with_alpha(loss, n, K, w, rho, delta, first, second):
    low, high = (noisy_label_bound(loss, n, alpha, K, w, rho, delta) for alpha in sorted((first, second)))
    for term in ("empirical", "gaussian_tail", "complexity", "total"):
        assert getattr(high, term) >= getattr(low, term) * (1 - 1e-12)


@settings(deadline=None)
@given(LOSSES, st.integers(2, 10**8), PARAMETERS, NORMS, RADII, DELTAS)
def test_without_noise_it_is_sams_bound_and_continuous_there(loss, n, K, w, rho, delta):
    clean = sam_bound(loss, n, K, w, rho, delta)
    assert noisy_label_bound(loss, n, 0.0, K, w, rho, delta) == clean
    near = noisy_label_bound(loss, n, 1e-12, K, w, rho, delta)
    assert near.total == pytest.approx(clean.total, rel=1e-9)
    assert clean.amplification == 1.0


def test_infinite_as_the_clean_samples_run_out():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alphas = 1 - (1 + np.array([1e-2, 1e-6, 1e-10])) / 100
        bounds = noisy_label_bound(0.1, 100, alphas, 10, 1.0, 0.1)
        assert np.all(np.diff(bounds.total) > 0)
        assert bounds.total[-1] > 1e5
        for n, alpha in ((100, 0.99), (2, 0.5), (1, 0.0), (10, 0.9), (1000, 0.999)):
            bound = noisy_label_bound(0.1, n, alpha, 10, 1.0, 0.1)
            assert bound.total > 1e6
            assert not math.isnan(bound.total)
        assert noisy_label_bound(0.1, 2, 0.5, 10, 1.0, 0.1).total == math.inf


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"neighborhood_loss": 1.1}, "neighborhood_loss"),
        ({"neighborhood_loss": -0.1}, "neighborhood_loss"),
        ({"neighborhood_loss": math.nan}, "neighborhood_loss"),
        ({"alpha": 1.0}, "alpha"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 0.999}, "alpha"),
        ({"n": 0}, "n"),
        ({"n": math.inf}, "n"),
        ({"num_parameters": 0}, "num_parameters"),
        ({"weight_norm": -1}, "weight_norm"),
        ({"weight_norm": math.inf}, "weight_norm"),
        ({"rho": 0}, "rho"),
        ({"delta": 0}, "delta"),
        ({"delta": 1}, "delta"),
        ({"rho": "large"}, "rho"),
        ({"alpha": [0.1, 0.2, 1.5]}, "alpha=1.5"),
    ],
)
def test_outside_the_domain_one_error_names_the_argument(change, name):
    fine = {
        "neighborhood_loss": 0.1,
        "n": 100,
        "alpha": 0.2,
        "num_parameters": 5,
        "weight_norm": 1,
        "rho": 0.1,
        "delta": 0.05,
    }
    with pytest.raises(ValueError, match=name):
        noisy_label_bound(**(fine | change))


@pytest.mark.parametrize(
    ("K", "w", "rho"), [(3 * 10**9, 1.0, 1e5), (10**12, 300.0, 0.05), (10**10, 1e-8, 1.0), (5, 1e9, 1e-9)]
)
def test_stable_for_billions_of_parameters(K, w, rho):
    with decimal.localcontext() as context:
        context.prec = 60
        D = decimal.Decimal
        n_s = D(600)
        root = 1 + (n_s.ln() / K).sqrt()
        X = D(K) / 4 * (1 + (D(w) / D(rho) * root) ** 2).ln() + D("0.25") + (n_s / D("0.05")).ln()
        exact = float(((X + 2 * (6 * n_s + 3 * K).ln()) / (n_s - 1)).sqrt())
    assert noisy_label_bound(0.1, 1000, 0.4, K, w, rho, 0.05).complexity == pytest.approx(exact, rel=1e-12)


def test_extreme_ratios_do_not_overflow():
    assert math.isfinite(noisy_label_bound(0.1, 1000, 0.4, 10**12, 1e300, 1e-300).total)
    nothing = noisy_label_bound(0.1, 1000, 0.4, 10, 1e-300, 1e300).complexity
    assert nothing == noisy_label_bound(0.1, 1000, 0.4, 10, 0.0, 1.0).complexity


def test_arrays_are_broadcast():
    alphas, radii = np.array([0.0, 0.2, 0.6]), np.array([[0.05], [0.5]])
    bounds = noisy_label_bound(0.1, 1000, alphas, 10, 2.0, radii)
    assert bounds.total.shape == (2, 3)
    assert bounds.vacuous.dtype == bool
    for i, j in np.ndindex(2, 3):
        single = noisy_label_bound(0.1, 1000, float(alphas[j]), 10, 2.0, float(radii[i, 0]))
        assert isinstance(single.total, float)
        assert isinstance(single.vacuous, bool)
        assert bounds.total[i, j] == single.total


@pytest.mark.parametrize(("K", "w", "rho"), [(10, 1.0, 0.5), (94_762, 12.0, 0.05)])
def test_samples_needed_bring_the_complexity_to_one(K, w, rho):
    needed = clean_samples_needed(K, w, rho)
    assert sam_bound(0.0, needed, K, w, rho).complexity == pytest.approx(1.0, rel=1e-9)
    assert sam_bound(0.0, needed * 1.01, K, w, rho).complexity < 1
    half = clean_samples_needed(K, w, rho, complexity=0.5)
    assert sam_bound(0.0, half, K, w, rho).complexity == pytest.approx(0.5, rel=1e-9)


# --- the proof, inequality by inequality


@pytest.mark.parametrize(("K", "sigma_q", "sigma_p"), [(3, 0.5, 2.0), (40, 1.0, 1.0), (7, 2.0, 0.3)])
def test_kl_of_two_gaussians(K, sigma_q, sigma_p):
    torch.manual_seed(1)
    mu = torch.randn(K, dtype=torch.float64)

    def normal(mean, sigma):
        return torch.distributions.Independent(torch.distributions.Normal(mean, torch.full_like(mean, sigma)), 1)

    Q, P = normal(mu, sigma_q), normal(torch.zeros_like(mu), sigma_p)
    exact = float(torch.distributions.kl_divergence(Q, P))
    assert gaussian_kl(float(mu.norm()), sigma_q, sigma_p, K) == pytest.approx(exact, rel=1e-12)
    x = Q.sample((50_000,))
    draws = Q.log_prob(x) - P.log_prob(x)
    assert float(draws.mean()) == pytest.approx(exact, abs=5 * float(draws.std()) / math.sqrt(len(draws)) + 1e-12)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**6), st.floats(2, 1e6), st.floats(0, 1e4), st.floats(1e-3, 10), DELTAS)
def test_grid_of_priors_and_its_union_penalty(K, n_s, w, rho, delta):
    sigma = rho / (math.sqrt(K) + math.sqrt(math.log(n_s)))
    prior = best_prior(w, sigma, K, n_s)
    if prior is None:  # beyond the grid the bound is empty: its complexity term alone is above 1
        assert sam_bound(0.0, n_s, K, w, rho, delta).complexity > 1
        return
    assert prior.place >= 1
    best = sigma**2 + w**2 / K
    assert best * (1 - 1e-9) <= prior.sigma**2 <= best * math.exp(1 / K) * (1 + 1e-9)
    # the grid's best is at most 1/2 above the very best prior, which is what [eq:app_kl_bound] says
    least = 0.5 * K * math.log1p(w**2 / (K * sigma**2))
    kl = gaussian_kl(w, sigma, prior.sigma, K)
    slack = 1e-7 * (1 + K)
    assert least - slack <= kl <= kl_bound(w, sigma, K) + slack
    assert kl_bound(w, sigma, K) == pytest.approx(least + 0.5)
    assert confidence_penalty(prior.place, n_s, delta) <= penalty_bound(K, n_s, delta)


def test_union_penalty_holds_for_the_last_place_of_the_grid():
    # w = 0 takes the smallest variance, the largest j
    for K in (1, 2, 10, 10**4, 10**8):
        for n_s in (2.0, 10.0, 1e3, 1e6):
            place = best_prior(0.0, 0.3, K, n_s).place
            assert place == pytest.approx(K * np.logaddexp(0, 4 * n_s / K), abs=1.5, rel=1e-6)
            assert confidence_penalty(place, n_s, 0.05) <= penalty_bound(K, n_s, 0.05)


def test_confidences_of_the_grid_sum_to_delta():
    shares = [math.exp(math.log(100) - confidence_penalty(j, 100, 0.05)) for j in range(1, 20_001)]
    assert sum(shares) < 0.05
    assert sum(shares) == pytest.approx(0.05, rel=1e-4)


@settings(deadline=None)
@given(st.integers(1, 10**8), st.floats(2, 1e8), NORMS, RADII, DELTAS)
def test_complexity_follows_from_kl_and_penalty(K, n_s, w, rho, delta):
    """[eq:app_pac_bayes] with both inequalities put in; the paper leaves out a half before the logarithms."""
    bound = sam_bound(0.0, n_s, K, w, rho, delta)
    proved = (kl_bound(w, bound.sigma, K) + penalty_bound(K, n_s, delta)) / (2 * (n_s - 1))
    stated = bound.complexity**2
    assert proved <= stated
    assert stated - proved == pytest.approx(penalty_bound(K, n_s, delta) / (2 * (n_s - 1)), rel=1e-6, abs=1e-9 * stated)


@pytest.mark.parametrize("K", [1, 3, 30, 1000])
@pytest.mark.parametrize("u", [0.1, 1.0, 3.0])
def test_laurent_massart_tail(K, u):
    radius = tail_radius(0.7, K, u)
    assert chi2.sf((radius / 0.7) ** 2, K) <= math.exp(-u)
    draws = 400_000 // K
    eps = 0.7 * np.random.default_rng(K).standard_normal((draws, K))
    share = float(np.mean(np.linalg.norm(eps, axis=1) >= radius))
    assert share <= math.exp(-u) + 4 * math.sqrt(math.exp(-u) / draws)
    assert share == pytest.approx(chi2.sf((radius / 0.7) ** 2, K), abs=4 * math.sqrt(0.25 / draws))


@settings(deadline=None)
@given(st.integers(1, 10**8), st.floats(1.001, 1e9), RADII)
def test_sams_radius_is_above_the_tails(K, n_s, rho):
    sigma = sam_bound(0.0, n_s, K, 1.0, rho).sigma
    assert sam_radius(sigma, K, n_s) == pytest.approx(rho)
    assert tail_radius(sigma, K, math.log(math.sqrt(n_s))) <= rho * (1 + 1e-12)


@pytest.mark.parametrize(("K", "n_s"), [(1, 9), (4, 100), (50, 400)])
def test_from_expectation_to_maximum(K, n_s):
    """E L(w + eps) <= max over the ball of L + 1 / sqrt(n_s), for losses in [0, 1] [eq:app_expect_to_max]."""
    rho = 0.8
    sigma = sam_bound(0.0, n_s, K, 1.0, rho).sigma
    rng = np.random.default_rng(0)
    eps = sigma * rng.standard_normal((100_000, K))
    lengths = np.linalg.norm(eps, axis=1)
    outside = float(np.mean(lengths > rho))  # the hardest loss: 0 in the ball, 1 outside, whose maximum is 0
    assert outside <= 1 / math.sqrt(n_s)
    direction = rng.standard_normal(K)
    direction /= np.linalg.norm(direction)
    for slope in (0.5, 3.0, 50.0):  # a smooth loss that rises in one direction: its maximum lies at rho
        expected = float(np.mean(1 / (1 + np.exp(-slope * (eps @ direction - rho)))))
        assert expected <= 0.5 + 1 / math.sqrt(n_s)


@settings(deadline=None)
@given(st.lists(LOSSES, min_size=1, max_size=20), st.lists(LOSSES, min_size=0, max_size=20))
def test_from_clean_to_mixed_risk(right, wrong):
    """L_S <= L_M / (1 - alpha), with equality where the wrong labels cost nothing [eq:app_clean_upper]."""
    n = len(right) + len(wrong)
    alpha = len(wrong) / n
    assert np.mean(right) <= np.mean(right + wrong) * amplification_factor(alpha) + 1e-12
    free = np.mean(right + [0.0] * len(wrong)) * amplification_factor(alpha)
    assert free == pytest.approx(np.mean(right))
