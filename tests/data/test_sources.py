"""`as_dataset`: one form for everything that people keep data in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ncsam
from ncsam import data
from ncsam.data import as_dataset
from ncsam.errors import UsageError

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(3)
X = RNG.normal(size=(6, 3))
Y = ["b", "a", "b", "a", "a", "b"]


def test_a_dataset_is_returned_as_it_is() -> None:
    made = data.from_arrays(X, Y)
    assert as_dataset(made) is made
    with pytest.raises(ValueError, match="label_column="):
        as_dataset(made, label_column="y")


@pytest.mark.parametrize(
    "x", [X, X.tolist(), torch.tensor(X), X.astype(np.float32)], ids=["numpy", "list", "torch", "float32"]
)
@pytest.mark.parametrize("y", [Y, np.array(Y), pandas.Series(Y)], ids=["list", "array", "series"])
def test_pairs_of_features(x: object, y: object) -> None:
    found = as_dataset((x, y), y_clean=["a"] * 6)
    np.testing.assert_allclose(found.train.inputs, X, rtol=1e-6)
    assert found.train.inputs.dtype == np.float32
    assert found.classes == ("a", "b")
    assert found.train.labels.tolist() == [1, 0, 1, 0, 0, 1]
    assert found.train.clean.tolist() == [0] * 6


def test_integers_are_features_and_uint8_with_four_axes_are_images() -> None:
    assert as_dataset((np.arange(8).reshape(4, 2), torch.tensor([0, 1, 0, 1]))).train.inputs.tolist()[3] == [6.0, 7.0]
    images = RNG.integers(0, 256, size=(4, 8, 8, 3), dtype=np.uint8)
    assert as_dataset((images, [0, 1, 0, 1]), test=(images[:2], [0, 1])).size == (8, 8)


def test_test_samples_share_the_classes() -> None:
    found = as_dataset((X, Y), test=(X[:2], ["a", "b"]))
    assert found.test.labels.tolist() == [0, 1]
    texts = as_dataset((["x", "y"], ["n", "p"]), test=(["z"], ["p"]))
    assert (list(texts.test.inputs), texts.test.labels.tolist()) == (["z"], [1])
    with pytest.raises(ValueError, match="test="):
        as_dataset((X, Y), test=X)


@pytest.mark.parametrize("wrap", [list, tuple, np.array, pandas.Series])
def test_pairs_of_texts(wrap: object) -> None:
    found = as_dataset((wrap(["good", "bad", "fine"]), [1, 0, 1]), classes=["no", "yes"])
    assert list(found.train.inputs) == ["good", "bad", "fine"]
    assert found.classes == ("no", "yes")


def test_pairs_of_paths(tmp_path: Path) -> None:
    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.png")
        Image.new("RGB", (5, 4), (number, 0, 0)).save(files[-1])
    found = as_dataset((files, ["a", "b", "a"]), test=([files[0]], ["b"]))
    assert [found.train.path(i) for i in range(3)] == [str(file) for file in files]
    assert found.size == (4, 5)
    assert found.test.labels.tolist() == [1]


def test_frames() -> None:
    frame = pandas.DataFrame({"age": [3.0, 1, 2], "hours": [1, 0, 1], "y": ["n", "p", "n"]}, index=[9, 9, 1])
    found = as_dataset(frame)
    assert found.columns == ("age", "hours")
    assert found.train.inputs.tolist() == [[3, 1], [1, 0], [2, 1]]
    assert found.train.labels.tolist() == [0, 1, 0]
    other = as_dataset(frame.rename(columns={"y": "kind"}), label_column="kind", input_column=["hours"])
    assert other.columns == ("hours",)
    pair = as_dataset((frame[["age", "hours"]], frame["y"]))
    np.testing.assert_array_equal(pair.train.inputs, found.train.inputs)
    assert as_dataset(frame, test=frame[:2]).test.labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match="label_column"):
        as_dataset(frame, label_column="nothing")
    with pytest.raises(ValueError, match="y="):
        as_dataset((frame[["age"]], ["n"]))
    with pytest.raises(ValueError, match="columns="):
        as_dataset(pandas.DataFrame([[1, 2, 0]], columns=["a", "a", "label"]))
    with pytest.raises(ValueError, match="data="):
        as_dataset(frame[:0])


def test_frames_of_texts() -> None:
    frame = pandas.DataFrame({"words": ["so good", "so bad"], "stars": [5, 1], "label": [1, 0]})
    found = as_dataset(frame, input_column="words")
    assert list(found.train.inputs) == ["so good", "so bad"]
    assert found.notes == ("columns that are not used: stars",)
    with pytest.raises(ValueError, match="input_column="):
        as_dataset(frame, input_column="text")


def test_torch_datasets() -> None:
    pairs = torch.utils.data.TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor([0, 1, 0, 1, 1, 0]))
    found = as_dataset(pairs, test=pairs, classes=["n", "p"])
    np.testing.assert_allclose(found.train.inputs, X, rtol=1e-6)
    assert found.classes == ("n", "p")
    assert len(found.test) == 6
    for items in ([("one", 0), ("two", 1), ("three", 0)], [{"text": "one", "label": 0}, {"text": "two", "label": 1}]):
        assert list(as_dataset(items).train.inputs)[:2] == ["one", "two"]
    with pytest.raises(ValueError, match=r"data\[1\]"):
        as_dataset([("one", 0), (2, 1)])
    with pytest.raises(ValueError, match="label_column="):
        as_dataset(pairs, label_column="y")


def test_paths_and_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("words,stars,kind\nso good,5,p\nso bad,1,n\n")
    found = as_dataset(tmp_path / "t.csv", label_column="kind", input_column="words")
    assert list(found.train.inputs) == ["so good", "so bad"]
    assert as_dataset(str(tmp_path / "t.csv"), label_column="kind", input_column=["stars"]).columns == ("stars",)
    with pytest.raises(ValueError, match="test="):
        as_dataset(tmp_path / "t.csv", test=(X, Y))
    with pytest.raises(ValueError, match="unknown dataset"):
        as_dataset("no_such_data")


def test_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"sentence": datasets.Value("string"), "kind": datasets.ClassLabel(names=["n", "p"])})
    part = datasets.Dataset.from_dict({"sentence": ["good", "bad", "fine"], "kind": [1, 0, 1]}, features=features)
    found = as_dataset(part, label_column="kind")
    assert found.classes == ("n", "p")
    assert list(found.train.inputs) == ["good", "bad", "fine"]
    both = datasets.DatasetDict({"train": part, "validation": part.select([0, 1]), "test": part.select([2])})
    several = as_dataset(both, label_column="kind", input_column="sentence")
    assert {name: len(split) for name, split in several.splits.items()} == {"train": 3, "val": 2, "test": 1}
    Image.new("RGB", (6, 5), (9, 8, 7)).save(tmp_path / "a.png")
    images = datasets.Dataset.from_dict(
        {"picture": [str(tmp_path / "a.png")] * 2, "label": [0, 1]},
        features=datasets.Features({"picture": datasets.Image(), "label": datasets.Value("int64")}),
    )
    shown = as_dataset(images, input_column="picture")
    assert shown.size == (5, 6)
    assert shown.train.path(1) == str(tmp_path / "a.png")


@pytest.mark.parametrize("wrong", [5, None, b"bytes", X, {}, {"a": [1], "label": [1, 2]}, (X, None), ([], [])])
def test_everything_else_is_one_error(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"data|y=|x|X"):
        as_dataset(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        ["a", "b"],
        [1.5],
        [[1, 2], [3]],
        range(3),
        torch.zeros(3),
        torch.tensor(0.5),
        {"a": 5},
        pandas.Series([1]),
        [(1,)],
    ],
    ids=str,
)
def test_what_holds_no_labels_is_one_error(wrong: object) -> None:
    with pytest.raises(UsageError, match=r"^invalid data="):
        as_dataset(wrong)


def test_missing_labels_of_pandas_are_missing() -> None:
    with pytest.raises(ValueError, match="sample 1 has no label"):
        as_dataset((np.eye(2), ["a", pandas.NA]))


def test_options_of_another_form_are_refused() -> None:
    with pytest.raises(ValueError, match="from_arrays 'text_column'"):
        as_dataset((X, Y), text_column="a")


def test_a_record_of_noise_brings_its_clean_labels() -> None:
    truth = np.arange(60) % 3
    record = ncsam.noise.symmetric(truth, 0.4, seed=0)
    x = np.random.default_rng(0).normal(size=(60, 2))
    texts = [f"text {number}" for number in range(60)]
    for inputs in (x, texts, pandas.DataFrame(x, columns=["a", "b"])):
        train = as_dataset((inputs, record)).train
        assert train.labels.tolist() == record.noisy.tolist()
        assert train.clean is not None
        assert train.clean.tolist() == record.clean.tolist()
    with pytest.raises(UsageError, match=r"invalid y=<NoisyLabels.*expected a record of the 60 training samples of 3"):
        as_dataset((x, ncsam.noise.symmetric(truth, 0.4, num_classes=4, seed=0)))
