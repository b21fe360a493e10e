"""Closed-form classifiers against their formulas, slow references and scikit-learn; saved, loaded and exported."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncsam import classifiers, models
from ncsam.classifiers import kernel, linear, smooth
from ncsam.classifiers.fit import confident_issues, fit_masked
from ncsam.classifiers.trees import _rounded_down
from ncsam.models.closed_form import gaussian_kernel


def clouds(samples: int = 240, features: int = 6, classes: int = 3, wrong: float = 0.0, seed: int = 0) -> Any:
    """Standardized Gaussian clouds; `wrong` of the labels are replaced by random ones."""
    generator = np.random.default_rng(seed)
    clean = generator.integers(0, classes, samples)
    x = 2.0 * np.eye(classes, features)[clean] + 0.7 * generator.standard_normal((samples, features))
    given = np.where(generator.random(samples) < wrong, generator.integers(0, classes, samples), clean)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(given), torch.from_numpy(clean)


@pytest.mark.parametrize("features", [6, 300])  # fewer and more than samples
@pytest.mark.parametrize("shrinkage", [0.2, 0.9, 1.0])
def test_lda_is_the_formula(features: int, shrinkage: float) -> None:
    x, y, _ = clouds(features=features)
    state = linear.lda(x, y, 3, shrinkage=shrinkage)
    z = x.double().numpy()
    means = np.stack([z[y.numpy() == c].mean(axis=0) for c in range(3)])
    rest = z - means[y.numpy()]
    covariance = rest.T @ rest / len(z)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / features * np.eye(features)
    weight = np.linalg.solve(shrunk, means.T).T
    prior = np.log((np.bincount(y.numpy()) + 1) / (len(z) + 3))
    np.testing.assert_allclose(state["weight"], weight, rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(state["bias"], prior - 0.5 * (weight * means).sum(axis=1), rtol=2e-3, atol=1e-3)


def test_lda_predicts_as_scikit_learns() -> None:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    x, y, _ = clouds(samples=900)
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3).fit(x.numpy(), y.numpy())
    ours = classifiers.fit("lda", x, y, 3, shrinkage=0.3, unit=False).network(3)(x).argmax(dim=1)
    assert (ours.numpy() == theirs.predict(x.numpy())).mean() > 0.99  # priors and the shrunk trace differ slightly


def test_ridge_is_scikit_learns() -> None:
    from sklearn.linear_model import Ridge

    x, y, _ = clouds()
    penalty = 0.5
    centered = x - x.mean(dim=0)
    alpha = penalty * len(x) * float(centered.square().mean())
    theirs = Ridge(alpha=alpha).fit(x.double().numpy(), np.eye(3)[y.numpy()])
    state = linear.ridge(x, y, 3, penalty=penalty)
    np.testing.assert_allclose(state["weight"], theirs.coef_, atol=1e-4)
    np.testing.assert_allclose(state["bias"], theirs.intercept_, atol=1e-4)


def test_logistic_is_scikit_learns() -> None:
    from sklearn.linear_model import LogisticRegression

    x, y, _ = clouds(wrong=0.3)
    state = linear.logistic(x.double(), y, 3, penalty=20.0 / 240)
    theirs = LogisticRegression(C=1 / 20, tol=1e-8, max_iter=1000).fit(x.double().numpy(), y.numpy())
    ours = (x.double() @ state["weight"].T + state["bias"]).softmax(dim=1)
    np.testing.assert_allclose(ours, theirs.predict_proba(x.double().numpy()), atol=5e-4)


def test_kernel_ridge_is_scikit_learns() -> None:
    from sklearn.kernel_ridge import KernelRidge

    x, y, _ = clouds(samples=90)
    state = kernel.kernel_ridge(x, y, 3, penalty=0.7)
    distances = (x.double().unsqueeze(0) - x.double().unsqueeze(1)).square().sum(dim=2)
    assert float(state["width"]) == pytest.approx(float(distances.mean()), rel=1e-5)
    targets = np.eye(3)[y.numpy()]
    theirs = KernelRidge(alpha=0.7, kernel="rbf", gamma=1 / float(distances.mean())).fit(
        x.double().numpy(), targets - targets.mean(axis=0)
    )
    network = classifiers.Member("kernel", {"unit": False}, {**state, "scale": torch.ones(())}).network(3)
    np.testing.assert_allclose(network(x), theirs.predict(x.double().numpy()) + targets.mean(axis=0), atol=5e-4)


def test_landmarks_at_all_rows_are_the_exact_solution(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, _ = clouds(samples=60)
    targets = torch.nn.functional.one_hot(y, 3).float()
    (exact,) = kernel.KernelSystem(x, targets, x, 9.0).solve(0.5)
    (same,) = kernel.KernelSystem(x, targets, x.clone(), 9.0).solve(0.5)
    k = gaussian_kernel(x, x, 9.0)
    torch.testing.assert_close(k @ exact, k @ same, atol=1e-2, rtol=1e-2)
    monkeypatch.setattr(kernel, "EXACT", 50)
    monkeypatch.setattr(kernel, "LANDMARKS", 40)
    rows = kernel.landmarks(x)
    assert rows.shape == (40, 6)
    assert torch.equal(rows, kernel.landmarks(x))
    found = classifiers.fit("kernel", x, y, 3).network(3)(x).argmax(dim=1)
    assert (found == y).float().mean() > 0.9
    smooth = classifiers.cross_fit("smooth", x, y, 3)
    assert smooth.member.state["rows"].shape == (40, 6)
    assert (smooth.member.network(3)(x).argmax(dim=1) == y).float().mean() > 0.9


def test_prototypes_are_mean_directions() -> None:
    x, y, _ = clouds()
    network = classifiers.fit("prototypes", x, y, 3).network(3)
    z = x.double().numpy() - x.double().numpy().mean(axis=0)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    means = np.stack([z[y.numpy() == c].mean(axis=0) for c in range(3)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(network(x), z @ means.T, atol=1e-5)


@pytest.mark.parametrize("elements", [2**24, 150, 1])  # all rows at once, three, one
def test_knn_is_the_slow_reference(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr("ncsam.models.knn._ELEMENTS", elements)
    x, y, _ = clouds(samples=50)
    network = classifiers.fit("knn", x, y, 3, k=7).network(3)
    scores = network(x)
    z = x.double().numpy() - x.double().numpy().mean(axis=0)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    for i in range(10):
        near = np.argsort(-(z @ z[i]))[:7]
        weight = np.maximum(z[near] @ z[i], 0) + 1e-3
        votes = np.array([weight[y.numpy()[near] == c].sum() for c in range(3)]) / weight.sum()
        np.testing.assert_allclose(scores[i], np.log((votes + 1 / 21) / (1 + 1 / 7)), atol=1e-4)


@pytest.mark.parametrize("extra", [False, True])
def test_forest_is_scikit_learns(extra: bool) -> None:
    from sklearn.datasets import load_digits
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    x, y = load_digits(return_X_y=True)
    seen = (y != 3) & (np.arange(len(y)) < 900)
    rows = torch.from_numpy(x.astype(np.float32))
    member = classifiers.fit("forest", rows[seen], torch.from_numpy(y[seen]), 10, trees=20, extra=extra)
    kind = ExtraTreesClassifier if extra else RandomForestClassifier
    theirs = kind(20, min_samples_leaf=5, random_state=0).fit(x[seen].clip(-10, 10).astype(np.float32), y[seen])
    wanted = np.zeros((len(x), 10))
    wanted[:, theirs.classes_] = theirs.predict_proba(x.clip(-10, 10).astype(np.float32))
    network: Any = member.network(10)
    np.testing.assert_allclose(network.probabilities(rows.clamp(-10, 10)), wanted, atol=1e-5)
    assert (wanted[:, 3] == 0).all()


@given(st.floats(-1e30, 1e30), st.floats(-(2.0**99), 2.0**99, width=32))
def test_a_threshold_rounded_down_decides_alike(threshold: float, x: float) -> None:
    lower = _rounded_down(np.array([threshold]))[0]
    assert (np.float32(x) <= lower) == (x <= threshold)
    assert (lower <= lower) == (float(lower) <= threshold)


@pytest.mark.parametrize("model", models.closed_form_names())
def test_every_model_is_fitted_saved_loaded_and_exported(model: str, tmp_path: Any) -> None:
    x, y, clean = clouds(wrong=0.3)
    options: dict[str, Any] = {"trees": 10} if model in ("forest", "smooth_table") else {}
    found = classifiers.cross_fit(model, x, y, 4, **options)  # class 3 has no sample
    network = found.member.network(4)
    assert getattr(network, "closed_form", False)
    logits = network(x)
    assert logits.shape == (240, 4)
    assert (logits.argmax(dim=1) == clean).float().mean() > 0.8
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1.0, atol=1e-6)
    assert (found.probabilities.argmax(axis=1) == clean.numpy()).mean() > 0.8
    torch.save(found.member.state, tmp_path / "state.pt")
    again = models.create(model, 4, 1, **options)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(again.eval()(x), logits)
    assert torch.equal(again.float()(x), logits)
    batch = {0: torch.export.Dim("batch", min=2)}
    exported = torch.export.export(network, (x[:5],), dynamic_shapes=(batch,)).module()
    torch.testing.assert_close(exported(x), logits)


@pytest.mark.parametrize("model", models.closed_form_names())
def test_a_label_does_not_reach_the_prediction_of_its_own_row(model: str) -> None:
    x, y, _ = clouds(samples=60)
    options: dict[str, Any] = {"trees": 10} if model in ("forest", "smooth_table") else {}
    folds = np.arange(60) % 5
    changed = y.clone()
    changed[0] = (y[0] + 1) % 3
    one, two = (classifiers.cross_fit(model, x, labels, 3, folds=folds, **options) for labels in (y, changed))
    if model == "smooth":  # through the calibration alone, which all rows share
        np.testing.assert_allclose(one.probabilities[0], two.probabilities[0], atol=0.1)
    else:
        ranks = [np.argsort(fitted.probabilities[0]) for fitted in (one, two)]
        np.testing.assert_array_equal(*ranks)


def test_label_issues_of_tables_are_ranked_by_the_forests() -> None:
    x, y, _ = clouds(samples=120, wrong=0.3)
    folds = np.arange(120) % 5
    found = classifiers.cross_fit("smooth_table", x, y, 3, folds=folds, trees=10)
    view = smooth.normal_scores(x)(x)
    members = (("forest", {"trees": 10, "leaf": 5, "extra": True}), ("forest", {"trees": 10, "leaf": 5}))
    assigned = torch.from_numpy(folds)
    kept = ~smooth._issues((*members, ("lda", {"shrinkage": 0.8, "unit": False})), view, y, 3, assigned)
    forests = [
        fit_masked("forest", view, y, 3, assigned, mask, trees=10, leaf=5, extra=True).probabilities
        for mask in (torch.ones(120, dtype=torch.bool), kept)
    ]
    ranked = classifiers.issue_probabilities(found, y.numpy(), table=True)
    np.testing.assert_allclose(ranked, np.mean(forests, axis=0), atol=1e-6)


def test_pruning_leaves_out_wrong_labels() -> None:
    x, y, clean = clouds(samples=600, wrong=0.4)
    found = classifiers.cross_fit("lda", x, y, 3)
    flagged = confident_issues(found.probabilities, y.numpy())
    wrong = (y != clean).numpy()
    assert 0.2 < wrong.mean() < 0.35
    assert wrong[~flagged].mean() < 0.08
    member = classifiers.fit("lda", x, y, 3, prune=1)
    kept = torch.from_numpy(~flagged)
    direct = classifiers.fit("lda", x[kept], y[kept], 3)
    torch.testing.assert_close(member.state["weight"], direct.state["weight"])


def test_pruning_keeps_small_classes() -> None:
    p = np.array([[0.9, 0.1]] * 30 + [[0.8, 0.2]] * 5)
    labels = np.array([0] * 30 + [1] * 5)
    assert not confident_issues(p, labels).any()


@pytest.mark.parametrize("landmarks", [False, True])
def test_two_regressions_that_share_their_equations_are_those_of_one_each(landmarks: bool) -> None:
    x, y, _ = clouds(samples=80)
    targets = torch.nn.functional.one_hot(y, 3).float()
    subset = torch.rand(80, generator=torch.Generator().manual_seed(0)) < 0.7
    rows = x[::2].clone() if landmarks else x
    system = kernel.KernelSystem(x, targets, rows, 9.0, subset)
    for penalty in (0.1, 1.0):
        for mask, offset, found in zip((subset | True, subset), system.offsets, system.solve(penalty), strict=True):
            centered = targets[mask].double() - targets[mask].double().mean(dim=0)
            torch.testing.assert_close(offset.double(), targets[mask].double().mean(dim=0))
            expected = torch.zeros(len(rows), 3, dtype=torch.float64)
            if landmarks:
                k, cross = (gaussian_kernel(rows.double(), other.double(), 9.0) for other in (rows, x[mask]))
                expected = torch.linalg.solve(cross @ cross.T + penalty * k, cross @ centered)
            else:
                k = gaussian_kernel(x[mask].double(), x[mask].double(), 9.0)
                expected[mask] = torch.linalg.solve(k + penalty * torch.eye(len(k)), centered)
                assert not found[~mask].any()
            full = gaussian_kernel(x.double(), rows.double(), 9.0)
            error = 2e-3 if landmarks else 1e-4  # float32 products, and a raised diagonal
            torch.testing.assert_close(full @ found.double(), full @ expected, atol=error, rtol=error)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.01, 100.0), st.floats(0.0, 1.0), st.integers(0, 100))
def test_the_scale_is_the_root_that_bisection_finds(spread: float, wrong: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(60, 3, generator=generator)
    other = torch.randint(0, 3, (60,), generator=generator)
    y = torch.where(torch.rand(60, generator=generator) < wrong, other, logits.argmax(dim=1))

    def slope(log_scale: float) -> float:
        z = logits.double()
        p = (math.exp(log_scale) * z).softmax(dim=1)
        return float(((p * z).sum(dim=1) - z.gather(1, y.unsqueeze(1)).squeeze(1)).mean())

    low, high = math.log(1e-4), math.log(1e4)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)

    def loss(scale: float) -> float:
        return float(torch.nn.functional.cross_entropy(scale * logits.double(), y))

    assert loss(classifiers.best_scale(logits, y)) == pytest.approx(loss(math.exp(low)), rel=1e-9, abs=1e-9)


def test_constant_scores_have_a_scale_at_the_end_of_the_range() -> None:
    assert classifiers.best_scale(torch.ones(5, 3), torch.tensor([0, 1, 2, 0, 1])) == pytest.approx(1e4)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.05, 20.0), st.integers(0, 100))
def test_the_scale_undoes_a_temperature(temperature: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(4000, 3, generator=generator)
    y = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
    assert classifiers.best_scale(logits / temperature, y) == pytest.approx(temperature, rel=0.15)


def test_mistakes_are_named() -> None:
    x, y, _ = clouds(samples=20)
    with pytest.raises(ValueError, match="unknown model 'ldaa'"):
        classifiers.fit("ldaa", x, y, 3)
    with pytest.raises(ValueError, match="shrinkage=2"):
        classifiers.fit("lda", x, y, 3, shrinkage=2.0)
    with pytest.raises(ValueError, match="unknown option of prototypes 'shrinkage'"):
        classifiers.fit("prototypes", x, y, 3, shrinkage=0.5)
    with pytest.raises(ValueError, match="pretrained=True"):
        models.create("lda", 3, 1, pretrained=True)


def _checkerboard() -> Any:
    """Two classes by the sign of a product: no linear classifier tells them apart. A fifth of the labels are wrong."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((400, 2)).astype(np.float32)
    clean = (x.prod(axis=1) > 0).astype(np.int64)
    return torch.from_numpy(x), torch.from_numpy(clean ^ (generator.random(400) < 0.2))


