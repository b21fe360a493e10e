"""Verified labels: unbiased estimates, intervals that cover, questions where they tell the most, and a better model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from auto_cases import clouds, config
from hypothesis import given, settings
from hypothesis import strategies as st

import ncsam
from ncsam.automl import auto, portfolio, verified
from ncsam.automl import run as auto_run
from ncsam.automl.candidates import ClosedForm
from ncsam.automl.verified import ConditionalLogit, Verified
from ncsam.automl.verified_source import read_verified
from ncsam.data import from_arrays
from ncsam.engine.predictor import load_predictor
from ncsam.models import create


def a_problem(seed: int = 0, n: int = 300, classes: int = 3) -> Any:
    """True classes, given labels, and probabilities of a model that is often right."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=n)
    given = np.where(rng.random(n) < 0.3, rng.integers(classes, size=n), truth)
    logits = 1.5 * np.eye(classes)[truth] + rng.normal(size=(n, classes))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return rng, truth, given, p


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000))
def test_the_estimate_is_unbiased_whatever_is_drawn(seed: int) -> None:
    """Exactly: the mean of the contribution of each sample, weighted by its probability, is the mean over all."""
    rng, truth, labels, _ = a_problem(seed)
    n = len(truth)
    pi = rng.dirichlet(np.ones(n)) * 0.7 + 0.3 / n
    wrong, predicted = (truth != labels).astype(float), rng.random(n)
    each = [
        verified.estimate(wrong[[i]], predicted, Verified(np.array([i]), truth[[i]], pi[[i]])) for i in range(0, n, 50)
    ]
    assert all(0 <= interval.value <= 1 for interval in each)
    contributions = predicted.mean() + (wrong - predicted) / (n * pi)
    assert (pi * contributions).sum() == pytest.approx(wrong.mean())
    draws = rng.choice(n, 4000, p=pi)
    found = verified.estimate(wrong[draws], predicted, Verified(draws, truth[draws], pi[draws]))
    assert found.value == pytest.approx(contributions[draws].mean())


def test_intervals_cover_the_true_value() -> None:
    rng, truth, labels, p = a_problem(n=600)
    belief = verified.posterior([p], labels)
    pi = verified.question_probabilities(np.stack([p.argmax(axis=1), labels], axis=1), belief, np.array([0.5, 0.5]))
    rate, accuracy = (truth != labels).mean(), (p.argmax(axis=1) == truth).mean()
    covered = []
    for _ in range(200):
        draws = rng.choice(len(truth), 60, p=pi)
        answers = Verified(draws, truth[draws], pi[draws])
        for true, found in (
            (rate, verified.noise_rate([p], labels, answers)),
            (accuracy, verified.clean_accuracy(p.argmax(axis=1), [p], labels, answers)),
        ):
            covered.append(found.low <= true <= found.high)
    assert 0.92 < np.mean(covered) <= 1


def test_questions_go_where_candidates_disagree() -> None:
    predictions = np.array([[0, 0], [0, 1], [1, 1], [1, 0]])
    belief = np.full((4, 2), 0.5)
    pi = verified.question_probabilities(predictions, belief, np.array([0.5, 0.5]), uniform=0.2)
    np.testing.assert_allclose(pi, [0.05, 0.45, 0.05, 0.45])
    same = verified.question_probabilities(predictions[:, [0, 0]], belief, np.array([0.5, 0.5]))
    np.testing.assert_allclose(same, 0.25)


def test_the_logit_is_at_its_optimum() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 3, 2))
    labels = rng.integers(3, size=80)
    model = ConditionalLogit(features, np.array([0.5, 0.0]), np.array([0.7, 0.3]))
    model.fit(np.arange(80), labels)

    def objective(theta: Any) -> float:
        scores = features @ theta
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        prior = ((theta - np.array([0.5, 0.0])) ** 2 / (2 * np.array([0.7, 0.3]) ** 2)).sum()
        return float(log_p[np.arange(80), labels].sum() - prior)

    best = objective(model.theta)
    for step in (1e-3, -1e-3):
        for direction in np.eye(2):
            assert objective(model.theta + step * direction) < best


def test_stacking_turns_to_the_group_that_is_right() -> None:
    rng, truth, _, p = a_problem(n=600)
    useless = np.full_like(p, 1 / 3)
    rows = rng.choice(600, 150, replace=False)
    answers = Verified(rows, truth[rows])
    theta, bias = verified.stack([useless, p, useless], answers)
    assert theta[1] > 0.5
    assert np.abs(bias).max() < 0.7
    none, _ = verified.stack([p, p, p], Verified(rows[:1], truth[rows[:1]]))
    np.testing.assert_allclose(none, [0.8, 0.2, 0.0], atol=0.15)


