"""After review: what changes and why, in a table, an archive or a folder to train on; the data stays as it is."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from review_cases import CLASSES, made_run, queue_order

from ncsam.data import load
from ncsam.engine import RunConfig
from ncsam.exchange.samples import describe
from ncsam.review.clean import cleaned, write_arrays, write_folder, write_table
from ncsam.review.queue import Queue
from ncsam.runs.decisions import Decisions
from ncsam.runs.reader import RunFolder


@pytest.fixture
def reviewed(tmp_path):
    """Of thirty: the worst accepted, the second kept, the third unsure, the last given another class."""
    folder = made_run(tmp_path)
    queue, log = Queue(RunFolder.read(folder)), Decisions(folder, write=True)
    for row, choice in ((0, "accept"), (1, "keep"), (2, "unsure"), (29, "other")):
        given_label, suggested_label = int(queue.given_label[row]), int(queue.suggested_label[row])
        label = 3 - given_label - suggested_label if choice == "other" else None
        log.add(int(queue.index[row]), choice, label, given_label, suggested_label, "Ada")
    log.close()
    return folder, queue


def test_reviewers_alone_by_default(reviewed):
    folder, queue = reviewed
    found = cleaned(folder)
    moved = np.flatnonzero(found.labels != found.given_label).tolist()
    assert moved == sorted([queue.index[0], queue.index[29]])
    assert found.labels[queue.index[0]] == queue.suggested_label[0]
    assert found.labels[queue.index[29]] == 3 - queue.given_label[29] - queue.suggested_label[29]
    assert [found.source[queue.index[row]] for row in (0, 1, 2, 3, 29)] == [
        "reviewed",
        "reviewed",
        "given",
        "given",
        "reviewed",
    ]
    assert found.probability[queue.index[0]] == 0.8  # of the suggestion
    assert found.probability[queue.index[1]] == pytest.approx(0.1)  # of the label, kept against the odds
    assert np.isnan(found.probability[queue.index[29]])  # nothing was said of a third class
    assert sum(count for _, _, count in found.changes()) == 2


def test_confident_and_all_never_overrule_a_reviewer(reviewed):
    folder, queue = reviewed
    sure = cleaned(folder, "confident", threshold=0.8)
    expected = {int(queue.index[row]) for row in (0, *range(2, 10), 29)}  # row 1 was kept, row 2 unsure
    assert set(np.flatnonzero(sure.labels != sure.given_label).tolist()) == expected
    assert sure.source[queue.index[2]] == "confident"
    none = cleaned(folder, "confident", threshold=0.81)
    assert int((none.labels != none.given_label).sum()) == 2
    everything = cleaned(folder, "all")
    assert set(np.flatnonzero(everything.labels != everything.given_label).tolist()) == expected


def test_where_it_cannot_be_known_confidence_is_refused(tmp_path):
    folder = made_run(tmp_path, probabilities=False)
    with pytest.raises(ValueError, match=r"apply='confident'"):
        cleaned(folder, "confident")
    assert int((cleaned(folder, "all").labels != cleaned(folder, "all").given_label).sum()) == 10


def test_the_table_is_data_to_train_on(reviewed, tmp_path):
    folder, queue = reviewed
    before = {path: path.read_bytes() for path in (tmp_path / "photos").iterdir()}
    found = cleaned(folder)
    write_table(found, tmp_path / "elsewhere" / "cleaned.csv")
    with (tmp_path / "elsewhere" / "cleaned.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "split", "label", "given_label", "source", "probability"]
    worst = rows[queue.index[0]]
    assert worst["given_label"] == CLASSES[queue.index[0] % 3]
    assert (worst["source"], worst["probability"]) == ("reviewed", "0.8")
    again = load(tmp_path / "elsewhere" / "cleaned.csv")
    assert again.classes == tuple(sorted(CLASSES))
    assert np.array_equal(again.train.labels, found.labels)
    assert [str(path) for path in again.train.inputs] == [str(path) for path in found.dataset.train.inputs]
    assert before == {path: path.read_bytes() for path in (tmp_path / "photos").iterdir()}


def with_plain_names(found):
    return replace(found, dataset=replace(found.dataset, classes=("bird", "cat", "dog")))


def test_a_folder_of_links_or_copies(tmp_path):
    folder = made_run(tmp_path)
    found = cleaned(folder)
    with pytest.raises(ValueError, match="only with class names"):
        write_folder(found, tmp_path / "links")  # </script> cannot
    found = with_plain_names(found)
    assert write_folder(found, tmp_path / "links") == 30
    assert write_folder(found, tmp_path / "copies", copy=True) == 30
    again = load(tmp_path / "links")
    assert again.classes == ("bird", "cat", "dog")
    assert np.bincount(again.train.labels).tolist() == np.bincount(found.labels).tolist()
    assert all(path.is_symlink() for path in again.train.inputs)
    assert not any(path.is_symlink() for path in load(tmp_path / "copies").train.inputs)
    with pytest.raises(ValueError, match="a folder that does not exist yet, or is empty"):
        write_folder(found, tmp_path / "links")


def test_arrays_go_into_an_archive(tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(12) % 2, x_test=x[:3], y_test=[0, 1, 0])
    folder = tmp_path / "run"
    folder.mkdir()
    RunConfig(data=str(tmp_path / "data.npz"), epochs=1).save(folder / "config.yaml")
    (folder / "summary.json").write_text(json.dumps({"epochs": 1}))
    lines = ["index,given_label,predicted_label,label_quality,p_wrong,is_label_issue"]
    lines += [f"{i},{i % 2},{1 - i % 2},{i / 12},,0" for i in range(12)]
    (folder / "label_issues.csv").write_text("\n".join(lines) + "\n")
    log = Decisions(folder, write=True)
    log.add(5, "accept", None, 1, 0, "Ada")
    log.close()
    write_arrays(cleaned(folder), tmp_path / "cleaned.npz")
    again = load(tmp_path / "cleaned.npz")
    assert np.flatnonzero(again.train.labels != np.arange(12) % 2).tolist() == [5]
    assert np.array_equal(again.train.inputs, x)
    assert again.test is not None
    write_table(cleaned(folder), tmp_path / "cleaned.csv")
    assert (tmp_path / "cleaned.csv").read_text().splitlines()[:2] == [
        "index,label,given_label,source,probability",
        "0,0,0,given,",
    ]


def test_labels_that_changed_since_are_refused(tmp_path):
    folder = made_run(tmp_path)
    table = tmp_path / "photos" / "labels.csv"
    table.write_text(table.read_text().replace("00004.png,dog", "00004.png,cat"))
    with pytest.raises(Exception, match="have changed since"):
        cleaned(folder)
    assert queue_order(4) == [1, 0, 3, 2]


def test_a_folder_is_there_whole_or_not_at_all(reviewed, tmp_path, monkeypatch):
    folder, _ = reviewed
    found, made, real = with_plain_names(cleaned(folder)), [], Path.symlink_to

    def link(self, target):
        made.append(target)
        if len(made) == 12:
            raise KeyboardInterrupt
        real(self, target)

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(Path, "symlink_to", link)
    with pytest.raises(KeyboardInterrupt):
        write_folder(found, tmp_path / "cleaned")
    assert sorted(tmp_path.iterdir()) == before
    left = tmp_path / ".cleaned.unfinished/train/cat"  # of a call that was killed
    left.mkdir(parents=True)
    (left / "old.png").touch()
    assert write_folder(found, tmp_path / "cleaned") == 30
    assert not (tmp_path / ".cleaned.unfinished").exists()
    assert len(list((tmp_path / "cleaned").rglob("*.png"))) == 30


def test_names_that_a_table_cannot_hold_are_refused(reviewed, tmp_path):
    found = cleaned(reviewed[0])
    odd = replace(found.dataset, classes=("\udcff", *found.dataset.classes[1:]))
    with pytest.raises(ValueError, match=r"UTF-8.*'.*\\\\xff.*'"):
        write_table(replace(found, dataset=odd), tmp_path / "c.csv")
    assert not list(tmp_path.glob("*.csv"))


def numbers_run(tmp_path, lines, issues, **options):
    """A run over a table of numbers in which one of the `issues`, the first, was accepted: its label becomes b."""
    (tmp_path / "wines.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    folder = tmp_path / "run"
    folder.mkdir()
    RunConfig(data=str(tmp_path / "wines.csv"), epochs=1, **options).save(folder / "config.yaml")
    (folder / "summary.json").write_text(json.dumps({"epochs": 1}))
    rows = ["index,given_label,predicted_label,label_quality,p_wrong,is_label_issue"]
    rows += [f"{i},{given},{1 - given},{i / 10},,0" for i, given in enumerate(issues)]
    (folder / "label_issues.csv").write_text("\n".join(rows) + "\n")
    log = Decisions(folder, write=True)
    log.add(0, "accept", None, 0, 1, "Ada")
    log.close()
    return folder


WINES = [
    "index,alcohol,proline,ash,kind,split",
    "7,14.23,1065,2.430,a,train",
    "8,13.2,1050,+1e-3,b,val",
    "9,12.00,123456789,0.1,a,train",
    "10,13.16,-5,.5,b,test",
    "11,12.37,0,1.70,b,train",
]


def test_a_table_of_numbers_keeps_its_cells_as_they_were_written(tmp_path):
    folder = numbers_run(tmp_path, WINES, [0, 0, 1], label_column="kind")
    found = cleaned(folder)
    assert write_table(found, tmp_path / "cleaned.csv") == ""  # data to train on, though it begins with an index
    assert (tmp_path / "cleaned.csv").read_text().splitlines() == [
        "index,alcohol,proline,ash,split,label,given_label,source,probability",
        "7,14.23,1065,2.430,train,b,a,reviewed,",
        "9,12.00,123456789,0.1,train,a,a,given,",
        "11,12.37,0,1.70,train,b,b,given,",
        "8,13.2,1050,+1e-3,val,b,b,given,",
        "10,13.16,-5,.5,test,b,b,given,",
    ]
    again = load(tmp_path / "cleaned.csv")
    assert again.columns == found.dataset.columns == ("alcohol", "proline", "ash")
    assert np.array_equal(again.train.inputs, found.dataset.train.inputs)
    fewer = replace(found, dropped_columns=frozenset(["proline"]))
    assert fewer.rows()[0][:4] == ["index", "alcohol", "ash", "split"]


def test_columns_that_were_not_chosen_do_not_return_in_the_cleaned_table(tmp_path):
    chosen = {"label_column": "kind", "data_options": {"columns": ["ash", "alcohol"]}}
    head, rows = cleaned(numbers_run(tmp_path, WINES, [0, 0, 1], **chosen)).rows()
    assert (head[:3], next(rows)[:3]) == (["ash", "alcohol", "split"], ["2.430", "14.23", "train"])


def test_a_table_that_changes_while_it_is_cleaned_is_refused(tmp_path):
    found = cleaned(numbers_run(tmp_path, WINES, [0, 0, 1], label_column="kind"))
    (tmp_path / "wines.csv").write_text("\n".join(WINES[:-1]) + "\n")
    with pytest.raises(ValueError, match=r"wines\.csv.*changed"):
        write_table(found, tmp_path / "cleaned.csv")
    assert not (tmp_path / "cleaned.csv").exists()


def test_numbers_without_a_file_are_written_as_short_as_float32_allows(tmp_path):
    found = cleaned(numbers_run(tmp_path, WINES, [0, 0, 1], label_column="kind"))
    parts = {name: replace(getattr(found.dataset, name), cells=None) for name in ("train", "val", "test")}
    bare = replace(found, dataset=replace(found.dataset, **parts))
    assert next(bare.rows()[1])[:3] == [14.23, 1065.0, 2.43]
    assert describe(bare.dataset, 0) == {"row": {"alcohol": 14.23, "proline": 1065.0, "ash": 2.43}}


@pytest.mark.parametrize("missing", ["12.00", ""])
def test_a_cleaned_table_can_be_cleaned_again(tmp_path, missing):
    first = numbers_run(tmp_path, [line.replace("12.00", missing) for line in WINES], [0, 0, 1], label_column="kind")
    write_table(cleaned(first), tmp_path / "cleaned.csv")
    lines = (tmp_path / "cleaned.csv").read_text().splitlines()
    (tmp_path / "again").mkdir()
    second = cleaned(numbers_run(tmp_path / "again", lines, [1, 0, 1]))
    write_table(second, tmp_path / "twice.csv")
    rows = (tmp_path / "twice.csv").read_text().splitlines()
    assert rows[0] == lines[0]  # each column once
    assert rows[2] == f"9,{missing},123456789,0.1,train,a,a,given,"
    assert load(tmp_path / "twice.csv").train.labels.tolist() == second.labels.tolist()
