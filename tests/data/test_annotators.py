"""Several annotators: tables of answers, majority, soft labels, and Dawid and Skene's model."""

import itertools

import numpy as np
import pytest

from ncsam.data.tables.annotators import join, read_annotations


def test_one_column_or_one_row_per_annotator_is_the_same(tmp_path):
    (tmp_path / "wide.csv").write_text("path,Ada,Ben,Cy\na.png,cat,dog,cat\nb.png,dog,,dog\n")
    (tmp_path / "long.csv").write_text(
        "path,annotator,label\na.png,Ada,cat\na.png,Ben,dog\na.png,Cy,cat\nb.png,Ada,dog\nb.png,Cy,dog\n"
    )
    wide, long = read_annotations(tmp_path / "wide.csv"), read_annotations(tmp_path / "long.csv")
    assert wide.items == long.items == ("a.png", "b.png")
    assert wide.annotators == long.annotators == ("Ada", "Ben", "Cy")
    assert wide.classes == ("cat", "dog")
    assert wide.answers.tolist() == long.answers.tolist() == [[0, 1, 0], [1, -1, 1]]


def test_majority_and_soft_labels_by_hand():
    found = join([[0, 1, 0], [1, -1, 1], [2, 0, 1]])
    assert found.labels.tolist() == [0, 1, 0]  # of three equal ones the first
    assert found.soft.tolist() == [[2 / 3, 1 / 3, 0], [0, 1, 0], [1 / 3, 1 / 3, 1 / 3]]
    assert found.agreement.tolist() == [2 / 3, 1, 1 / 3]
    assert found.accuracy == pytest.approx([(2 / 3 + 1 + 1 / 3) / 3, (1 / 3 + 1 / 3) / 2, (2 / 3 + 1 + 1 / 3) / 3])


def test_dawid_and_skene_see_through_an_annotator_who_always_says_the_opposite():
    """Two who are right and one who errs always: the third one's answers are turned round, not outvoted."""
    truth = np.array(list(itertools.islice(itertools.cycle([0, 1, 1, 0, 1]), 60)))
    answers = np.stack([truth, truth, 1 - truth], axis=1)
    answers[:6, 0] = 1 - truth[:6]  # majority is wrong there: two of three
    found = join(answers, 2, "dawid_skene")
    assert join(answers, 2).labels[:6].tolist() == (1 - truth[:6]).tolist()
    assert found.labels.tolist() == truth.tolist()
    assert found.accuracy == pytest.approx([0.9, 1.0, 0.0], abs=0.01)


def test_dawid_and_skene_agree_with_crowd_kit():
    aggregation = pytest.importorskip("crowdkit.aggregation", reason="crowd-kit is not installed")
    pandas = pytest.importorskip("pandas")
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, 200)
    skill = np.array([0.9, 0.7, 0.6, 0.8])
    wrong = (truth[:, None] + generator.integers(1, 3, (200, 4))) % 3
    answers = np.where(generator.random((200, 4)) < skill, truth[:, None], wrong)
    rows = [(i, a, answers[i, a]) for i in range(200) for a in range(4)]
    frame = pandas.DataFrame(rows, columns=["task", "worker", "label"])
    theirs = aggregation.DawidSkene(n_iter=200, tol=1e-8).fit_predict(frame).sort_index().to_numpy()
    ours = join(answers, 3, "dawid_skene")
    assert (ours.labels == theirs).mean() > 0.99
    assert (ours.labels == truth).mean() > (join(answers, 3).labels == truth).mean()
    assert ours.accuracy == pytest.approx((answers == truth[:, None]).mean(axis=0), abs=0.05)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,Ada\n", "has no rows under its header"),
        ("path,Ada\na.png,cat,dog\n", "line 2: 3 fields, but the header has 2"),
        ("path,annotator,label\na,Ada,1\na,Ada,2\n", "annotator 'Ada' gave two answers for 'a'"),
        ("path,Ada\na.png,\n", "holds no answer"),
    ],
)
def test_tables_that_are_none(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_annotations(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="least one answer"):
        join([[0, 1], [-1, -1]])
    with pytest.raises(ValueError, match="unknown method 'vote'"):
        join([[0, 1]], method="vote")


def test_the_command_prints_accuracies_and_writes_labels(tmp_path):
    from click.testing import CliRunner

    from ncsam.cli.main import main

    (tmp_path / "answers.csv").write_text("path,Ada,Ben,Cy\na.png,cat,dog,cat\nb.png,dog,,dog\n")
    options = ["annotators", str(tmp_path / "answers.csv"), "--soft", "--out", str(tmp_path / "labels.csv")]
    result = CliRunner().invoke(main, options)
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.output.splitlines()][1:4] == [
        ["Ada", "2", "83.3"],
        ["Ben", "1", "33.3"],
        ["Cy", "2", "83.3"],
    ]
    assert "2 items, 3 annotators, 2 classes; unanimous on 50.0 %" in result.output
    assert (tmp_path / "labels.csv").read_text().splitlines() == [
        "path,label,agreement,p_cat,p_dog",
        "a.png,cat,0.6667,0.6667,0.3333",
        "b.png,dog,1.0000,0.0000,1.0000",
    ]
