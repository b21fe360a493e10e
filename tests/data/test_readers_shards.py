"""Images inside tar archives and Parquet files: the same pixels, stable numbers, and an index that is kept."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ncsam import data
from ncsam.data.loading.loader import Loader
from ncsam.data.readers import shards
from ncsam.engine import RunConfig, train
from ncsam.errors import UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (9, 6, 7, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return buffer.getvalue()


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def write_shard(path: Path, samples: range, labels: str = "cls") -> None:
    with tarfile.open(path, "w") as tar:
        for i in samples:
            label = str(i % 3).encode() if labels == "cls" else json.dumps({"label": "abc"[i % 3]}).encode()
            parts = [(f"s/{i:04d}.{labels}", label), (f"s/{i:04d}.png", png(PIXELS[i]))]
            for name, content in parts if i % 2 else reversed(parts):
                add(tar, name, content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shard(tmp_path / "train-000.tar", range(4))
    write_shard(tmp_path / "train-001.tar", range(4, 7))
    write_shard(tmp_path / "val-000.tar", range(7, 9))
    return tmp_path


def test_shards_hold_what_was_written_in_a_fixed_order(folder: Path) -> None:
    read = data.load(folder)
    assert read.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert read.test.labels.tolist() == [1, 2]
    assert read.size == (6, 7)
    for i in range(7):
        np.testing.assert_array_equal(read.train.inputs[i], PIXELS[i])
    np.testing.assert_array_equal(read.test.inputs[1], PIXELS[8])
    np.testing.assert_array_equal(read.train.take(np.array([5])).inputs[0], PIXELS[5])
    stored = data.from_arrays(PIXELS[:7], read.train.labels, mean=read.mean, std=read.std)
    views = [
        next(Loader(split, 7, views="weak", mean=read.mean, std=read.std, size=(6, 7), seed=3).iterate(1))
        for split in (read.train, stored.train)
    ]
    assert views[0].index.tolist() == views[1].index.tolist()
    np.testing.assert_allclose(views[0].views[0], views[1].views[0], atol=1e-6)


def test_the_index_is_kept_until_an_archive_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data.load(folder)
    assert (folder / shards.INDEX).is_file()
    read: list[Path] = []
    headers = shards._read_headers
    monkeypatch.setattr(shards, "_read_headers", lambda path, *rest: (read.append(path), headers(path, *rest))[1])
    again = data.load(folder)
    assert read == []
    assert again.train.labels.tolist() == first.train.labels.tolist()
    np.testing.assert_array_equal(again.train.inputs[6], PIXELS[6])
    write_shard(folder / "train-001.tar", range(4, 6))
    assert len(data.load(folder).train) == 6
    assert len(read) == 3
    (folder / shards.INDEX).write_bytes(b"broken")
    assert len(data.load(folder).train) == 6


def test_one_archive_with_labels_in_json(tmp_path: Path) -> None:
    write_shard(tmp_path / "mine.tar", range(5), "json")
    read = data.load(tmp_path / "mine.tar", keep_index=False)
    assert read.classes == ("a", "b", "c")
    assert read.train.labels.tolist() == [0, 1, 2, 0, 1]
    assert not (tmp_path / shards.INDEX).exists()


def test_archives_that_cannot_be_used_say_why(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        add(tar, "7.png", png(PIXELS[0]))
    with pytest.raises(ValueError, match=r"label .* for sample '7'"):
        data.load(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(ValueError, match=r"b\.tar.*readable"):
        data.load(tmp_path / "b.tar")
    with tarfile.open(tmp_path / "c.tar", "w") as tar:
        add(tar, "1.png", b"no image")
        add(tar, "1.cls", b"0")
    with pytest.raises(ValueError, match=r"c\.tar, sample 0"):
        data.load(tmp_path / "c.tar")


def of_three(arrow: Any, first: int, last: int) -> Any:
    """Rows as `datasets` writes them: images as dicts, class numbers, and the names of the classes in a note."""
    contents = [{"bytes": png(p), "path": None} for p in PIXELS[first:last]]
    table = arrow.table({"image": contents, "label": [row % 2 for row in range(first, last)]})
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["oak", "ash"]}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


@pytest.mark.parametrize("kind", ["parquet", "parquet in data", "saved splits", "one saved"])
def test_a_folder_of_datasets(tmp_path: Path, kind: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"train-0-of-2": (0, 2), "train-1-of-2": (2, 4), "test-0-of-1": (4, 6)}
    for name, (first, last) in rows.items():
        table = of_three(arrow, first, last)
        if "parquet" in kind:
            place = tmp_path / "data" if "data" in kind else tmp_path
            place.mkdir(exist_ok=True)
            parquet.write_table(table, place / f"{name}.parquet")
        else:
            split, _, number = name.partition("-")
            place = tmp_path / split if kind == "saved splits" else tmp_path
            place.mkdir(exist_ok=True)
            file = place / (f"data-{number}.arrow" if kind == "saved splits" else f"data-{first}.arrow")
            with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
            (place / "state.json").write_text("{}")
            if kind == "saved splits":
                (tmp_path / "dataset_dict.json").write_text("{}")
    read = data.load(tmp_path)
    assert read.classes == ("oak", "ash")
    if kind == "one saved":
        assert (len(read.train), read.test) == (6, None)
    else:
        assert read.test is not None
        assert (read.train.labels.tolist(), read.test.labels.tolist()) == ([0, 1, 0, 1], [0, 1])
        np.testing.assert_array_equal(read.test.inputs[1], PIXELS[5])  # type: ignore[index]
    for i in range(4):
        np.testing.assert_array_equal(read.train.inputs[i], PIXELS[i])  # type: ignore[index]


def test_a_folder_of_datasets_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="Parquet or Arrow file"):
        data.load(tmp_path)
    (tmp_path / "data-0.arrow").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"data-0\.arrow.*readable"):
        data.load(tmp_path)
    (tmp_path / "state.json").unlink()
    parquet.write_table(arrow.table({"x": [1.0], "label": [0]}), tmp_path / "train-0.parquet")
    parquet.write_table(arrow.table({"z": [1.0], "label": [1]}), tmp_path / "train-1.parquet")
    with pytest.raises(ValueError, match=r"train-1\.parquet.*train-0\.parquet"):
        data.load(tmp_path)


def test_damaged_offsets_pipes_and_names_that_are_there_twice(tmp_path: Path) -> None:
    """Of a text behind the end of its file, nothing is read; and nobody waits for a pipe."""
    pyarrow = pytest.importorskip("pyarrow", reason="ncsam[parquet] is not installed")
    (tmp_path / "state.json").write_text("{}")
    file = tmp_path / "data-0.arrow"

    def write(table: Any) -> bytes:
        with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return file.read_bytes()

    raw = write(pyarrow.table({"text": ["a", "bb"], "label": [0, 1]}))
    assert data.load(tmp_path).num_classes == 2
    offsets = np.array([0, 1, 3], np.int32).tobytes()
    assert raw.count(offsets) == 1
    file.write_bytes(raw.replace(offsets, np.array([0, 1, 2**30], np.int32).tobytes()))
    with pytest.raises(ValueError, match=r"data-0\.arrow.*readable"):
        data.load(tmp_path)
    write(pyarrow.table([["a", "b"], [0, 1]], names=["text", "text"]))
    with pytest.raises(ValueError, match=r"data-0\.arrow.*columns"):
        data.load(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ValueError, match="is not a readable Arrow file"):
        data.load(tmp_path)
    (tmp_path / "state.json").unlink()
    file.rename(tmp_path / "train-0.parquet")
    with pytest.raises(ValueError, match="is not a readable Parquet file"):
        data.load(tmp_path)


def test_a_pipe_among_the_shards_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-0.tar")
    with pytest.raises(UsageError, match=r"train-0\.tar"):
        data.load(tmp_path)


@pytest.mark.parametrize("as_dict", [True, False])
def test_images_inside_parquet(tmp_path: Path, as_dict: bool) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    contents = [{"bytes": png(p), "path": None} if as_dict else png(p) for p in PIXELS[:4]]
    parquet.write_table(arrow.table({"image": contents, "label": [0, 1, 0, 1]}), tmp_path / "p.parquet")
    read = data.load(tmp_path / "p.parquet")
    assert read.size == (6, 7)
    for i in range(4):
        np.testing.assert_array_equal(read.train.inputs[i], PIXELS[i])
    _, bad = data.check_images(read.train)
    assert bad == []


def test_samples_keep_their_numbers_through_training(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A method with memory per sample, and label issues, are the same from archives as from an array in their order."""
    out = tmp_path_factory.mktemp("runs")
    np.savez(out / "same.npz", x=PIXELS[:7], y=np.arange(7) % 3, x_test=PIXELS[7:], y_test=np.arange(7, 9) % 3)
    config = RunConfig(method="elr", optimizer="sgd", model="mlp", epochs=3, val_share=0, augment="none")
    read = data.load(folder)
    train(config.replace(data=str(folder)), out / "shards", console=False)
    alike = {"mean": list(read.mean), "std": list(read.std)}
    train(config.replace(data=str(out / "same.npz"), data_options=alike), out / "array", console=False)
    one, other = ((out / name / "label_issues.csv").read_text() for name in ("shards", "array"))
    assert one == other
    assert len(one.splitlines()) == 8