def test_a_stacked_model_is_the_formula() -> None:
    options = {"in_features": 4, "hidden": []}
    one = {"model": "mlp", "options": options}
    network: Any = create("stacked", 3, 1, groups=[[one, one], [one]])
    network.theta, network.bias = torch.tensor([0.7, 0.4]), torch.tensor([0.1, 0.0, -0.1])
    x = torch.randn(5, 4)
    first = sum(module(x).softmax(dim=1) for module in network.groups[0]) / 2
    second = network.groups[1][0](x).softmax(dim=1)
    wanted = 0.7 * (first + 1e-4).log() + 0.4 * (second + 1e-4).log() + network.bias
    torch.testing.assert_close(network(x), wanted)
    with pytest.raises(ValueError, match="groups"):
        create("stacked", 3, 1)
    with pytest.raises(ValueError, match="groups='os:getcwd'"):
        create("stacked", 3, 1, groups=[[{"model": "os:getcwd", "options": {}}]])


def test_sources_of_verified_labels(tmp_path: Path) -> None:
    data = from_arrays(np.zeros((5, 2), np.float32), np.array([0, 1, 2, 0, 1]), classes=["cat", "dog", "7"])
    for source in ({3: "dog", 0: 0}, {3: 1, 0: "cat"}, [0, None, None, "dog", ""]):
        found = read_verified(source, data)
        assert dict(zip(found.rows.tolist(), found.labels.tolist(), strict=True)) == {3: 1, 0: 0}
    file = tmp_path / "answers.csv"
    file.write_text("index,label,probability\n3,dog,0.25\n4,7,0.5\n")
    found = read_verified(file, data)
    assert (found.labels.tolist(), found.probabilities.tolist()) == ([1, 2], [0.25, 0.5])  # type: ignore[union-attr]
    file.write_text("sample,label\n3,dog\n")
    for wrong in ({9: "dog"}, {-1: "dog"}, {0: "horse"}, {0: 3}, [1, 2], {}, file, tmp_path / "none.csv"):
        with pytest.raises(ValueError, match="verified"):
            read_verified(wrong, data)
    table = read_verified([0.0, None, float("nan"), "dog", pd.NA], data)  # as a column with missing values
    assert (table.rows.tolist(), table.labels.tolist()) == ([0, 3], [0, 1])


def two_classes() -> Any:
    return from_arrays(np.zeros((5, 2), np.float32), np.array([0, 1, 0, 0, 1]), classes=["cat", "dog"])


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        np.array(1),
        {0: 1.5},
        {0: float("nan")},
        {2.5: 0},
        {"a": 0},
        {None: 0},
        {2**70: 0},
        {0: [0]},
        {0: 10**5000},
        {0: pd.NA},
        {True: 0},
    ],
    ids=lambda wrong: type(wrong).__name__,
)
def test_wrong_verified_labels_are_one_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^invalid verified="):
        read_verified(wrong, two_classes())


@pytest.mark.parametrize(
    "content",
    [
        *(b"\x80\x04", b"", b"index,label\n0\n", b"index,label\nx,0\n", b"index,label\n0," + b"9" * 200_000),
        *(b"index,label,probability\n0,0,%s\n" % chance for chance in (b"nan", b"inf", b"0", b"-1", b"2", b"", b"x")),
    ],
    ids=range(12),
)
def test_damaged_files_of_verified_labels_are_one_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "v.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"verified|v\.csv"):
        read_verified(tmp_path / "v.csv", two_classes())


def test_verified_labels_without_the_recommended_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (auto_run, portfolio):
        monkeypatch.setattr(module, "portfolio", lambda problem: [ClosedForm("prototypes", "prototypes")])
    dataset = clouds()
    clean: Any = dataset.train.clean
    answers = {i: int(clean[i]) for i in range(0, 240, 4)}
    board = auto(config(), tmp_path / "run", verified=answers, folds=2, dataset=dataset, say=str)
    assert board["noise_rate"]["low"] < (dataset.train.labels != clean).mean() < board["noise_rate"]["high"]


