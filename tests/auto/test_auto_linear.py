"""The linear fits against closed forms, scikit-learn and hand-made data."""

from functools import partial

import numpy as np
import pytest
import torch
from auto_cases import clouds

from ncsam.auto.linear import RandomFeatures, discriminant, logistic, prune_label_issues


def data(features=6, samples=240):
    split = clouds(samples=samples, features=features).train
    return torch.from_numpy(split.inputs), torch.from_numpy(split.labels), split


@pytest.mark.parametrize("features", [6, 300])  # fewer and more than samples
@pytest.mark.parametrize("shrinkage", [0.2, 0.9])
def test_discriminant_is_the_formula(features, shrinkage):
    x, y, _ = data(features)
    layer = discriminant(x, y, 3, shrinkage=shrinkage)
    z = x.double().numpy()
    means = np.stack([z[y.numpy() == c].mean(axis=0) for c in range(3)])
    rest = z - means[y.numpy()]
    covariance = rest.T @ rest / len(z)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / features * np.eye(features)
    weight = np.linalg.solve(shrunk, means.T).T
    prior = np.log((np.bincount(y.numpy()) + 0.5) / (len(z) + 1.5))
    np.testing.assert_allclose(layer.weight, weight, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(layer.bias, prior - 0.5 * (weight * means).sum(axis=1), rtol=2e-3, atol=1e-3)


def test_discriminant_lives_with_an_empty_class():
    x, y, _ = data()
    layer = discriminant(x, y, 4, shrinkage=0.5)
    assert layer.log_probabilities(x).isfinite().all()
    assert (layer.log_probabilities(x).argmax(dim=1) != 3).all()


def test_logistic_is_scikit_learns():
    from sklearn.linear_model import LogisticRegression

    x, y, _ = data()
    layer = logistic(x.double(), y, 3, strength=20.0 / 240)
    theirs = LogisticRegression(C=1 / 20, tol=1e-8, max_iter=1000).fit(x.double().numpy(), y.numpy())
    np.testing.assert_allclose(
        layer.log_probabilities(x.double()).exp(), theirs.predict_proba(x.double().numpy()), atol=2e-4
    )


def test_random_features_fold_into_a_network_with_one_hidden_layer():
    x, y, _ = data()
    random = RandomFeatures.draw(x, 16, seed=3)
    hidden = random(x)
    torch.testing.assert_close(hidden.mean(dim=0), torch.zeros(16), atol=1e-5, rtol=0)
    layer = discriminant(hidden, y, 3, shrinkage=0.5)
    plain = torch.nn.functional.linear(x, random.weight, random.bias).relu()
    torch.testing.assert_close(
        random.raw(layer).log_probabilities(plain), layer.log_probabilities(hidden), atol=1e-4, rtol=1e-4
    )


def test_pruning_takes_out_wrong_labels_and_brings_the_means_home():
    x, y, split = data(samples=600)
    clean = torch.from_numpy(split.clean)
    given = []

    def fit(x, y, classes):
        given.append((x, y))
        return discriminant(x, y, classes, shrinkage=0.5)

    prune_label_issues(fit, 1, seed=0)(x, y, 3)
    assert len(given) == 6  # five inner folds and the last
    kept_x, kept_y = given[-1]
    rows = {tuple(row): number for number, row in enumerate(x.tolist())}
    kept = torch.tensor([rows[tuple(row)] for row in kept_x.tolist()])
    wrong = y != clean
    assert 0.15 < wrong.float().mean() < 0.25
    assert wrong[kept].float().mean() < 0.05
    assert torch.equal(y[kept], kept_y)
    right = prune_label_issues(partial(discriminant, shrinkage=0.5), 1, 0)(x, y, 3).log_probabilities(x).argmax(dim=1)
    assert (right == clean).float().mean() > 0.93


def test_pruning_never_empties_a_class():
    x = torch.tensor([[0.0], [0.1], [0.2], [0.1], [0.0], [0.1], [5.0], [5.1], [5.2], [5.0], [5.1], [0.1]])
    y = torch.tensor([0] * 6 + [1] * 5 + [2])  # the only sample of class 2 looks like class 0
    layer = prune_label_issues(partial(discriminant, shrinkage=0.5), 1, 0)(x, y, 3)
    assert layer.weight.isfinite().all()


@pytest.mark.parametrize(("count", "fits"), [(1, 1), (2, 3), (4, 5)])  # each held out by itself, and the last
def test_fewer_samples_than_inner_folds(count, fits):
    given = []

    def fit(x, y, classes):
        given.append(len(x))
        return discriminant(x, y, classes, shrinkage=0.5)

    x, y = torch.tensor([[0.0], [5.0], [0.1], [5.1]])[:count], torch.tensor([0, 1, 0, 1])[:count]
    layer = prune_label_issues(fit, 1, seed=0)(x, y, 2)
    assert layer.weight.isfinite().all()
    assert given == [count - 1] * (fits - 1) + [count]
