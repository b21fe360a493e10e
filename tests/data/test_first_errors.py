"""What new users get wrong first: each file is read as it is meant, or refused in a sentence that says what to do."""

import numpy as np
import pytest
from click.testing import CliRunner

from ncsam.cli.main import main
from ncsam.data import load
from ncsam.data.tables.target import check_target
from ncsam.errors import UsageError


def written(path, header, rows, separator=","):
    """A table of text as a file."""
    path.write_text("".join(separator.join(row) + "\n" for row in [header, *rows]), encoding="utf-8")
    return path


def measured(label, rows=40):
    """Rows of two features, and of what `label` makes of the row's number."""
    return [[f"{i / 7:.3f}", f"{i % 5}.5", str(label(i))] for i in range(rows)]


@pytest.mark.parametrize(("name", "number"), [("fractions", lambda i: i * 1.37), ("whole", lambda i: i * i)])
def test_a_regression_target_is_refused(tmp_path, name, number):
    path = written(tmp_path / f"{name}.csv", ["a", "b", "target"], measured(number))
    with pytest.raises(ValueError, match=r"'target' has 40 different numbers in 40 rows.*no regression.*label_column"):
        load(path)


def test_a_regression_target_is_refused_in_the_shell(tmp_path):
    path = written(tmp_path / "prices.csv", ["a", "b", "target"], measured(lambda i: i * 1.37))
    result = CliRunner().invoke(main, ["train", str(path), "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "--label-column=NAME" in result.output
    assert not (tmp_path / "run").exists()


def test_identifiers_are_no_labels(tmp_path):
    path = written(tmp_path / "ids.csv", ["a", "b", "label"], measured(lambda i: f"customer {i}"))
    with pytest.raises(ValueError, match="40 different texts in 40 rows, such as 'customer 0'"):
        load(path)
    assert load(path, classes=[f"customer {i}" for i in range(40)]).num_classes == 40


@pytest.mark.parametrize(
    "labels",
    [
        [f"{i % 10 / 2}" for i in range(40)],  # grades in steps of a half
        [str(i // 2) for i in range(40)],  # two samples of each class
        [str(i) for i in range(19)],  # too few rows to tell
        [0, 1] * 20,
        [None, "a", "b"] * 10,
    ],
)
def test_classes_are_accepted(labels):
    check_target(labels, "label", "table.csv")


def test_two_columns_of_labels_are_ambiguous(tmp_path):
    rows = [[*row, "uv"[i % 2]] for i, row in enumerate(measured(lambda i: "xy"[i % 2]))]
    path = written(tmp_path / "two.csv", ["a", "b", "label", "target"], rows)
    with pytest.raises(ValueError, match=r"\(label, target\): pass label_column=NAME"):
        load(path)
    assert load(path, label_column="target").classes == ("u", "v")


def test_a_coordinate_y_beside_a_label_is_a_feature(tmp_path):
    path = written(tmp_path / "points.csv", ["x", "y", "label"], measured(lambda i: "ab"[i % 2]))
    assert load(path).columns == ("x", "y")


@pytest.mark.parametrize(("separator", "decimal"), [(";", ","), (";", "."), ("\t", ".")])
def test_other_separators_and_decimal_commas_are_understood(tmp_path, separator, decimal):
    rows = measured(lambda i: "ab"[i % 2])
    spelled = [[cell.replace(".", decimal) for cell in row] for row in rows]
    dataset = load(written(tmp_path / "export.csv", ["a", "b", "label"], spelled, separator))
    assert (dataset.columns, dataset.classes) == (("a", "b"), ("a", "b"))
    assert np.allclose(dataset.train.inputs, np.array([row[:2] for row in rows], dtype=np.float32))


@pytest.mark.parametrize("name", ["book.xlsx", "book.xls", "renamed.csv"])
def test_workbooks_are_named_as_such(tmp_path, name):
    start = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" if name.endswith("xls") else b"PK\x03\x04"
    (tmp_path / name).write_bytes(start + bytes(100))
    with pytest.raises(ValueError, match="workbook: save its sheet as CSV"):
        load(tmp_path / name)


def test_other_files_are_refused_with_what_is_read(tmp_path):
    (tmp_path / "data.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match=r"expected a folder, or a file that ends in .npz, .csv"):
        load(tmp_path / "data.json")


def test_class_folders_without_images_are_named(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("none", encoding="utf-8")
    with pytest.raises(ValueError, match=r"no images in its class folders cat, dog; expected files that end in .jpg"):
        load(tmp_path)


def test_classes_that_differ_in_case_are_noted_and_spaces_do_not_count(tmp_path):
    rows = measured(lambda i: ["cat", "cat ", "Cat", "dog"][i % 4])
    path = written(tmp_path / "case.csv", ["a", "b", "label"], rows)
    dataset = load(path)
    assert dataset.classes == ("Cat", "cat", "dog")
    assert dataset.notes == ("classes that differ only in case, which may be one class: Cat, cat",)
    result = CliRunner().invoke(main, ["train", str(path), "--out", str(tmp_path / "run")])
    assert "note: classes that differ only in case" in result.output


def test_labels_that_are_missing_are_counted(tmp_path):
    path = written(tmp_path / "gaps.csv", ["a", "b", "label"], measured(lambda i: "ab "[i % 3]))
    with pytest.raises(ValueError, match=r"sample 2 has no label \(13 such samples\): label them, or remove them"):
        load(path)


def test_too_few_samples_to_hold_any_out(tmp_path):
    path = written(tmp_path / "tiny.csv", ["a", "b", "label"], measured(lambda i: "xy"[i], rows=2))
    result = CliRunner().invoke(main, ["train", str(path), "--out", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "invalid --val-share=0.1: expected 0, or more data" in result.output


@pytest.mark.parametrize("command", ["issues", "review", "clean", "predict", "export", "report"])
def test_commands_on_runs_say_what_a_run_is(tmp_path, command):
    path = written(tmp_path / "table.csv", ["a", "label"], [["1", "x"]])
    for given, said in ((path, "is a file; expected the folder of a run"), (tmp_path / "no", "there is no run folder")):
        result = CliRunner().invoke(main, [command, str(given), *([str(path)] if command == "predict" else [])])
        assert result.exit_code == 2
        assert said in " ".join(result.output.split())