def test_auto_with_verified_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [
        ClosedForm("smooth", "smooth"),
        ClosedForm("prototypes-pruned", "prototypes", {"prune": 1}),
        ClosedForm("knn-30", "knn", {"k": 30}),
    ]
    for module in (auto_run, portfolio):
        monkeypatch.setattr(module, "portfolio", lambda problem: few)
    dataset = clouds()
    clean: Any = dataset.train.clean
    rows = np.random.default_rng(0).choice(240, 60, replace=False)
    options: dict[str, Any] = {"folds": 4, "dataset": dataset, "say": str}
    board = auto(config(), tmp_path / "run", verified={int(i): int(clean[i]) for i in rows}, **options)
    assert board["verified"] == 60
    assert board["chosen"]["model"] == "stacked"
    rate = (dataset.train.labels != clean).mean()
    assert board["noise_rate"]["low"] < rate < board["noise_rate"]["high"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["noise_estimate"] == board["noise_rate"]
    assert dataset.test is not None
    p = torch.cat(list(load_predictor(tmp_path / "run").probabilities(dataset.test.inputs)))
    accuracy = 100 * (p.argmax(dim=1).numpy() == dataset.test.labels).mean()
    assert board["clean_accuracy"]["low"] < accuracy < board["clean_accuracy"]["high"]
    plain = auto(config(), tmp_path / "plain", **options)
    assert plain["clean_accuracy"] is None
    assert plain["noise_rate"]["source"] == "held-out predictions"


def test_a_balanced_stack_divides_by_the_mean_probabilities() -> None:
    rng, truth, _, p = a_problem(n=600)
    answers = Verified(rows := rng.choice(600, 100, replace=False), truth[rows])
    skewed = p * [8.0, 1.0, 1.0] / (p * [8.0, 1.0, 1.0]).sum(axis=1, keepdims=True)
    theta, bias = verified.stack([skewed], answers)
    same, shifted = verified.stack([skewed], answers, balanced=True)
    np.testing.assert_array_equal(theta, same)
    plain, balanced = (verified.stacked_probabilities([skewed], theta, b) for b in (bias, shifted))
    wanted = plain / plain.mean(axis=0)
    np.testing.assert_allclose(balanced, wanted / wanted.sum(axis=1, keepdims=True))
    predicted = verified.held_out_predictions([skewed], answers, balanced=True)
    rest = np.setdiff1d(np.arange(600), rows)
    np.testing.assert_array_equal(predicted[rest], balanced.argmax(axis=1)[rest])


def test_rare_classes_of_tables_are_predicted_for_balanced_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [ClosedForm("smooth_table", "smooth_table", {"trees": 20}), ClosedForm("prototypes", "prototypes")]
    for module in (auto_run, portfolio):
        monkeypatch.setattr(module, "portfolio", lambda problem: few)
    rng = np.random.default_rng(0)
    truth = (rng.random(600) < 0.12).astype(np.int64)
    x = pd.DataFrame(rng.normal(size=(600, 4)) + 1.2 * truth[:, None], columns=list("abcd"))
    given = np.where(rng.random(600) < 0.1, 1 - truth, truth)
    rows = rng.choice(300, 60, replace=False)
    table = x[:300].assign(label=given[:300])

    def result(metric: Any, known: Any) -> tuple[Any, float, float]:
        run = ncsam.auto(
            table, tmp_path / f"{metric}-{known is None}", metric=metric, verified=known, folds=3, label_column="label"
        )
        found = np.array([int(label) for label in run.predict(x[300:]).labels])
        right = found == truth[300:]
        recalls = [right[truth[300:] == k].mean() for k in (0, 1)]
        board = json.loads((Path(run.path) / "leaderboard.json").read_text())
        return board, float(right.mean()), float(np.mean(recalls))

    known = {int(i): int(truth[i]) for i in rows}
    board, accuracy, balanced = result("auto", known)
    assert board["metric"] == "balanced_accuracy"
    other, higher, lower = result("accuracy", known)
    assert other["metric"] == "accuracy"
    assert balanced > lower
    assert higher > accuracy
    assert board["clean_accuracy"]["estimate"] < other["clean_accuracy"]["estimate"]
    without, _, explicit = result("balanced_accuracy", None)
    assert without["metric"] == "balanced_accuracy"
    assert result("auto", None)[0]["metric"] == "accuracy"
    assert explicit > lower
    with pytest.raises(ValueError, match="metric"):
        ncsam.auto(table, metric="f1", label_column="label")  # type: ignore[arg-type]
