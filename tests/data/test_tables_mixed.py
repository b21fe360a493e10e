"""Mixed tables as datasets: encoded by what the training rows say, stored with the modality, applied to new rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ncsam import data
from ncsam.data.modalities import modality_of, restored_modality, saved_modality
from ncsam.data.tables import features
from ncsam.pretrained.wordllama import WordLlama

HEADER = "id,age,city,member,since,constant,label,split\n"
ROWS = [
    "1,31,Oslo,yes,2024-01-31,x,a,train",
    "2,,Rome,no,2023-05-01,x,b,train",
    "3,45,Oslo,no,2022-12-24,x,a,train",
    "4,28,Rome,yes,,x,b,train",
    "5,60,Lima,yes,2021-01-01,x,a,test",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "mixed.csv"
    file.write_text(HEADER + "\n".join(ROWS) + "\n")
    return file


def test_mixed_columns_become_features_fitted_to_the_training_rows(path: Path) -> None:
    read = data.load(path)
    assert read.columns[:5] == ("age", "age is missing", "city = Oslo", "city = Rome", "member")
    ages = np.array([31, 31, 45, 28])  # the median of the training rows in the place of the missing one
    np.testing.assert_allclose(read.train.inputs[:, 0], (ages - ages.mean()) / ages.std(), rtol=1e-5)
    assert read.train.inputs[:, 1].tolist() == [0, 1, 0, 0]
    assert read.train.inputs[:, 2].tolist() == [1, 0, 1, 0]
    assert read.test.inputs[0, 2:4].tolist() == [0, 0]  # Lima was not among the training rows
    assert read.train.labels.tolist() == [0, 1, 0, 1]
    assert (read.mean, read.std) == ((0.0,), (1.0,))


def test_nothing_is_left_out_silently(path: Path) -> None:
    notes = " | ".join(data.load(path).notes)
    assert "constant (every value is 'x')" in notes
    assert "not used: id" in notes
    assert "age (numbers, missing ones replaced by 31)" in notes


def test_the_modality_carries_the_preprocessing_to_new_rows(path: Path, tmp_path: Path) -> None:
    read = data.load(path)
    state = json.loads(json.dumps(saved_modality(modality_of(read))))
    kind = restored_modality(state)
    names, again = kind.read([path])
    np.testing.assert_array_equal(again, np.concatenate([read.train.inputs, read.test.inputs]))
    assert names[4] == f"{path}[4]"
    (tmp_path / "new.csv").write_text("since,city,age,member\n2024-02-01,Oslo,,no\n")
    assert kind.read([tmp_path / "new.csv"])[1][0, 1:4].tolist() == [1, 1, 0]
    (tmp_path / "bad.csv").write_text("city,age,member\nOslo,,no\n")
    with pytest.raises(ValueError, match="'since'"):
        kind.read([tmp_path / "bad.csv"])


def test_the_rows_are_shown_as_they_were_written(path: Path) -> None:
    read = data.load(path)
    shown = read.original
    assert shown.train.inputs[0]["city"] == "Oslo"
    assert shown.train.labels.tolist() == read.train.labels.tolist()
    assert modality_of(shown).preview(shown.train.inputs, 1) == (
        "id: 2, city: Rome, member: no, since: 2023-05-01, constant: x"
    )
    part = read.train.take(np.array([2, 0]))
    assert [row["age"] for row in part.original] == ["45", "31"]
    assert shown.test.inputs[0]["city"] == "Lima"


def test_frames_agree_with_files(path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    from_file, from_frame = data.load(path), data.as_dataset(pandas.read_csv(path))
    np.testing.assert_array_equal(from_frame.train.inputs, from_file.train.inputs)
    assert from_frame.columns == from_file.columns
    found = modality_of(from_frame).of_table({"age": [31.0], "city": ["Oslo"], "member": ["yes"], "since": [None]})
    assert found.shape == (1, len(from_frame.columns))


def test_columns_can_be_named(path: Path) -> None:
    read = data.load(path, columns=["city", "age"])
    assert read.columns == ("city = Oslo", "city = Rome", "age", "age is missing")
    with pytest.raises(ValueError, match="columns="):
        data.load(path, columns=["town"])


def test_a_column_without_values_is_dropped_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,label\n,1,x\n,2,y\n,4,x\n")
    read = data.load(tmp_path / "t.csv")
    assert read.columns == ("b",)
    assert read.notes == ("columns that were dropped: a (all values are missing)",)


def test_two_columns_of_one_name_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,a,label\n1,2,x\n3,4,y\n")
    with pytest.raises(ValueError, match="two columns of one name: a"):
        data.load(tmp_path / "t.csv")


TEXTS = [
    "the parcel came late again",
    "a very good product indeed",
    "it broke after one day only",
    "works as it should",
]


def table_with_texts(folder: Path) -> Path:
    path = folder / "t.csv"
    rows = [f"{number},{text},{label}" for number, (text, label) in enumerate(zip(TEXTS, "abab", strict=True), 3)]
    path.write_text("stars,opinion,label\n" + "\n".join(rows) + "\n")
    return path


class Lengths:
    num_features = 1

    def __call__(self, texts: list[str]) -> np.ndarray:
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    def fingerprint(self) -> str:
        return "lengths"


def test_free_text_is_embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "text_encoder", Lengths)
    read = data.load(table_with_texts(tmp_path))
    assert read.columns == ("stars", "opinion [0]")
    lengths = np.array([len(text) for text in TEXTS])
    np.testing.assert_allclose(read.train.inputs[:, 1], (lengths - lengths.mean()) / lengths.std(), rtol=1e-5)
    _, again = restored_modality(saved_modality(modality_of(read))).read([tmp_path / "t.csv"])
    np.testing.assert_array_equal(again, read.train.inputs)


def test_without_an_encoder_text_is_dropped_with_the_command_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "text_encoder", lambda: None)
    read = data.load(table_with_texts(tmp_path))
    assert read.columns == ("stars",)
    assert "opinion (free text" in read.notes[0]
    assert "ncsam[text]" in read.notes[0]


@pytest.mark.skipif(not WordLlama.installed(), reason="wordllama is not installed")
def test_the_real_encoder_embeds_texts(tmp_path: Path) -> None:
    read = data.load(table_with_texts(tmp_path))
    assert len(read.columns) == 257
    assert np.isfinite(read.train.inputs).all()
