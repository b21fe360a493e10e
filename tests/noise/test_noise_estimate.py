"""The estimate against a slow reference, cases solved by hand, and noise of known rate."""

import numpy as np
import pytest

from ncsam import noise

RNG = np.random.default_rng(9)


def slow_joint(labels, predicted):
    """Confident learning, sample by sample."""
    size = predicted.shape[1]
    thresholds = [
        np.mean([p[c] for p, y in zip(predicted, labels, strict=True) if y == c]) if c in labels else np.inf
        for c in range(size)
    ]
    counts = np.zeros((size, size))
    for p, y in zip(predicted, labels, strict=True):
        confident = [c for c in range(size) if p[c] >= thresholds[c]]
        if confident:
            counts[y, max(confident, key=lambda c: p[c])] += 1
    joint = np.zeros((size, size))
    for c in range(size):
        row = counts[c] if counts[c].sum() else np.eye(size)[c]
        joint[c] = row / row.sum() * np.sum(np.asarray(labels) == c)
    return joint / len(labels)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_equals_a_slow_reference(alpha):
    labels = RNG.integers(0, 6, 500)
    labels[labels == 4] = 3  # a class without samples
    predicted = RNG.dirichlet(np.full(6, alpha), 500)
    found = noise.estimate_noise(labels, predicted)
    joint = slow_joint(labels.tolist(), predicted)
    assert np.allclose(found.joint, joint)
    assert found.joint.sum() == pytest.approx(1)
    assert np.allclose(found.joint.sum(axis=1), np.bincount(labels, minlength=6) / 500)
    assert found.rate == pytest.approx(1 - np.trace(joint))
    assert np.isnan(found.thresholds[4])


def test_a_case_by_hand():
    labels = [0, 0, 0, 1, 1]
    predicted = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]
    found = noise.estimate_noise(labels, predicted)
    assert np.allclose(found.thresholds, [0.6, 0.75])
    # Counted: samples 0 and 1 as (0, 0), 2 as (0, 1), 3 as (1, 1); sample 4 is below both thresholds.
    assert np.allclose(found.joint, [[0.4, 0.2], [0.0, 0.4]])
    assert found.rate == pytest.approx(0.2)
    assert np.allclose(found.transition, [[1.0, 0.0], [1 / 3, 2 / 3]])
    assert found.label_issues.tolist() == [False, False, True, False, False]
    assert str(found).splitlines()[1] == "wrong       about 20.0 %"


def test_perfect_predictions_give_the_exact_transition_matrix():
    clean = np.arange(3000) % 3
    made = noise.from_transition(clean, transition=[[0.8, 0.2, 0], [0.1, 0.6, 0.3], [0, 0, 1]], seed=0)
    found = noise.estimate_noise(made.noisy, np.eye(3)[clean])
    assert found.rate == pytest.approx(made.rate)
    assert np.allclose(found.transition, made.transition)
    assert (found.label_issues == made.mask).all()


def test_identical_probabilities_count_everybody():
    # A mean of equal numbers may round above them; the samples still reach their own threshold.
    found = noise.estimate_noise([0, 1] * 500, np.tile([0.1, 0.9], (1000, 1)))
    assert np.allclose(found.joint, [[0, 0.5], [0, 0.5]])
    assert np.isnan(found.transition[0]).all()


@pytest.mark.parametrize(
    ("name", "rate", "limit"), [("symmetric", 0.2, 0.03), ("symmetric", 0.4, 0.05), ("pairflip", 0.4, 0.12)]
)
def test_error_on_digits_with_known_noise(name, rate, limit):
    datasets = pytest.importorskip("sklearn.datasets")
    from sklearn.model_selection import cross_val_predict
    from sklearn.neighbors import KNeighborsClassifier

    inputs, clean = datasets.load_digits(return_X_y=True)
    made = noise.make(name, clean, rate, seed=0)
    predicted = cross_val_predict(KNeighborsClassifier(20), inputs, made.noisy, cv=5, method="predict_proba")
    found = noise.estimate_noise(made.noisy, predicted)
    assert abs(found.rate - made.rate) < limit
    assert np.abs(found.transition - made.transition).mean() < limit / 2
    # The label issues are worth looking at: most are wrong, and most of the wrong are among them.
    assert made.mask[found.label_issues].mean() > 0.7
    assert found.label_issues[made.mask].mean() > 0.7


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"probabilities\.shape=\(2,\)"):
        noise.estimate_noise([0, 1], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"probabilities\.shape=\(3, 2\)"):
        noise.estimate_noise([0, 1], np.full((3, 2), 0.5))
    with pytest.raises(ValueError, match=r"labels\[1\]=2"):
        noise.estimate_noise([0, 2], np.full((2, 2), 0.5))
    with pytest.raises(ValueError, match=r"sum\(\)=5"):
        noise.estimate_noise([0, 1], [[2.0, 3.0], [0.5, 0.5]])
