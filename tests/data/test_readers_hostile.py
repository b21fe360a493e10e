"""Odd files and values: names of any bytes, links in circles, pipes, labels of any size, encodings."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ncsam import data
from ncsam._files import read_text
from ncsam.data import from_arrays, load
from ncsam.data.images.files import image_files
from ncsam.engine import RunConfig, train
from ncsam.runs.reader import RunFolder


def images(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), count: int = 3) -> Path:
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


def within(seconds: float, work: object) -> object:
    """The result of `work()`, which must not hang."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(work())  # type: ignore[operator]
        except Exception as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert result, "it hangs"
    return result[0]


def test_training_on_names_that_are_not_utf8_ends_and_names_them(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos", count=6)
    odd = os.fsdecode(b"b\xffrd\n")
    (folder / "cat").rename(folder / odd)
    (folder / odd / "0.png").rename(folder / odd / os.fsdecode(b"\xe9\x1b.png"))
    config = RunConfig(data=str(folder), epochs=1, optimizer="sgd", val_share=0, model="mlp", batch_size=4)
    train(config, tmp_path / "run", console=False)
    table = (tmp_path / "run/label_issues.csv").read_text(encoding="utf-8")
    assert r"b\xffrd\n/\xe9\x1b.png" in table
    assert RunFolder.read(tmp_path / "run").classes == [r"b\xffrd\n", "dog"]
    assert train(config, tmp_path / "run", console=False)["epochs"] == 1


def test_two_names_that_look_the_same_are_refused(tmp_path: Path) -> None:
    images(tmp_path / "photos", (os.fsdecode(b"a\xff"), r"a\xff"))
    with pytest.raises(ValueError, match="classes of the same name"):
        load(tmp_path / "photos")


def test_links_in_circles_add_no_sample(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos")
    (folder / "self").symlink_to(".")
    (folder / "cat/again").symlink_to(".")
    (folder / "cat/above").symlink_to("..")
    (folder / "dog/cats").symlink_to(folder / "cat")  # no circle: those are meant
    found = within(20, lambda: load(folder))
    assert isinstance(found, data.DataSet)
    assert found.classes == ("cat", "dog")
    assert np.bincount(found.train.labels).tolist() == [3, 6]


def test_each_folder_is_read_once_by_its_own_name(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos", ("z",), count=1)
    (folder / "a").symlink_to("z")
    assert image_files(folder) == ["z/0.png"]


def test_a_link_that_leads_nowhere_is_said_and_not_left_out(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos")
    (folder / "cat/lost.png").symlink_to("nowhere.png")
    assert "cat/lost.png" in image_files(folder / "cat") or "lost.png" in image_files(folder / "cat")


def test_a_pipe_among_the_images_is_one_sentence(tmp_path: Path) -> None:
    folder = images(tmp_path / "photos")
    os.mkfifo(folder / "cat/x.png")
    error = within(20, lambda: load(folder))
    assert isinstance(error, ValueError)
    assert "x.png is a pipe, a socket or a device, not an image file" in str(error)
    (tmp_path / "table.csv").write_text("path,label\nphotos/cat/x.png,a\nphotos/cat/1.png,b\n")
    error = within(20, lambda: load(tmp_path / "table.csv"))
    assert isinstance(error, FileNotFoundError)
    assert "1 of 2 files do not exist" in str(error)


FEATURES = np.arange(12.0, dtype=np.float32).reshape(6, 2)


@pytest.mark.parametrize(
    "labels",
    [
        [4006381333931, 9, 4006381333931, 9, 9, 17],
        np.array([2**64 - 1, 9, 2**64 - 1, 9, 9, 17], dtype=np.uint64),
        ["4006381333931", "9", "4006381333931", "9", "9", "17"],
        [10**40, 9, 10**40, 9, 9, 17],
        ["1" + "0" * 5000, "9", "1" + "0" * 5000, "9", "9", "17"],
    ],
)
def test_numbers_too_large_to_count_classes_by_are_names(labels: object) -> None:
    found = within(20, lambda: from_arrays(FEATURES, labels))
    assert isinstance(found, data.DataSet), found
    assert found.classes[:2] == ("9", "17")
    assert found.train.labels.tolist() == [2, 0, 2, 0, 0, 1]


def test_small_numbers_are_class_numbers_as_ever() -> None:
    assert from_arrays(FEATURES, [2, 1, 0, 2, 1, 0]).classes == ("0", "1", "2")
    with pytest.raises(ValueError, match="classes have no training sample"):
        from_arrays(FEATURES, [0, 5000, 0, 5000, 0, 0])
    assert from_arrays(FEATURES, [0, 5000, 0, 5000, 0, 0], allow_empty=True).num_classes == 5001


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([1 + 0j] * 6, "labels of type complex128; expected whole numbers or text"),
        ([1e300] * 6, "is not a whole number"),
        ([float("inf")] * 6, "is not a whole number"),
        ([0, None, 1, 0, 1, 1], "sample 1 has no label"),
        ([-(10**12), 1, 0, 1, 1, 1], "out of range"),
    ],
)
def test_labels_that_are_none_are_refused(labels: list[object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_arrays(FEATURES, labels)


def test_bytes_are_names() -> None:
    assert from_arrays(FEATURES, np.array([b"cat", b"dog"] * 3)).classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": ["a", "a"]}, "classes of the same name: 'a'"),
        ({"std": [1.0]}, r"std=\(1.0,\)"),
        ({"mean": [0.0] * 3, "std": [1.0] * 3}, r"mean=.*"),
        ({"mean": [0.0, float("nan")]}, r"mean=.*"),
        ({"std": [1.0, 0.0]}, r"std=.*"),
    ],
)
def test_a_wrong_description_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_arrays(FEATURES, [0, 1] * 3, **options)  # type: ignore[arg-type]


def test_features_beyond_float32_are_said_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1e\+300.*float32"):
        from_arrays(np.array([[1e300], [0.0]]), [0, 1])


TABLE = "path,label\nphotos/cat/0.png,Füchse\nphotos/cat/1.png,日本\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_tables_in_unicode_are_read(tmp_path: Path, encoding: str) -> None:
    images(tmp_path / "photos")
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    (tmp_path / "table.csv").write_bytes(mark + TABLE.encode(encoding))
    assert load(tmp_path / "table.csv").classes == ("Füchse", "日本")


def test_other_encodings_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(TABLE.replace("日本", "x").encode("latin-1"))
    with pytest.raises(ValueError, match=r"table.csv, line 2.*UTF-8.*UTF-8 \(from Latin-1"):
        load(path)
    path.write_bytes(TABLE.encode("utf-16-le"))  # without its mark
    with pytest.raises(ValueError, match=r"is not text: it holds zero bytes|is not UTF-8"):
        load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="line 1, is not UTF-16"):
        read_text(path)
    path.write_bytes('data: "Füchse"'.encode("latin-1"))
    with pytest.raises(ValueError, match="is not UTF-8"):
        RunConfig.from_yaml(path)


def test_a_field_that_never_ends_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('path,label\n"' + "x" * 200_000)
    with pytest.raises(ValueError, match="is not a row of a table"):
        load(tmp_path / "t.csv")
