"""`find_label_issues`: its columns, its rule, its table; against a slow implementation and against cleanlab."""

from __future__ import annotations

import numpy as np
import pytest
from test_issues_posterior import SYMMETRIC, corrupted

import ncsam
from ncsam.errors import UsageError
from ncsam.issues.find import find_label_issues
from ncsam.issues.posterior import assess


def slow_confident_learning(labels: np.ndarray, rows: np.ndarray) -> list[bool]:
    """The rule sample by sample, as in Northcutt et al. 2021, section 3.1."""
    size = rows.shape[1]
    threshold = [np.mean([rows[i][k] for i in range(len(labels)) if labels[i] == k]) for k in range(size)]
    flags = []
    for label, row in zip(labels, rows, strict=True):
        confident = [k for k in range(size) if row[k] >= threshold[k] * (1 - 1e-12)]
        flags.append(bool(confident) and max(confident, key=lambda k: row[k]) != label)
    return flags


def by_index(issues, name: str) -> np.ndarray:
    """A column in the order of the samples."""
    return issues.numbers(name)[np.argsort(issues.numbers("index"))]


def test_where_the_posterior_is_reliable_it_decides() -> None:
    truth, labels, rows = corrupted(3000, SYMMETRIC, 10.0, seed=1)
    issues = find_label_issues(labels, rows, clean_labels=truth)
    posterior = assess(labels, rows)
    assert issues.reliable
    assert np.array_equal(by_index(issues, "p_wrong"), posterior.p_wrong)
    assert np.array_equal(by_index(issues, "is_label_issue"), posterior.p_wrong > 0.5)
    assert np.array_equal(by_index(issues, "predicted_label"), rows.argmax(axis=1))
    flagged, wrong = by_index(issues, "is_label_issue"), labels != truth
    assert (flagged & wrong).sum() / flagged.sum() > 0.9
    assert (flagged & wrong).sum() / wrong.sum() > 0.8
    assert issues.about["label_issues_auroc"] > 0.95


def test_elsewhere_it_is_the_rule_of_confident_learning() -> None:
    _, labels, rows = corrupted(400, np.eye(4), 0.5, seed=3)
    issues = find_label_issues(labels, rows)
    assert not issues.reliable
    assert np.isnan(issues.numbers("p_wrong")).all()
    assert by_index(issues, "is_label_issue").tolist() == slow_confident_learning(labels, rows)


def test_the_fallback_agrees_with_cleanlab() -> None:
    filtering = pytest.importorskip("cleanlab.filter", reason="cleanlab is not installed")
    _, labels, rows = corrupted(1000, SYMMETRIC, 1.0, seed=5)
    issues = find_label_issues(labels, rows)
    assert not issues.reliable
    ours = by_index(issues, "is_label_issue") & (by_index(issues, "predicted_label") != labels)  # as cleanlab does
    theirs = filtering.find_label_issues(labels, rows, filter_by="confident_learning", n_jobs=1)
    assert 50 < theirs.sum() < 950
    assert (ours == theirs).mean() > 0.99  # they differ where the most probable class is below its threshold


def test_quality_is_in_the_unit_interval_low_where_wrong_and_sorts_the_table() -> None:
    truth, labels, rows = corrupted(2000, SYMMETRIC, 10.0, seed=2)
    issues = find_label_issues(labels, rows)
    quality = issues.numbers("label_quality")
    assert 0 < quality.min() < quality.max() < 1
    assert (np.diff(quality) >= 0).all()
    wrong = labels != truth
    assert wrong[issues.numbers("index")[:100]].mean() > 0.95 > 0.05 > wrong[issues.numbers("index")[-100:]].mean()


def test_names_in_place_of_numbers_give_the_same_table() -> None:
    _, labels, rows = corrupted(500, SYMMETRIC, 4.0, seed=4)
    names = ["ant", "bee", "cat", "dog"]
    plain, named = find_label_issues(labels, rows), find_label_issues([names[i] for i in labels], rows)
    assert named.classes == names
    assert np.array_equal(plain.numbers("given_label"), named.numbers("given_label"))
    assert named.to_frame()["given_label"].tolist() == [names[i] for i in plain.numbers("given_label")]


def test_it_behaves_like_a_data_frame() -> None:
    _, labels, rows = corrupted(300, SYMMETRIC, 6.0, seed=6)
    issues = ncsam.find_label_issues(labels, rows)
    assert list(issues)[:6] == ["index", "given_label", "predicted_label", "label_quality", "p_wrong", "is_label_issue"]
    flagged = issues[issues["is_label_issue"]]
    assert len(flagged) == issues.num_issues
    assert len(issues.query("label_quality < 0.1")) == (issues.numbers("label_quality") < 0.1).sum()
    assert len(issues.head(7)) == 7
    assert np.asarray(issues).shape == (300, len(issues.columns))
    assert "more]" in repr(issues)
    assert len(repr(issues).splitlines()) == 13
    assert "<table>" in issues._repr_html_()


def test_html_shows_names_as_text() -> None:
    _, labels, rows = corrupted(50, SYMMETRIC, 6.0, seed=6)
    page = find_label_issues(labels, rows, classes=["<script>", "b", "c", "d"])._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("labels", "rows", "name"),
    [
        ([0, 1], np.ones((3, 2)) / 2, "pred_probs"),
        ([0, 2], np.ones((2, 2)) / 2, "labels"),
        ([0, -1], np.ones((2, 2)) / 2, "labels"),
        ([0, 1], np.ones((2, 2)), "pred_probs"),
        ([0, 1], [[np.nan, 1], [0, 1]], "pred_probs"),
        ([0, 1], [1.0, 0.0], "pred_probs"),
        (["a", "b", "c"], np.ones((3, 2)) / 2, "labels"),
        ([[0, 1]], np.ones((2, 2)) / 2, "labels"),
        ([[0, 1], [0]], np.ones((2, 2)) / 2, "labels"),
        ([10**5000, "a"], np.ones((2, 2)) / 2, "labels"),
        ([0, 1], [[1, 0], [1]], "pred_probs"),
    ],
    ids=range(11),
)
def test_mistakes_name_the_argument(labels, rows, name: str) -> None:
    with pytest.raises(UsageError, match=rf"^invalid {name}(\[\d+\])?="):
        find_label_issues(labels, rows)


@pytest.mark.parametrize(
    ("name", "value"), [("classes", 0.5), ("train_accuracy", 1.5), ("train_accuracy", "high"), ("clean_labels", [[0]])]
)
def test_wrong_options_name_the_argument(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^invalid {name}="):
        find_label_issues([0, 1], np.eye(2), **{name: value})
