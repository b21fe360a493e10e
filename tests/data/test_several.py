"""Tables in which several people labeled the same samples: read as such, joined, and told in the report."""

import csv

import pytest
from click.testing import CliRunner

from ncsam.cli.main import main
from ncsam.data import load

LONG = "text,annotator,label\na b,Ada,cat\na b,Ben,dog\na b,Cy,cat\nc d,Ada,dog\nc d,Cy,dog\n"
WIDE = "text,Ada,Ben,Cy\na b,cat,dog,cat\nc d,dog,,dog\n"


@pytest.mark.parametrize("table", [LONG, WIDE])
def test_answers_become_one_label_for_each_sample(tmp_path, table):
    (tmp_path / "answers.csv").write_text(table)
    found = load(tmp_path / "answers.csv")
    assert list(found.train.inputs) == ["a b", "c d"]
    assert [found.classes[label] for label in found.train.labels] == ["cat", "dog"]
    assert [(a.name, a.answers) for a in found.annotators] == [("Ada", 2), ("Ben", 1), ("Cy", 2)]
    assert [a.accuracy for a in found.annotators] == pytest.approx([(2 / 3 + 1) / 2, 1 / 3, (2 / 3 + 1) / 2])
    assert found.notes[-1] == "the labels are the answers of 3 annotators, joined by majority"


def test_columns_can_be_named_and_rows_of_features_keep_theirs(tmp_path):
    (tmp_path / "t.csv").write_text("age,hours,one,two,three\n1,2,x,x,y\n3,4,y,y,y\n")
    found = load(tmp_path / "t.csv", annotators=["one", "two", "three"], join="dawid_skene")
    assert found.columns == ("age", "hours")
    assert found.train.inputs.tolist() == [[1, 2], [3, 4]]
    assert [found.classes[label] for label in found.train.labels] == ["x", "y"]
    with pytest.raises(ValueError, match=r"annotators=\['four'\]"):
        load(tmp_path / "t.csv", annotators=["four"])
    with pytest.raises(ValueError, match="unknown method 'vote'"):
        load(tmp_path / "t.csv", annotators=["one", "two"], join="vote")


@pytest.mark.parametrize(
    "table",
    [
        "text,annotator,label\na,Ada,x\nb,Ben,y\n",  # who labeled what, each once
        "text,length,label\na,1,x\nb,1,y\n",
    ],
)
def test_ordinary_tables_stay_what_they_are(tmp_path, table):
    (tmp_path / "t.csv").write_text(table)
    found = load(tmp_path / "t.csv")
    assert found.annotators == ()
    assert found.train.labels.tolist() == [0, 1]


def test_a_table_without_labels_or_answers_is_still_refused(tmp_path):
    (tmp_path / "t.csv").write_text("text,title,author\na,b,c\nd,e,f\n")
    with pytest.raises(ValueError, match="has no column 'label'"):
        load(tmp_path / "t.csv")


def test_the_report_tells_how_good_the_annotators_are(tmp_path):
    with (tmp_path / "answers.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "<b>Ada", "Ben", "Cy"])
        for i in range(40):
            right, wrong = ("cat", "dog")[i % 2], ("dog", "cat")[i % 2]
            table.writerow([f"{right}s are {i}", right, right, wrong if i < 10 else right])
    run, options = tmp_path / "run", ["--epochs", "1", "--optimizer", "sgd", "--quiet"]

    def call(*arguments):
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exit_code == 0, result.output

    call("train", tmp_path / "answers.csv", "--data-options", "join=dawid_skene", *options, "--out", run)
    assert (run / "annotators.csv").read_text().splitlines() == [
        "annotator,answers,accuracy",
        "<b>Ada,40,1.0000",
        "Ben,40,1.0000",
        "Cy,40,0.7500",
    ]
    call("report", run, "--markdown", "--out", tmp_path / "report.html")
    assert "| Cy | 40 | 75.0 |" in (tmp_path / "report.md").read_text()
    html = (tmp_path / "report.html").read_text()
    assert '<th scope="row">Cy</th><td>40</td><td>75.0</td>' in html
    assert "<b>Ada" not in html
