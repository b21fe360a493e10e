"""CIFAR in both published forms, and the human labels, from small files of the true format."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from ncsam import data
from ncsam.data.readers.cifar import CIFAR10_CLASSES

RNG = np.random.default_rng(7)
PER_BATCH = 4
TRAIN = RNG.integers(0, 256, (5 * PER_BATCH, 32, 32, 3), dtype=np.uint8)
TEST = RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
TRAIN_LABELS = np.arange(5 * PER_BATCH) % 10
TEST_LABELS = np.array([3, 1, 4, 1, 5, 9])
FINE_NAMES = [f"class_{i:02d}" for i in range(100)]
COARSE_NAMES = [f"super_{i:02d}" for i in range(20)]
FINE, COARSE = RNG.permutation(100)[: len(TRAIN)], RNG.integers(0, 20, len(TRAIN))


def row(image: np.ndarray) -> bytes:
    """An image as CIFAR writes it: all of red row by row, then green, then blue."""
    return bytes(int(image[y, x, c]) for c in range(3) for y in range(32) for x in range(32))


def rows(images: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"".join(map(row, images)), dtype=np.uint8).reshape(len(images), 3072)


def cifar10_python() -> dict[str, bytes]:
    files = {"batches.meta": pickle.dumps({"label_names": list(CIFAR10_CLASSES)}, protocol=2)}
    for i in range(5):
        part = slice(i * PER_BATCH, (i + 1) * PER_BATCH)
        batch = {"data": rows(TRAIN[part]), "labels": TRAIN_LABELS[part].tolist(), "batch_label": f"batch {i + 1} of 5"}
        files[f"data_batch_{i + 1}"] = pickle.dumps(batch, protocol=2)
    files["test_batch"] = pickle.dumps({"data": rows(TEST), "labels": TEST_LABELS.tolist()}, protocol=2)
    return files


def cifar10_binary() -> dict[str, bytes]:
    files = {"batches.meta.txt": "\n".join(CIFAR10_CLASSES).encode()}
    records = [bytes([label]) + row(image) for label, image in zip(TRAIN_LABELS, TRAIN, strict=True)]
    for i in range(5):
        files[f"data_batch_{i + 1}.bin"] = b"".join(records[i * PER_BATCH : (i + 1) * PER_BATCH])
    tests = [bytes([label]) + row(image) for label, image in zip(TEST_LABELS, TEST, strict=True)]
    return files | {"test_batch.bin": b"".join(tests)}


def cifar100_python() -> dict[str, bytes]:
    meta = {"fine_label_names": FINE_NAMES, "coarse_label_names": COARSE_NAMES}
    train = {"data": rows(TRAIN), "fine_labels": FINE.tolist(), "coarse_labels": COARSE.tolist()}
    test = {"data": rows(TEST), "fine_labels": TEST_LABELS.tolist(), "coarse_labels": [0] * 6}
    return {name: pickle.dumps(value) for name, value in (("meta", meta), ("train", train), ("test", test))}


def cifar100_binary() -> dict[str, bytes]:
    def records(coarse: np.ndarray, fine: np.ndarray, images: np.ndarray) -> bytes:
        return b"".join(bytes([c, f]) + row(p) for c, f, p in zip(coarse, fine, images, strict=True))

    return {
        "fine_label_names.txt": "\n".join(FINE_NAMES).encode() + b"\n\n",
        "coarse_label_names.txt": "\n".join(COARSE_NAMES).encode() + b"\n",
        "train.bin": records(COARSE, FINE, TRAIN),
        "test.bin": records(np.zeros(6, dtype=int), TEST_LABELS, TEST),
    }


def write(files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def pack(files: dict[str, bytes], folder: str, archive: Path) -> Path:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


C10 = {
    "python": (cifar10_python, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
    "binary": (cifar10_binary, "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
}
C100 = {
    "python": (cifar100_python, "cifar-100-python", "cifar-100-python.tar.gz"),
    "binary": (cifar100_binary, "cifar-100-binary", "cifar-100-binary.tar.gz"),
}


@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("place", ["folder", "above", "named", "archive", "above archive"])
def test_cifar10_pixels_labels_and_order(tmp_path: Path, version: str, place: str) -> None:
    files, folder, archive = C10[version]
    root = tmp_path
    if place == "folder":
        root = write(files(), tmp_path / folder)
    elif place == "above":
        write(files(), tmp_path / folder)
    elif place == "named":
        write(files(), tmp_path / "cifar10" / folder)
    elif place == "archive":
        root = pack(files(), folder, tmp_path / archive)
    else:
        pack(files(), folder, tmp_path / "cifar10" / archive)
    read = data.load("cifar10", root, partial=True)
    assert read.train.inputs.dtype == np.uint8
    assert read.train.inputs.flags.c_contiguous
    assert np.array_equal(read.train.inputs, TRAIN)
    assert np.array_equal(read.train.labels, TRAIN_LABELS)
    assert read.test is not None
    assert np.array_equal(read.test.inputs, TEST)
    assert np.array_equal(read.test.labels, TEST_LABELS)
    assert read.train.labels.dtype == np.int64
    assert read.classes == CIFAR10_CLASSES
    assert (read.size, read.mean, read.std) == ((32, 32), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert read.train.clean is None


@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100_fine_and_coarse(tmp_path: Path, version: str, coarse: bool) -> None:
    files, folder, archive = C100[version]
    pack(files(), folder, tmp_path / archive)
    read = data.load("cifar100", tmp_path, partial=True, coarse=coarse)
    assert np.array_equal(read.train.inputs, TRAIN)
    assert np.array_equal(read.train.labels, COARSE if coarse else FINE)
    assert read.classes == tuple(COARSE_NAMES if coarse else FINE_NAMES)
    assert np.array_equal(read.test.labels, np.zeros(6) if coarse else TEST_LABELS)


def test_wrong_count_is_an_error(tmp_path: Path) -> None:
    write(cifar10_python(), tmp_path / "cifar-10-batches-py")
    with pytest.raises(ValueError, match=r"cifar10.*'train': 20.*found, 50,000 expected.*partial=True"):
        data.load("cifar10", tmp_path)


def test_missing_batch(tmp_path: Path) -> None:
    folder = write(cifar10_python(), tmp_path / "cifar-10-batches-py")
    (folder / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_4.*dataset"):
        data.load("cifar10", tmp_path, partial=True)


def test_archive_without_a_batch(tmp_path: Path) -> None:
    files = cifar10_python()
    del files["data_batch_2"]
    pack(files, "cifar-10-batches-py", tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(ValueError, match="lacks data_batch_2"):
        data.load("cifar10", tmp_path, partial=True)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
def test_truncated_archive(tmp_path: Path, share: float) -> None:
    archive = pack(cifar10_python(), "cifar-10-batches-py", tmp_path / "cifar-10-python.tar.gz")
    content = archive.read_bytes()
    archive.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"cifar-10-python.tar.gz.*truncated"):
        data.load("cifar10", tmp_path, partial=True)


def test_truncated_binary(tmp_path: Path) -> None:
    folder = write(cifar10_binary(), tmp_path / "cifar-10-batches-bin")
    path = folder / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"test_batch.bin.*damaged: 18,437.*of 3,073"):
        data.load("cifar10", tmp_path, partial=True)


def test_label_out_of_range(tmp_path: Path) -> None:
    folder = write(cifar10_binary(), tmp_path / "cifar-10-batches-bin")
    path = folder / "data_batch_1.bin"
    path.write_bytes(bytes([10]) + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"label 10.*sample 0.*the 10.*are 0 to 9"):
        data.load("cifar10", tmp_path, partial=True)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch hostile",)


def test_hostile_pickle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = cifar10_python() | {"data_batch_1": pickle.dumps({"data": Hostile(), "labels": []})}
    pack(files, "cifar-10-batches-py", tmp_path / "cifar-10-python.tar.gz")
    with pytest.raises(ValueError, match=r"data_batch_1 is not a readable pickle of arrays: it asks for (posix|nt)"):
        data.load("cifar10", tmp_path, partial=True)
    assert not (tmp_path / "hostile").exists()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "must hold 'data' and 'labels'"),
        ({"data": np.zeros((2, 3072), np.float32), "labels": [0, 1]}, "'data' is float32 of shape"),
        ({"data": np.zeros((2, 3071), np.uint8), "labels": [0, 1]}, r"expected uint8 \(N, 3072\)"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [0]}, "2 images but 1 labels"),
    ],
)
def test_batch_of_another_form(tmp_path: Path, batch: object, message: str) -> None:
    folder = write(cifar10_python(), tmp_path / "cifar-10-batches-py")
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch))
    with pytest.raises(ValueError, match=message):
        data.load("cifar10", tmp_path, partial=True)


def test_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar10.*cifar-10-batches-py/.*download=True"):
        data.load("cifar10", tmp_path)
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        data.load("cifar100", tmp_path / "nowhere")
    (tmp_path / "other.tar.gz").touch()
    with pytest.raises(ValueError, match=r"root=.*a.*cifar-10-python.tar.gz"):
        data.load("cifar10", tmp_path / "other.tar.gz")


def human_file(path: Path, as_arrays: bool, **columns: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({k: v if as_arrays else torch.from_numpy(v) for k, v in columns.items()}, path)


@pytest.mark.parametrize("as_arrays", [True, False])
@pytest.mark.parametrize(
    ("labels", "key"), [("worst", "worse_label"), ("aggre", "aggre_label"), ("rand2", "random_label2")]
)
def test_cifar10n(tmp_path: Path, as_arrays: bool, labels: str, key: str) -> None:
    write(cifar10_python(), tmp_path / "cifar-10-batches-py")
    clean = TRAIN_LABELS.astype(np.int64)
    keys = ("aggre_label", "random_label1", "random_label2", "random_label3", "worse_label")
    columns = {k: (clean + i) % 10 for i, k in enumerate(keys)}
    human_file(tmp_path / "cifar10n" / "CIFAR-10_human.pt", as_arrays, clean_label=clean, **columns)
    read = data.load("cifar10n", tmp_path, labels=labels, partial=True)
    assert np.array_equal(read.train.labels, columns[key])
    assert np.array_equal(read.train.clean, clean)
    assert np.array_equal(read.train.inputs, TRAIN)
    assert read.test.clean is None
    assert read.train.labels.flags.writeable
    assert read.name == "cifar10n"


def test_cifar100n(tmp_path: Path) -> None:
    write(cifar100_python(), tmp_path / "cifar-100-python")
    noisy = (FINE + 1) % 100
    human_file(tmp_path / "CIFAR-100_human.pt", True, clean_label=FINE, noisy_label=noisy)
    read = data.load("cifar100n", tmp_path, partial=True)
    assert np.array_equal(read.train.labels, noisy)
    assert np.array_equal(read.train.clean, FINE)


def test_human_labels_of_another_order_or_file(tmp_path: Path) -> None:
    write(cifar10_python(), tmp_path / "cifar-10-batches-py")
    with pytest.raises(FileNotFoundError, match=r"cifar10n.*CIFAR-10_human.pt.*CC"):
        data.load("cifar10n", tmp_path, partial=True)
    with pytest.raises(ValueError, match="accept_license=False"):
        data.load("cifar10n", tmp_path, partial=True, download=True)
    path = tmp_path / "CIFAR-10_human.pt"
    clean = TRAIN_LABELS.astype(np.int64)
    human_file(path, True, clean_label=clean[::-1].copy(), worse_label=clean)
    with pytest.raises(ValueError, match="other data or another order"):
        data.load("cifar10n", tmp_path, partial=True)
    with pytest.raises(ValueError, match=r"CIFAR-10N 'worse'.*'worst'"):
        data.load("cifar10n", tmp_path, partial=True, labels="worse")
