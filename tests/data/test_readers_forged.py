"""Archives, indices and tables made to mislead: each is read as what it is, ignored, or refused in one sentence."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ncsam import data
from ncsam.data.readers import folder_index, shards
from ncsam.data.readers.archives import extract, read_members
from ncsam.data.tables.annotators import read_annotations

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 7, 3), dtype=np.uint8)


def png(i: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS[i]).save(buffer, format="png")
    return buffer.getvalue()


def archive(path: Path, labels: list[bytes], suffix: str = "cls") -> Path:
    with tarfile.open(path, "w") as tar:
        for i, label in enumerate(labels):
            for name, content in ((f"{i}.png", png(i)), (f"{i}.{suffix}", label)):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def soon():
    """Fail instead of hanging."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def below_zero(path: Path) -> Path:
    """The size in the first header as -512, in base 256; and the header's sum."""
    raw = bytearray(path.read_bytes())
    raw[124:136] = (2**96 - 512).to_bytes(12, "big")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(raw)
    return path


def test_an_archive_with_a_size_below_zero_ends(tmp_path: Path, soon: None) -> None:
    """Python's own reader goes round in circles there (CVE-2025-8194, mended in 3.11.14)."""
    path = below_zero(archive(tmp_path / "a.tar", [b"0", b"1"]))
    with pytest.raises(ValueError, match=r"a\.tar.*readable"):
        data.load(path)
    with pytest.raises(ValueError, match=r"a\.tar is truncated or damaged"):
        extract(path, tmp_path / "out")
    with pytest.raises(ValueError, match=r"a\.tar is truncated or damaged"):
        read_members(path, bool)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("label", [b"1", b"true", b"[1, 2]", b'"label"', b"null", b"{}"])
def test_a_json_without_a_label_by_name_is_no_label(tmp_path: Path, label: bytes) -> None:
    with pytest.raises(ValueError, match=r"label .* for sample '0'"):
        data.load(archive(tmp_path / "a.tar", [label], "json"))


@pytest.mark.parametrize("label", [b"[" * 100_000, b'{"a": "' + b"x" * (1 << 20) + b'"}'])
def test_a_json_that_is_deep_or_long_is_refused(tmp_path: Path, label: bytes) -> None:
    with pytest.raises(ValueError, match=r"\.json.*'0'"):
        data.load(archive(tmp_path / "a.tar", [label], "json"))


def test_a_sparse_member_is_not_blown_up(tmp_path: Path) -> None:
    """A member that says it stands for a gigabyte of zeros, and is a few bytes."""
    path = archive(tmp_path / "a.tar", [b"0", b"1"])
    member = tarfile.TarInfo("2.json")
    member.type = tarfile.GNUTYPE_SPARSE
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (0, 0)  # one piece of no bytes
    header[483:495] = b"%011o\0" % (1 << 30)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    raw = path.read_bytes()
    path.write_bytes(bytes(header) + raw)
    with tarfile.open(path) as tar:
        assert tar.getmember("2.json").size == 1 << 30
    assert len(data.load(path).train) == 2


@pytest.mark.parametrize(
    "places",
    [
        [[0, 0, 10**13]] * 2,
        [[9, 0, 5]] * 2,
        [[-1, 0, 5]] * 2,
        [[0, -512, 5]] * 2,
        [[0, 0, -1]] * 2,
        [[0, 0, 5]],
        [[0.5] * 3] * 2,
        [0, 1],
    ],
)
def test_an_index_of_archives_that_cannot_be_is_made_anew(tmp_path: Path, places: list[object]) -> None:
    archive(tmp_path / "a.tar", [b"0", b"1"])
    data.load(tmp_path)
    with np.load(tmp_path / shards.INDEX) as file:
        state = file["state"]
    np.savez(tmp_path / shards.INDEX, state=state, places=np.array(places), labels=np.array(["0", "1"]))
    read = data.load(tmp_path)
    np.testing.assert_array_equal(read.train.inputs[1], PIXELS[1])
    raw = (tmp_path / shards.INDEX).read_bytes()
    (tmp_path / shards.INDEX).write_bytes(raw[: len(raw) // 2])
    np.testing.assert_array_equal(data.load(tmp_path).train.inputs[1], PIXELS[1])


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ([b"cat/0.png", b"/etc/passwd"], [0, 1]),
        ([b"cat/0.png", b"../other.png"], [0, 1]),
        ([b"cat/0.png", b"dog/1.png"], [0, 9]),
        ([b"cat/0.png", b"dog/1.png"], [-1, 0]),
        ([b"cat/0.png", b"dog/1.png"], [0.0, 1.0]),
        ([b"cat/0.png"], [0, 1]),
    ],
)
def test_an_index_of_files_that_cannot_be_is_not_used(tmp_path: Path, names: list[bytes], labels: list[int]) -> None:
    folder = tmp_path / "photos"
    for i, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{i}.png").write_bytes(png(i))
    forge_index(folder, names, labels)
    read = data.load(folder)
    assert [str(path) for path in read.train.inputs] == [str(folder / "cat/0.png"), str(folder / "dog/1.png")]
    assert read.train.labels.tolist() == [0, 1]
    (folder / folder_index.INDEX).write_bytes(b"PK\x03\x04 no archive")
    assert len(data.load(folder).train) == 2


