"""The posterior of the true class: right where its model holds, and not stated where predictions are too poor."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ncsam.issues.calibration import _fit, best_stiffness, calibrated, minimize
from ncsam.issues.posterior import assess
from ncsam.issues.scores import SCORES, label_quality, ranks


def corrupted(n: int, transition: np.ndarray, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True classes, observed labels, and the exact P(label | z) of a predictor whose P(class | z) is `spread` wide."""
    generator = np.random.default_rng(seed)
    size = len(transition)
    logits = generator.normal(0, spread, (n, size))
    truth_given_z = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    truth = (truth_given_z.cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    labels = (transition[truth].cumsum(axis=1) > generator.random((n, 1))).argmax(axis=1)
    return truth, labels, truth_given_z @ transition


SYMMETRIC = np.full((4, 4), 0.1) + 0.6 * np.eye(4)
PAIRED = 0.75 * np.eye(4) + 0.25 * np.roll(np.eye(4), 1, axis=1)


@pytest.mark.parametrize("transition", [SYMMETRIC, PAIRED, np.eye(4)])
def test_stated_shares_are_the_real_ones(transition: np.ndarray) -> None:
    truth, labels, rows = corrupted(4000, transition, 10.0, seed=1)
    found = assess(labels, rows)
    assert found.reliable
    wrong = labels != truth
    worst = np.argsort(SCORES["self_confidence"](labels, rows))
    for count in (400, 1000, 4000):
        first = worst[:count]
        assert found.p_wrong[first].mean() == pytest.approx(wrong[first].mean(), abs=0.1)
        assert found.p_suggested[first].mean() == pytest.approx((found.suggested == truth)[first].mean(), abs=0.1)
    assert (found.suggested != labels).all()
    assert ((found.other >= 0) & (found.other <= 1)).all()
    assert found.disagreement(worst[:100]) == ""


def test_where_the_two_estimates_differ_nothing_is_stated() -> None:
    """All labels are right and some samples hard: confident learning takes the hard ones for wrong."""
    _, labels, rows = corrupted(4000, np.eye(4), 3.0, seed=1)
    found = assess(labels, rows)
    worst = np.argsort(SCORES["self_confidence"](labels, rows))
    assert found.reliable
    assert "two estimates disagree (of the first 100 labels, " in found.disagreement(worst[:100])


def test_calibration_undoes_a_temperature_and_a_shift() -> None:
    _, labels, rows = corrupted(6000, SYMMETRIC, 4.0, seed=2)
    bent = rows**3 * np.array([1.0, 2.0, 1.0, 0.5])
    bent /= bent.sum(axis=1, keepdims=True)
    fitted, scale = calibrated(bent, labels)
    assert scale == pytest.approx(1 / 3, abs=0.03)
    assert np.abs(fitted - rows).max() < 0.06


def test_a_model_that_has_learned_little_is_not_reliable() -> None:
    _, labels, rows = corrupted(2000, np.eye(4), 0.3, seed=3)  # all labels are right, and hard to predict
    found = assess(labels, rows)
    assert not found.reliable
    assert found.agreement < 0.45
    assert "too few to tell wrong labels from hard samples" in found.reason


def test_an_overconfident_model_is_not_reliable() -> None:
    _, labels, rows = corrupted(2000, SYMMETRIC, 4.0, seed=4)
    bent = rows**6
    found = assess(labels, bent / bent.sum(axis=1, keepdims=True))
    assert not found.reliable
    assert "overconfident" in found.reason


def test_a_model_that_has_memorized_is_not_reliable() -> None:
    _, labels, rows = corrupted(2000, SYMMETRIC, 10.0, seed=4)
    agreement = float((rows.argmax(axis=1) == labels).mean())
    assert assess(labels, rows, agreement + 0.19).reliable
    found = assess(labels, rows, agreement + 0.21)
    assert not found.reliable
    assert f"memorized labels (it fits {100 * agreement + 21:.0f} % of those it was trained on" in found.reason


def test_a_matrix_fixes_classes_that_are_confused() -> None:
    """Two of four classes are swapped: no scale and shift can fix that, and the labels choose the matrix."""
    _, labels, rows = corrupted(3000, np.eye(4), 3.0, seed=6)
    swapped = rows[:, [1, 0, 2, 3]]
    stiffness, *_ = best_stiffness(swapped, labels)
    assert np.isfinite(stiffness)
    fitted, _ = calibrated(swapped, labels, stiffness=stiffness)
    assert np.abs(fitted - rows).mean() < 0.05
    assert np.abs(calibrated(swapped, labels)[0] - rows).mean() > 0.1


def test_a_sample_s_own_label_does_not_move_its_own_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    _, labels, rows = corrupted(300, SYMMETRIC, 3.0, seed=7)
    part = np.arange(300) % 3
    monkeypatch.setattr("ncsam.issues.calibration.stratified_folds", lambda labels, parts: part)
    changed = labels.copy()
    changed[part == 1] = 0
    one, two = (calibrated(rows, given, stiffness=1.0)[0] for given in (labels, changed))
    assert np.array_equal(one[part == 1], two[part == 1])
    assert not np.allclose(one[part == 0], two[part == 0])


def test_scores_by_hand() -> None:
    rows = np.array([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]])
    labels = np.array([0, 1])
    assert SCORES["self_confidence"](labels, rows) == pytest.approx([0.7, 0.2])
    assert SCORES["normalized_margin"](labels, rows) == pytest.approx([0.75, 0.3])
    entropy = [-(p * np.log(p)).sum() / np.log(3) for p in rows]
    weighted = np.array([entropy[0] / 0.7, entropy[1] / 0.2])
    assert SCORES["confidence_weighted_entropy"](labels, rows) == pytest.approx(np.log(1 + weighted) / weighted)
    assert SCORES["odds"](labels, rows) == pytest.approx([0.7 / 0.9, 0.2 / 0.8])


