"""Archives and downloads that cannot do harm, damaged images found, and names that are spelt wrong."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ncsam import data
from ncsam.data import registry
from ncsam.data.readers.archives import extract
from ncsam.data.readers.download import Remote, fetch
from ncsam.data.registry import data_root
from ncsam.data.types import PathList
from ncsam.errors import UsageError

# --- archives -------------------------------------------------------------------------------------------------------


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_of(path: Path, name: str, mode: int = 0o644) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, b"content")
    return path


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "parent": (lambda p: tar_of(p, (tarfile.TarInfo("../evil"), b"x")), "'../evil' would be written outside"),
    "deep parent": (lambda p: tar_of(p, (tarfile.TarInfo("a/../../evil"), b"x")), "would be written outside"),
    "absolute": (lambda p: tar_of(p, (tarfile.TarInfo("/evil"), b"x")), "'/evil' would be written outside"),
    "backslash": (lambda p: tar_of(p, (tarfile.TarInfo("..\\evil"), b"x")), "would be written outside"),
    "drive": (lambda p: tar_of(p, (tarfile.TarInfo("C:/evil"), b"x")), "would be written outside"),
    "symlink": (lambda p: tar_of(p, (link("a", "/etc/passwd", tarfile.SYMTYPE), b"")), "'a' is a link or a device"),
    "hard link": (lambda p: tar_of(p, (link("a", "../evil", tarfile.LNKTYPE), b"")), "is a link or a device"),
    "device": (lambda p: tar_of(p, (link("a", "", tarfile.CHRTYPE), b"")), "is a link or a device"),
    "zip parent": (lambda p: zip_of(p, "../evil"), "would be written outside"),
    "zip absolute": (lambda p: zip_of(p, "/evil"), "would be written outside"),
    "zip symlink": (lambda p: zip_of(p, "a", stat.S_IFLNK | 0o777), "is a link or a device"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archive_is_refused(tmp_path: Path, kind: str) -> None:
    make, message = HOSTILE[kind]
    home = tmp_path / "home"
    home.mkdir()
    archive = make(home / "archive.bin")
    with pytest.raises(ValueError, match=f"was not unpacked: its member .*{message.split(' ', 1)[1]}"):
        extract(archive, home / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive.bin", "home"]


def test_extraction_keeps_contents_and_drops_a_level_of_the_same_name(tmp_path: Path) -> None:
    archive = tar_of(
        tmp_path / "a.tar.gz", (tarfile.TarInfo("set/x/1.txt"), b"one"), (tarfile.TarInfo("set/2"), b"two")
    )
    assert (extract(archive, tmp_path / "set") / "x" / "1.txt").read_bytes() == b"one"
    assert (extract(archive, tmp_path / "other") / "set" / "2").read_bytes() == b"two"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    with pytest.raises(FileExistsError, match="is there already"):
        extract(archive, tmp_path / "set")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_truncated_archive_leaves_nothing(tmp_path: Path, kind: str) -> None:
    noise = np.random.default_rng(0).bytes(50_000)
    if kind == "tar":
        archive = tar_of(tmp_path / "a.tar.gz", (tarfile.TarInfo("big"), noise))
    else:
        archive = tmp_path / "a.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("big", noise)
    archive.write_bytes(archive.read_bytes()[:25_000])
    with pytest.raises(ValueError, match="truncated or damaged"):
        extract(archive, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [archive]


# --- downloads ------------------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("served")
    running = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}", folder
    running.shutdown()
    running.server_close()
    thread.join()


def test_download_is_verified_and_whole(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, folder = server
    content = b"images" * 1000
    (folder / "file.bin").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    md5 = hashlib.md5(content).hexdigest()
    for known in (digest, digest[:16]):
        target = fetch(Remote(f"{url}/file.bin", known, md5), tmp_path / known)
        assert target == tmp_path / known / "file.bin"
        assert target.read_bytes() == content
    (folder / "file.bin").unlink()
    assert fetch(Remote(f"{url}/file.bin", digest), tmp_path / digest).read_bytes() == content  # no second download


@pytest.mark.parametrize(
    ("remote", "message"),
    [
        ({"sha256": "0" * 64}, "has SHA-256 [0-9a-f]{64}, but 0{64} is the known one; it was discarded"),
        ({"sha256": ""}, "has SHA-256"),  # no digest, no trust
        ({"md5": "0" * 32}, "has MD5 [0-9a-f]{32}, but 0{32} is the published one"),
    ],
)
def test_wrong_digest_leaves_nothing(
    tmp_path: Path, server: tuple[str, Path], remote: dict[str, str], message: str
) -> None:
    url, folder = server
    (folder / "file.bin").write_bytes(b"other")
    right = {"sha256": hashlib.sha256(b"other").hexdigest()}
    with pytest.raises(ValueError, match=message):
        fetch(Remote(f"{url}/file.bin", **(right | remote)), tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []


def test_failed_download_says_where_to_put_the_file(tmp_path: Path, server: tuple[str, Path]) -> None:
    url, _ = server
    with pytest.raises(ConnectionError, match=r"absent.bin.*\(404.*put.*absent.bin"):
        fetch(Remote(f"{url}/absent.bin", "0" * 64), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_download_through_load(tmp_path: Path, server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip
    import struct

    from ncsam.data.readers import idx

    url, folder = server
    digests = {}
    for part, base in idx._FILES.items():
        if "images" in part:
            content = struct.pack(">IIII", 0x803, 10, 28, 28) + bytes(range(10)) * 784
        else:
            content = struct.pack(">II", 0x801, 10) + bytes(range(10))
        packed = gzip.compress(content)
        (folder / f"{base}.gz").write_bytes(packed)
        digests[part] = hashlib.sha256(packed).hexdigest()
    monkeypatch.setattr(idx, "_MNIST_URL", f"{url}/")
    monkeypatch.setattr(idx, "_MNIST_SHA256", digests)
    with pytest.raises(FileNotFoundError):
        data.load("mnist", tmp_path, partial=True)
    assert list(tmp_path.iterdir()) == []
    read = data.load("mnist", tmp_path, partial=True, download=True)
    assert read.train.labels.tolist() == list(range(10))
    assert len(list((tmp_path / "mnist").iterdir())) == 4


def test_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCSAM_DATA", str(tmp_path / "env"))
    assert data_root(tmp_path / "mine") == tmp_path / "mine"
    assert data_root() == tmp_path / "env"
    with pytest.raises(FileNotFoundError, match=f"under {tmp_path / 'env'}"):
        data.load("cifar10")
    monkeypatch.delenv("NCSAM_DATA")
    assert data_root() == Path.home() / ".cache" / "ncsam"


# --- damaged images -----------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for i in range(8):
        path = tmp_path / "a" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    whole = (tmp_path / "a" / "2.jpg").read_bytes()
    (tmp_path / "a" / "2.jpg").write_bytes(whole[: len(whole) // 2])  # its header is fine
    (tmp_path / "a" / "5.jpg").write_text("not an image")
    (tmp_path / "a" / "6.jpg").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("workers", [1, 3])
def test_damaged_images_are_found_before_training(damaged: Path, workers: int) -> None:
    read = data.load(damaged)
    message = r"3 of 8 images cannot be read: .*2.jpg \(image file is truncated.*5.jpg \(cannot identify.*6.jpg"
    with pytest.raises(ValueError, match=message):
        data.check_images(read.train, workers=workers)
    kept, bad = data.check_images(read.train, workers=workers, skip=True)
    assert [found.index for found in bad] == [2, 5, 6]
    assert [found.path for found in bad] == [damaged / "a" / f"{i}.jpg" for i in (2, 5, 6)]
    assert [path.name for path in kept.inputs] == ["0.jpg", "1.jpg", "3.jpg", "4.jpg", "7.jpg"]
    assert len(kept.labels) == 5
    again, none = data.check_images(kept)
    assert again is kept
    assert none == []


def test_damaged_images_elsewhere(damaged: Path) -> None:
    with pytest.raises(ValueError, match=r"\d.jpg cannot be read"):
        data.load(damaged, in_memory=True)
    digits = data.load("digits")
    assert data.check_images(digits.train) == (digits.train, [])
    with pytest.raises(ValueError, match="workers=0"):
        data.check_images(data.load(damaged).train, workers=0)


# --- names ----------------------------------------------------------------------------------------------------------


def test_names_and_suggestions(tmp_path: Path) -> None:
    expected = "animal10n cifar10 cifar100 cifar100n cifar10n clothing1m digits fashion_mnist food101 food101n mnist"
    assert data.names() == [*expected.split(), "reduced", "tiny_imagenet"]
    for name in data.names():
        entry = data.entry(name)
        assert entry.about
        assert entry.obtain
        assert entry.license
    with pytest.raises(ValueError, match=r".*'cifar1O'.*'cifar10"):
        data.load("cifar1O")
    with pytest.raises(FileNotFoundError, match=r"no such file or folder: '.*nowhere/mine.csv'"):
        data.load(tmp_path / "nowhere" / "mine.csv")
    (tmp_path / "mine.txt").touch()
    with pytest.raises(ValueError, match=r"source=.*\.npz, \.csv"):
        data.load(tmp_path / "mine.txt")
    with pytest.raises(ValueError, match=r"'digits' 'sed'.*'seed'"):
        data.load("digits", sed=1)
    with pytest.raises(ValueError, match="download=True"):
        data.load(tmp_path, download=True)


def test_one_file_and_one_entry_add_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))

    @data.register("mine", about="two dots", obtain="made on the spot", license="none")
    def mine(root: Path, *, download: bool = False, level: int = 1) -> data.DataSet:
        return data.from_arrays(np.full((2, 3, 3), level, dtype=np.uint8), ["a", "b"], name="mine")

    assert data.load("mine", level=7).train.inputs.max() == 7
    assert "mine" in data.names()
    with pytest.raises(ValueError, match="name='mine'"):
        data.register("mine", about="", obtain="", license="")(mine)


# --- the types ------------------------------------------------------------------------------------------------------


def test_path_list() -> None:
    names = ["a/1.jpg", "b/zwei ö.jpg", "c/333333.jpg"]
    paths = PathList("/photos/of", names)
    assert list(paths) == [Path("/photos/of") / name for name in names]
    assert list(paths[1:]) == list(paths)[1:]
    assert list(paths.take(np.array([2, 0]))) == [paths[2], paths[0]]
    assert paths[-1] == Path("/photos/of/c/333333.jpg")
    assert paths.names.nbytes == 3 * len("b/zwei ö.jpg".encode())
    assert len(PathList("/", [])) == 0


def test_describe_counts_every_class() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    read = data.from_arrays(np.zeros((6, 2, 2), np.uint8), labels, y_clean=[0, 0, 1, 1, 1, 2], classes=["a", "b", "c"])
    text = data.describe(read)
    assert text.splitlines()[0] == "arrays: 3 classes, 2 x 2, from arrays"
    assert "train                  6  uint8 2 x 2 x 1, in memory, 16.67% of the labels wrong" in text
    assert [line.split() for line in text.splitlines()[3:6]] == [["a", "3"], ["b", "2"], ["c", "1"]]
    assert "... 3 classes of 1 to 3 training samples" in data.describe(read, classes=2)


def test_an_archive_with_a_damaged_directory_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, x=np.zeros((4, 2)), y=np.arange(4) % 2)
    spoiled = bytearray(path.read_bytes())
    spoiled[spoiled.rindex(b"PK\x01\x02")] ^= 1  # the directory's last entry; zipfile still calls it an archive
    path.write_bytes(spoiled)
    with pytest.raises(ValueError, match=r"d\.npz is truncated or damaged"):
        data.load(str(path))


@pytest.mark.parametrize(
    "about", ["[1]", "{}", "no JSON", "[" * 100_000, '{"inputs": {"train": {}}, "name": 3}'], ids=len
)
def test_notes_of_a_stored_dataset_that_are_damaged(about: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", about=np.array(about), x=np.zeros((4, 2)), y=np.arange(4) % 2)
    with pytest.raises(UsageError, match=r"d\.npz.*damaged"):
        data.load(str(tmp_path / "d.npz"))