@pytest.mark.parametrize(
    ("data", "members"),
    [
        pytest.param(lambda: clouds(wrong=0.4)[:2], 5, id="simple classes"),
        pytest.param(lambda: clouds()[:2], 6, id="no label issues"),
        pytest.param(_checkerboard, 6, id="classes that need a flexible classifier"),
    ],
)
def test_smoother_members_replace_those_of_all_rows_where_they_explain_the_labels_as_well(data, members):
    x, labels = data()
    classes = int(labels.max()) + 1
    trusted = torch.zeros(len(labels), dtype=torch.bool)
    fitted = smooth.fit_smooth(x, labels, classes, torch.arange(len(labels)) % 5, trusted)
    state = fitted.member.state
    assert len(state["weight"]) + len(state["coefficients"]) == len(state["betas"]) == members


def test_a_difference_is_clear_beyond_three_standard_errors():
    labels = torch.zeros(100, dtype=torch.long)
    right, wrong = torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9])
    best = right.repeat(100, 1)
    five, ten = best.clone(), best.clone()
    five[:5], ten[:10] = wrong, wrong  # standard errors of the paired differences: .022 and .030
    assert not smooth._worse(five, best, labels)
    assert smooth._worse(ten, best, labels)
    assert not smooth._worse(best, ten, labels)


def test_kernel_ridge_of_many_rows_in_few_columns_has_a_solution() -> None:
    """Ill-conditioned: 2,000 landmarks on a line."""
    x = torch.linspace(-1, 1, 3000).unsqueeze(1)
    state = kernel.kernel_ridge(x, (x.squeeze(1) > 0).long(), 2, penalty=0.1)
    values = kernel.gaussian_kernel(x, state["rows"], float(state["width"])) @ state["coefficients"] + state["bias"]
    assert (values.argmax(dim=1) == (x.squeeze(1) > 0)).float().mean() > 0.99
