"""Every check of an audit on arrays whose findings are known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from ncsam.auditing import classes, columns, duplicates, images, samples, shift, texts
from ncsam.auditing.findings import CHECKS, Finding, finding, known_checks
from ncsam.auditing.neighbors import nearest
from ncsam.errors import UsageError
from ncsam.issues.find import find_label_issues
from ncsam.runs.findings import load_findings, save_findings

RNG = np.random.default_rng(0)
BLOB = RNG.normal(size=(60, 5)).astype(np.float32)


def found(findings: list[Finding]) -> list[int]:
    return sorted(each.index for each in findings)


@pytest.mark.parametrize("block", [7, 4096])
def test_neighbors_are_those_of_the_whole_distance_matrix(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ncsam.auditing.neighbors._BLOCK", block)
    every = np.linalg.norm(BLOB[:, None] - BLOB[None], axis=2)
    np.fill_diagonal(every, np.inf)
    near = nearest(BLOB, 4)
    np.testing.assert_allclose(near.distance, np.sort(every, axis=1)[:, :4], rtol=1e-5)
    assert (near.index != np.arange(60)[:, None]).all()
    np.testing.assert_allclose(nearest(BLOB[:9], 2, among=BLOB).distance[:, 0], 0)
    assert nearest(BLOB[:3], 10).index.shape == (3, 2)
    with pytest.raises(UsageError, match="among"):
        nearest(BLOB, 1, among=np.zeros((3, 2)))


def test_neighbors_by_faiss_are_almost_all_of_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    rows = RNG.normal(size=(2000, 8)).astype(np.float32)
    rows[1500:1510] = rows[7]  # copies, among which a row finds itself anywhere
    exact = nearest(rows, 5)
    monkeypatch.setattr("ncsam.auditing.neighbors._EXACT", 100)
    near, among = nearest(rows, 5), nearest(rows[:9], 1, among=rows)
    assert (near.index != np.arange(2000)[:, None]).all()
    assert np.isclose(near.distance, exact.distance, rtol=1e-5).mean() > 0.99
    np.testing.assert_array_equal(among.distance, 0)


def test_exact_near_and_conflicting_duplicates() -> None:
    x = BLOB.copy()
    x[10] = x[3]
    x[11] = x[4] + 1e-4
    x[12] = x[5]
    labels = np.zeros(60, dtype=np.int64)
    labels[12] = 1
    keys = [row.tobytes().hex() for row in x]
    by_index = {each.index: each for each in duplicates.find_duplicates(labels, keys, nearest(x), ["a", "b"])}
    assert {i: each.check for i, each in by_index.items()} == {
        10: "exact_duplicate",
        11: "near_duplicate",
        12: "conflicting_duplicate",
        5: "conflicting_duplicate",
    }
    assert by_index[10].related == ("train 3",)
    assert by_index[11].score > 0.99
    assert "labels b and a" in by_index[12].evidence
    assert all(each.decision == "drop" for each in by_index.values())


def test_of_three_copies_one_is_kept() -> None:
    assert duplicates.exact_pairs(list("abcaa")) == [(0, 3, 1.0), (0, 4, 1.0)]
    assert found(duplicates.find_duplicates(np.zeros(5, dtype=np.int64), list("abcaa"))) == [3, 4]
    assert duplicates.groups([(0, 3, 1.0), (3, 4, 1.0)], 5).tolist() == [0, 1, 2, 0, 0]


def test_duplicates_across_train_and_test() -> None:
    test = np.stack([BLOB[7], BLOB[8] + 1e-4, np.full(5, 9.0)]).astype(np.float32)
    typical = duplicates.typical_distance(nearest(BLOB).distance)
    keys, theirs = [str(i) for i in range(60)], ["7", "x", "y"]
    leaks = duplicates.find_leaks(keys, {"test": theirs}, BLOB, {"test": test}, typical)
    assert [(each.index, each.related) for each in leaks] == [(7, ("test 0",)), (8, ("test 1",))]
    assert leaks[0].score == 1.0 > leaks[1].score > 0.99


def test_an_outlier_is_beyond_tukeys_fence() -> None:
    x = BLOB.copy()
    x[20] = 40
    assert found(samples.find_outliers(nearest(x))) == [20]
    assert samples.find_outliers(nearest(np.zeros((30, 2)))) == []
    assert samples.beyond_quartile([0, 1, 2, 3, 12])[-1] == 4.5


def test_label_issues_keep_their_score_and_suggestion() -> None:
    truth = np.arange(90) % 3
    given = truth.copy()
    given[4] = 2
    issues = find_label_issues(given, np.eye(3)[truth] * 0.94 + 0.02, classes=["a", "b", "c"])
    (only,) = samples.find_label_issues(issues)
    assert (only.index, only.target, only.decision) == (4, 1, "relabel")
    assert only.score >= CHECKS["label_issue"].threshold


def test_rare_classes() -> None:
    labels = np.repeat([0, 1, 2], [100, 97, 4])
    (only,) = classes.find_rare(labels, ["a", "b", "c"])
    assert (only.name, only.index, only.score) == ("c", 2, pytest.approx(201 / 3 / 4))


def test_overlapping_classes_have_an_auc_of_a_half() -> None:
    labels = np.repeat([0, 1, 2], 40)
    chances = np.tile([0.5, 0.5, 0.0], (120, 1))
    chances[80:] = [0.0, 0.0, 1.0]
    assert classes.overlap(labels, chances, 0, 1) == 1.0
    assert classes.overlap(labels, chances, 0, 2) == 0.0
    (only,) = classes.find_overlapping(labels, chances, ["a", "b", "c"])
    assert (only.decision, only.index, only.target) == ("merge", 1, 0)
    assert only.affects(labels).tolist() == list(range(80))


def test_a_class_of_two_groups_is_heterogeneous() -> None:
    x = np.concatenate([BLOB[:30], BLOB[30:40] + 50, BLOB[40:] - 50]).astype(np.float32)
    labels = np.repeat([0, 1], [40, 20])
    only, *apart = classes.find_heterogeneous(labels, x, ["two", "one"])
    assert [(each.index, each.decision) for each in apart] == [(i, "drop") for i in range(30, 40)]
    assert only.name == "two"
    assert only.score == pytest.approx(0.25)
    assert only.related == ("train 0", "train 30")
    assert classes.find_heterogeneous(labels, x, ["two", "one"], np.arange(30, 40)) == []


def test_annotators_who_guess_and_samples_without_a_majority() -> None:
    (only,) = classes.find_annotators(["ada", "bob", "eve"], [0.9, 0.9, 0.5], 2)
    assert (only.name, only.score) == ("eve", pytest.approx(1.0))
    answers = np.array([[0, 0, 1], [0, 1, -1], [1, 0, 2], [2, -1, -1]])
    split = classes.find_disagreement(answers, ["a", "b", "c"])
    assert [(each.index, each.score) for each in split] == [(2, pytest.approx(2 / 3)), (1, 0.5)]
    moved = classes.without_annotators(
        np.array([[0, 1, 1], [0, 0, 1]]), ["x", "y", "eve"], [only], np.array([1, 0]), "ab"
    )
    assert moved == []  # a tie of the two left keeps the label
    answers = np.array([[0, 0, 1], [-1, -1, 1]])
    moved = classes.without_annotators(answers, ["x", "y", "eve"], [only], np.array([1, 1]), "ab")
    assert [(each.index, each.target, each.decision) for each in moved] == [(0, 0, "relabel"), (1, -1, "drop")]


def test_dark_blurred_truncated_and_oddly_sized_images() -> None:
    sharp = RNG.integers(0, 256, (40, 40, 3)).astype(np.uint8)
    dark = (sharp // 16).astype(np.uint8)
    y, x = np.mgrid[:40, :40]
    blurred = (127 + 120 * np.sin(x / 12) * np.cos(y / 12)).astype(np.uint8)
    measured = [images.measure(sharp)] * 6 + [
        images.measure(dark),
        images.measure(blurred),
        images.Measured(error="cut off"),
    ]
    measured.append(images.measure(RNG.integers(0, 256, (40, 800)).astype(np.uint8)))
    by_check = {each.check: each for each in images.find_images(measured)}
    assert {check: each.index for check, each in by_check.items()} == {
        "odd_size": 9,
        "truncated_image": 8,
        "blurred_image": 7,
        "dark_image": 6,
    }
    assert by_check["odd_size"].score == pytest.approx(20)
    assert images.darkness(np.full((8, 8), 0.25)) == 0.75
    assert images.blur_effect(np.zeros((40, 40))) == 0.0
    assert images.blur_effect(images.luminance(sharp)) < 0.4 < images.blur_effect(images.luminance(blurred))


def test_empty_misread_and_foreign_texts() -> None:
    sentence = "the quick brown fox jumps over a lazy dog while children watch from their garden"
    words = sentence.split(" ")
    english = [" ".join(RNG.permutation(words)) for _ in range(60)]
    russian = "быстрая лиса прыгает через собаку"
    german = "zwölf boxkämpfer jagen viktor quer über den großen sylter deich zum hafen"
    misread = "the garden caf\u00c3\u00a9 of the children"
    given = [*english, "", " \n...", russian, german, misread, "an emoji \U0001f600"]
    checks = {(each.check, each.index) for each in texts.find_texts(given)}
    assert {("empty_text", 60), ("empty_text", 61), ("other_language", 62), ("other_language", 63)} <= checks
    assert [i for check, i in checks if check == "bad_encoding"] == [64]
    assert not any(i < 60 for _, i in checks)
    assert texts.misread_share("déjà vu — naïve “quotes”") == 0.0
    assert texts.misread_share("\ufffd\ufffdab") == 0.5


def test_columns_that_name_rows_or_give_the_label_away() -> None:
    labels = np.arange(60) % 3
    table = {
        "id": list(range(100, 160)),
        "name": [f"u{i}" for i in range(60)],
        "price": BLOB[:, 0].tolist(),
        "answer": [("x", "y", "z")[label] for label in labels],
        "text": [f"some words {i}" for i in range(60)],
        "code": (labels * 2.5).tolist(),
    }
    checks = {(each.check, each.name): each.score for each in columns.find_columns(table, labels)}
    assert checks == {
        ("id_column", "id"): 1.0,
        ("id_column", "name"): 1.0,
        ("leaking_column", "answer"): 1.0,
        ("leaking_column", "code"): 1.0,
    }
    assert 0.3 < columns.label_auc(table["price"], labels) < 0.7
    assert columns.as_numbers(["1", None, ""])[0] == 1.0  # type: ignore[index]
    assert columns.as_numbers(["1", "a"]) is None


def test_shifted_columns_and_labels() -> None:
    assert shift.ks_statistic([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert shift.total_variation("aab", "abb") == pytest.approx(1 / 3)
    train = {"moved": BLOB[:, 0], "same": BLOB[:, 1], "kind": ["a"] * 60}
    test = {"moved": BLOB[:, 0] + 3, "same": BLOB[:, 1], "kind": ["b"] * 60}
    shifted = {each.name: each.score for each in shift.find_shifted(train, test)}
    assert shifted.keys() == {"moved", "kind"}
    assert shifted["kind"] == 1.0
    half = np.repeat([0, 1], 100)
    assert shift.find_label_shift(half, half[::2], ["a", "b"]) == []
    (only,) = shift.find_label_shift(half, np.zeros(100, dtype=np.int64), ["a", "b"])
    assert only.score == pytest.approx(0.75)
    assert (only.index, only.decision) == (0, "review")


def test_training_samples_unlike_the_test_split_are_left_out() -> None:
    train, test = np.concatenate([BLOB, BLOB[:50] + 20]), BLOB[::-1] * 0.9
    whole, *apart = shift.find_shift(train, test)
    assert whole.score == pytest.approx(50 / 110 + 60 / 110 * 0.5, abs=0.1)
    assert sorted(each.index for each in apart) == list(range(60, 110))
    assert {each.decision for each in apart} == {"drop"}
    (only,) = shift.find_shift(BLOB + 20, BLOB)  # all differ: no choice of samples helps
    assert only.decision == "review"
    assert shift.find_shift(BLOB, BLOB[::-1] * 0.9) == []


def test_findings_are_stored_and_a_forged_file_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import json

    given = [
        finding("outlier", 4.5, split="train", index=3, related=("train 1",)),
        finding("id_column", 1.0, name="id"),
    ]
    assert load_findings(tmp_path) is None
    save_findings(tmp_path, given, ["a note"])
    assert load_findings(tmp_path) == (given, ["a note"])
    content = json.loads((tmp_path / "audit.json").read_text())
    for name, value in [
        ("check", "x"),
        ("index", 1.5),
        ("index", -7),
        ("score", "1"),
        ("score", float("nan")),
        ("related", [1]),
    ]:
        row = {**content["findings"][0], name: value}
        (tmp_path / "audit.json").write_text(json.dumps({"notes": [], "findings": [row]}))
        with pytest.raises(ValueError, match="finding 0"):
            load_findings(tmp_path)
    with pytest.raises(UsageError, match="check"):
        known_checks(["outliers"])
    assert known_checks("outlier") == ("outlier",)


def test_datalabs_table_becomes_findings() -> None:
    pandas = pytest.importorskip("pandas")
    from ncsam.auditing.datalab import findings_of_datalab

    table = pandas.DataFrame(
        {
            "is_outlier_issue": [False, True],
            "outlier_score": [0.9, 0.125],
            "is_label_issue": [True, False],
            "label_score": [0.25, 1.0],
        }
    )
    assert [(each.check, each.index, each.score) for each in findings_of_datalab(table)] == [
        ("label_issue", 0, 0.75),
        ("outlier", 1, 0.875),
    ]
    with pytest.raises(UsageError, match="issues"):
        findings_of_datalab(pandas.DataFrame({"a": [1]}))
