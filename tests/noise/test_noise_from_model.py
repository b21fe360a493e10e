"""Noise from a model's own confusions."""

import numpy as np
import pytest

from ncsam import noise

RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 5, 4000)
PREDICTED = RNG.dirichlet(np.full(5, 0.5), 4000)


def test_hardest_takes_the_largest_wrong_probabilities():
    record = noise.from_model(LABELS, 0.25, probabilities=PREDICTED)
    outside = PREDICTED.copy()
    outside[np.arange(4000), LABELS] = -1
    assert record.mask.sum() == 1000
    assert (record.noisy[record.mask] == outside.argmax(axis=1)[record.mask]).all()
    assert outside.max(axis=1)[record.mask].min() >= outside.max(axis=1)[~record.mask].max()


def test_hardest_flips_even_where_the_model_is_certain():
    record = noise.from_model([0, 1, 2], 1.0, probabilities=np.eye(3))
    assert record.mask.all()


def test_sampled_flips_in_proportion_to_doubt():
    record = noise.from_model(LABELS, 0.3, probabilities=PREDICTED, pick="sampled", seed=1)
    doubt = 1 - PREDICTED[np.arange(4000), LABELS]
    chance = record.flip_probability
    assert chance.mean() == pytest.approx(0.3)
    assert np.allclose(chance / doubt, (chance / doubt)[0])
    assert abs(record.rate - 0.3) < 4 * np.sqrt((chance * (1 - chance)).mean() / 4000)


def test_sampled_caps_at_certainty_and_keeps_the_mean():
    record = noise.from_model(LABELS, 0.95, probabilities=PREDICTED, pick="sampled")
    chance = record.flip_probability
    assert chance.mean() == pytest.approx(0.95)
    assert chance.max() == 1
    doubt = 1 - PREDICTED[np.arange(4000), LABELS]
    free = chance < 1
    assert free.any()
    factor = (chance / doubt)[free]
    assert np.allclose(factor, factor[0])
    assert (factor[0] * doubt[~free] >= 1 - 1e-9).all()


def test_sampled_labels_follow_the_mass_outside():
    predicted = np.tile([0.5, 0.1, 0.4], (30_000, 1))
    record = noise.from_model(np.zeros(30_000, int), 0.5, probabilities=predicted, pick="sampled")
    frequency = (record.noisy[record.mask] == 2).mean()
    assert abs(frequency - 0.8) < 5 * np.sqrt(0.16 / 15_000)


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"rate=0.5.*at most 0,"):
        noise.from_model([0, 1], 0.5, probabilities=np.eye(2), pick="sampled")
    with pytest.raises(ValueError, match=r"'hard'.*'hardest'"):
        noise.from_model([0, 1], 0.5, probabilities=np.eye(2), pick="hard")
    with pytest.raises(ValueError, match=r"probabilities\.shape=\(3, 2\)"):
        noise.from_model([0, 1], 0.5, probabilities=np.ones((3, 2)) / 2)
    with pytest.raises(ValueError, match=r"labels\[1\]=2"):
        noise.from_model([0, 2], 0.5, probabilities=np.eye(2))
    with pytest.raises(ValueError, match=r"probabilities\[0\]\.sum\(\)=4"):
        noise.from_model([0, 1], 0.5, probabilities=[[3.0, 1.0], [0.5, 0.5]])
