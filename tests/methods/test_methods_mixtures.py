"""The mixtures against scikit-learn, true parameters and separable values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture

from ncsam.methods.mcorrection import probably_noisy
from ncsam.methods.mixtures import _two_means, beta_posterior, gaussian_posterior, losses_under, scaled


def losses(seed: int, share: float = 0.6, count: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    clean = rng.random(count) < share
    values = np.where(clean, rng.normal(0.15, 0.06, count), rng.normal(0.6, 0.15, count))
    return values, clean


@pytest.mark.parametrize("seed", range(3))
def test_gaussians_are_scikit_learns(seed):
    values, _ = losses(seed)
    theirs = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(values[:, None])
    expected = theirs.predict_proba(values[:, None])[:, theirs.means_.argmin()]
    np.testing.assert_allclose(gaussian_posterior(values), expected, atol=1e-6)


def test_gaussians_divide_what_is_separable():
    values = np.concatenate((np.linspace(0, 0.1, 70), np.linspace(0.9, 1.0, 30)))
    posterior = gaussian_posterior(values)
    assert (posterior[:70] > 0.999).all()
    assert (posterior[70:] < 0.001).all()


def test_gaussians_do_not_choke_on_equal_values():
    assert np.isfinite(gaussian_posterior(np.zeros(10))).all()


@pytest.mark.parametrize("seed", range(3))
def test_two_means_is_the_best_of_all_cuts(seed):
    values = np.random.default_rng(seed).gamma(1.0, size=40)
    lower = _two_means(values)

    def spread(part):
        return ((part - part.mean()) ** 2).sum()

    ranked = np.sort(values)
    best = min(spread(ranked[:cut]) + spread(ranked[cut:]) for cut in range(1, 40))
    assert spread(values[lower]) + spread(values[~lower]) == pytest.approx(best)
    assert values[lower].max() < values[~lower].min()


def test_betas_find_the_parameters_they_were_drawn_from():
    rng = np.random.default_rng(0)
    noisy = rng.random(20000) < 0.4
    values = np.where(noisy, rng.beta(6, 3, 20000), rng.beta(2, 8, 20000))
    grid = np.linspace(0.05, 0.7, 14)
    truth = 0.4 * stats.beta.pdf(grid, 6, 3)
    truth = truth / (truth + 0.6 * stats.beta.pdf(grid, 2, 8))
    found = np.interp(grid, np.sort(values), np.sort(beta_posterior(values, steps=400)))
    np.testing.assert_allclose(found, truth, atol=0.03)


def test_beta_posterior_never_falls_beyond_its_maximum():
    rng = np.random.default_rng(1)
    values = np.concatenate((rng.beta(2, 9, 500), rng.beta(40, 20, 300), [0.99, 1.0]))
    posterior = beta_posterior(values)
    top = posterior.argmax()
    assert (posterior[values >= values[top]] == posterior[top]).all()
    assert posterior[-1] == posterior.max()


def test_noisy_samples_have_large_losses_by_the_beta_mixture():
    values, clean = losses(0)
    found = probably_noisy(torch.from_numpy(values)) > 0.5
    assert (found.numpy() == ~clean).mean() > 0.95


def test_losses_and_scaling():
    p = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    found = losses_under(p, torch.tensor([1, 1]))
    torch.testing.assert_close(found, torch.tensor([-np.log(0.75), -np.log(1e-12)], dtype=torch.float32))
    assert scaled(torch.tensor([2.0, 3.0, 6.0])).tolist() == [0.0, 0.25, 1.0]
    assert scaled(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]