def forge_index(folder: Path, names: list[bytes], labels: list[int]) -> None:
    times = [(folder / name).stat().st_mtime_ns for name in ("cat", "dog")]
    arrays = {"names": np.array(names), "labels": np.array(labels), "times": np.array(times)}
    folders, classes = np.array([b"cat", b"dog"]), np.array(["cat", "dog"])
    np.savez(folder / folder_index.INDEX, folders=folders, classes=classes, **arrays)


def test_a_pipe_that_an_index_calls_a_image_is_not_waited_for(tmp_path: Path, soon: None) -> None:
    folder = tmp_path / "photos"
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        (folder / name / "0.png").write_bytes(png(0))
    (folder / "dog/0.png").unlink()
    os.mkfifo(folder / "dog/0.png")
    forge_index(folder, [b"cat/0.png", b"dog/0.png"], [0, 1])
    read = data.load(folder, in_memory=False)
    with pytest.raises(ValueError, match=r"dog/0\.png.*regular file"):
        data.check_images(read.train)


def test_a_spoiled_parquet_file_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "t.parquet").write_bytes(b"PAR1" + b"\xff" * 100 + b"\x64\0\0\0PAR1")
    with pytest.raises(ValueError, match="readable Parquet file"):
        data.load(tmp_path / "t.parquet")


def test_times_beyond_the_calendar_are_one_sentence(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    times = arrow.array([0, 2**62]).view(arrow.timestamp("us"))
    parquet.write_table(arrow.table({"text": ["a", "b"], "label": times}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet.*'label'.*timestamp\[us\]"):
        data.load(tmp_path / "t.parquet")


def test_classes_of_an_archive_are_a_row_of_names(tmp_path: Path) -> None:
    for classes in (np.array(3), np.array([["a", "b"]])):
        np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2, classes=classes)
        with pytest.raises(ValueError, match=r"a\.npz, classes\.shape=.*"):
            data.load(tmp_path / "a.npz")


def test_answers_in_any_encoding_and_of_any_size(tmp_path: Path, soon: None) -> None:
    path = tmp_path / "answers.csv"
    path.write_text("path,Ada\nä.png,4006381333931\nb.png,7\n", encoding="utf-16")
    found = read_annotations(path)
    assert found.classes == ("7", "4006381333931")
    assert found.answers.tolist() == [[1], [0]]
    path.write_text("path,Ada\nä.png,0\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"line 2, is not UTF-8"):
        read_annotations(path)
    path.write_text("path,Ada\na.png,-3\n")
    with pytest.raises(ValueError, match="label -3 is no class number"):
        read_annotations(path)
    path.write_text("path,Ada\na.png,1,2\n")
    with pytest.raises(ValueError, match=r"line 2: 3.*has 2"):
        read_annotations(path)


def test_a_table_of_answers_computes_nothing_in_a_spreadsheet(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from ncsam.cli.main import main

    (tmp_path / "a.csv").write_text("path,Ada,Ben\n=cmd.png,x,x\nb.png,y,x\n")
    result = CliRunner().invoke(main, ["annotators", str(tmp_path / "a.csv"), "--out", str(tmp_path / "l.csv")])
    assert result.exit_code == 0, result.output
    assert [line.split(",")[0] for line in (tmp_path / "l.csv").read_text().splitlines()] == [
        "path",
        "./=cmd.png",
        "b.png",
    ]


def test_json_is_what_it_is(tmp_path: Path) -> None:
    from ncsam._files import read_array, read_json

    path = tmp_path / "a.json"
    for text in ("{", "[" * 100_000, "", "nul"):
        path.write_text(text)
        with pytest.raises(ValueError, match="readable JSON"):
            read_json(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="holds a list"):
        read_json(path)
    path.write_text(json.dumps({"a": 1}), encoding="utf-16")
    assert read_json(path) == {"a": 1}
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "b.npy", x=np.zeros(2))
    (tmp_path / "b.npy.npz").rename(tmp_path / "b.npy")
    (tmp_path / "c.npy").write_bytes(b"\x93NUMPY\x01\0\x76\0{")
    for name, said in (("a", "holds Python objects"), ("b", "holds several arrays"), ("c", "truncated or damaged")):
        with pytest.raises(ValueError, match=said) as found:
            read_array(tmp_path / f"{name}.npy")
        assert "pickle" not in str(found.value)


def test_a_damaged_archive_of_arrays_is_named_and_no_advice_is_passed_on(tmp_path: Path) -> None:
    from ncsam._files import open_arrays

    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros(3), y=np.arange(3))
    whole, header = path.read_bytes(), io.BytesIO()
    np.save(header, np.zeros(3))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue().replace(b"}", b" ", 1))
    spoiled = {
        "its beginning": b"XX" + whole[2:],  # to numpy that is a pickle, though the archive's end is sound
        "a header that never closes": path.read_bytes(),
        "an offset before the beginning": whole[:60] + whole[61:],
    }
    for what, content in spoiled.items():
        path.write_bytes(content)
        with (
            pytest.raises(ValueError, match=r"a\.npz is (truncated or )?damaged") as found,
            open_arrays(path) as arrays,
        ):
            assert [arrays[name] for name in arrays], what
        assert "pickle" not in str(found.value)
    with pytest.raises(IsADirectoryError), open_arrays(tmp_path):
        pass  # what is no damage stays what it is