def test_label_quality_is_the_mean_of_two_ranks() -> None:
    assert ranks(np.array([0.5, 0.1, 0.5, 0.9])).tolist() == [2.5, 1.0, 2.5, 4.0]
    rows = np.array([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6], [0.4, 0.5, 0.1]])  # odds .78, .25, .44
    wrong = np.array([0.9, 0.2, 0.3])
    found = label_quality(np.array([0, 1, 0]), rows, wrong)
    mean = np.array([1 + 2 * 3, 3 + 2 * 1, 2 + 2 * 2]) / 3
    assert found == pytest.approx((mean - 0.5) / 3)


def test_a_label_without_any_probability_is_of_no_quality_and_no_division_fails() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert SCORES["odds"](np.array([0, 1]), rows) == pytest.approx([1.0, 0.0])


def test_scores_are_those_of_cleanlab() -> None:
    rank = pytest.importorskip("cleanlab.rank", reason="cleanlab is not installed")
    _, labels, rows = corrupted(300, SYMMETRIC, 2.0, seed=5)
    for name in ("self_confidence", "normalized_margin"):
        theirs = rank.get_label_quality_scores(labels, rows, method=name)
        assert SCORES[name](labels, rows) == pytest.approx(theirs, abs=1e-6)
    theirs = rank.get_label_quality_scores(labels, rows, method="confidence_weighted_entropy")
    order = np.argsort(SCORES["confidence_weighted_entropy"](labels, rows))
    assert (np.diff(theirs[order]) >= -1e-9).all()


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"probabilities.shape=\(2, 3\)"):
        assess([0, 1, 2], np.ones((2, 3)) / 3)


def test_minimize_finds_the_minimum_of_a_valley() -> None:
    """Rosenbrock's function, whose minimum is at (1, 1)."""

    def valley(x):
        a, b = x
        return (1 - a) ** 2 + 100 * (b - a * a) ** 2, np.array([2 * (a - 1) - 400 * a * (b - a * a), 200 * (b - a * a)])

    np.testing.assert_allclose(minimize(valley, np.array([-1.2, 1.0])), [1, 1], atol=1e-4)


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("stiffness", [np.inf, 1.0])
def test_a_fitted_map_equals_that_of_torchs_lbfgs(noisy: bool, stiffness: float) -> None:
    generator = np.random.default_rng(0)
    logs = np.log(generator.dirichlet(np.ones(4), 300))
    labels = np.where(generator.random(300) < 0.3, logs.argmax(axis=1), generator.integers(0, 4, 300))
    noise = 0.6 * np.eye(4) + 0.1 if noisy else None
    scale, mapped = _fit(logs, labels, noise, stiffness)

    x, transition = torch.from_numpy(logs), torch.eye(4, dtype=torch.float64) if noise is None else torch.tensor(noise)
    log_scale, shift = torch.zeros(1, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    matrix = torch.zeros(4, 4, dtype=torch.float64)
    free = [log_scale, shift, *([matrix] if np.isfinite(stiffness) else [])]
    for each in free:
        each.requires_grad_()
    optimizer = torch.optim.LBFGS(free, max_iter=500, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def objective():
        optimizer.zero_grad()
        q = (log_scale.exp() * x + shift + x @ matrix).softmax(dim=1) @ transition
        loss = -q[torch.arange(300), torch.from_numpy(labels)].log().mean() + (shift**2).sum() / 1000
        loss = loss + (stiffness / 300 * (matrix**2).sum() if np.isfinite(stiffness) else 0)
        loss.backward()
        return loss

    optimizer.step(objective)
    expected = (log_scale.exp() * x + shift + x @ matrix).softmax(dim=1).detach().numpy()
    np.testing.assert_allclose(mapped(logs), expected, atol=2e-4)
    assert scale == pytest.approx(float(log_scale.detach().exp()), rel=2e-3)


def test_labels_that_predictions_give_away_leave_the_scale_finite() -> None:
    rows = np.full((40, 2), 0.49)
    rows[np.arange(40), np.arange(40) % 2] = 0.51
    fitted, scale = calibrated(rows / rows.sum(axis=1, keepdims=True), np.arange(40) % 2)
    assert np.isfinite(scale)
    assert (fitted.max(axis=1) > 0.99).all()
