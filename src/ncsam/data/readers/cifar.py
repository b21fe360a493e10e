"""CIFAR-10 and CIFAR-100, python (pickled) and binary versions, from their folder or straight from the archive.

In both, an image is 3,072 bytes: 1,024 of red, row by row, then green, then blue. The binary version puts one byte for
the label before it (CIFAR-10) or two, coarse and fine (CIFAR-100). Krizhevsky, 2009, and the datasets' page.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import load_pickled_arrays
from ncsam.data.readers.archives import read_members
from ncsam.data.readers.arrays import channels_last
from ncsam.data.readers.download import Remote, archive_at, find, present
from ncsam.data.registry import check, not_found, register
from ncsam.data.types import DataSet, Labels, Split

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_URL = "https://www.cs.toronto.edu/~kriz/"
_COUNTS = {"train": 50_000, "test": 10_000}
_PIXELS = 3 * 32 * 32
Images = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Version:
    """One of the forms in which a CIFAR is published. MD5 from the datasets' page; the SHA-256 are those that Keras
    (python versions) and TensorFlow Datasets (binary versions) pin.
    """

    kind: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: tuple[str, ...]
    remote: Remote

    @property
    def files(self) -> set[str]:
        return {*self.train, self.test, *self.meta}


_CIFAR10 = (
    _Version(
        "python",
        "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        (),
        Remote(
            f"{_URL}cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            "c58f30108f718f92721af3b95e74349a",
        ),
    ),
    _Version(
        "binary",
        "cifar-10-batches-bin",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        (),
        Remote(
            f"{_URL}cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
)
_CIFAR100 = (
    _Version(
        "python",
        "cifar-100-python",
        ("train",),
        "test",
        ("meta",),
        Remote(
            f"{_URL}cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            "eb9058c3a382ffc7106e4002c42a8d85",
        ),
    ),
    _Version(
        "binary",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        ("fine_label_names.txt", "coarse_label_names.txt"),
        Remote(
            f"{_URL}cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
)


def _open(
    name: str, root: Path, versions: tuple[_Version, ...], download: bool
) -> tuple[_Version, Path, Callable[[str], bytes]]:
    """The version that lies at `root`, where it lies, and a function that reads one of its files."""
    for version in versions:
        folder = find(root, version.train[0], (version.folder, name, f"{name}/{version.folder}"))
        if folder is not None and (folder / version.train[0]).is_file():
            return version, folder, lambda file, folder=folder: present(folder / file).read_bytes()
    for fetching in (False, True)[: 1 + download]:  # look for every version before fetching the first
        for version in versions:
            path = archive_at(root, name, version.remote, download=fetching)
            if path is not None:
                return version, path, _from_archive(path, version)
    if root.is_file():
        known = " or ".join(version.remote.filename for version in versions)
        raise bad_value("root", str(root), f"a folder, or the archive {known}")
    raise not_found(name, root, f"{versions[0].folder}/ or {versions[0].remote.filename} (nor the binary version)")


def _from_archive(path: Path, version: _Version) -> Callable[[str], bytes]:
    contents = read_members(path, version.files.__contains__)
    absent = sorted(version.files - contents.keys())
    if absent:
        raise ValueError(f"{path} is truncated or damaged: it lacks {', '.join(absent)}")
    return contents.__getitem__


class _NamedBytes(io.BytesIO):
    """Bytes that know where they came from, for the sake of the error messages."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.name = name


def _from_pickle(content: bytes, name: str, label_key: str) -> tuple[Images, Labels]:
    batch = load_pickled_arrays(_NamedBytes(content, name))
    data = batch.get("data") if isinstance(batch, dict) else None
    if not isinstance(data, np.ndarray) or label_key not in batch:
        raise ValueError(f"{name} is not a CIFAR batch: it must hold 'data' and {label_key!r}")
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != _PIXELS:
        raise ValueError(f"{name}: 'data' is {data.dtype} of shape {data.shape}; expected uint8 (N, {_PIXELS})")
    labels = np.asarray(batch[label_key], dtype=np.int64)
    if len(labels) != len(data):
        raise ValueError(f"{name}: {len(data):,} images but {len(labels):,} labels")
    return data, labels


def _from_records(content: bytes, name: str, label_bytes: int, label_at: int) -> tuple[Images, Labels]:
    width = label_bytes + _PIXELS
    if len(content) == 0 or len(content) % width:
        raise ValueError(f"{name} is truncated or damaged: {len(content):,} bytes are not records of {width:,}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, width)
    return records[:, label_bytes:], records[:, label_at].astype(np.int64)


def _split(parts: list[tuple[Images, Labels]]) -> Split:
    images = channels_last([images.reshape(-1, 3, 32, 32) for images, _ in parts])
    return Split(images, np.concatenate([labels for _, labels in parts]))


def _class_names(content: bytes, name: str, kind: str, key: str) -> tuple[str, ...]:
    if kind == "binary":
        return tuple(line.strip() for line in content.decode("ascii").splitlines() if line.strip())
    meta = load_pickled_arrays(_NamedBytes(content, name))
    if not isinstance(meta, dict) or key not in meta:
        raise ValueError(f"{name} does not hold {key!r}")
    return tuple(str(label) for label in meta[key])


@register(
    "cifar10",
    about="60,000 color images, 32 x 32, 10 classes",
    obtain="download=True downloads it (163 MB).",
    license="none stated; please cite Krizhevsky, 2009",
)
def cifar10(root: Path, *, download: bool = False, partial: bool = False) -> DataSet:
    """CIFAR-10, in memory.

    Args:
        root: The folder of the batches, the one above it (or above `cifar10/`), or the .tar.gz; python or binary.
        download: Whether it may be downloaded where it is not found.
        partial: Accept other counts than 50,000 and 10,000.
    """
    version, source, read = _open("cifar10", root, _CIFAR10, download)

    def parts(files: tuple[str, ...]) -> Split:
        if version.kind == "python":
            return _split([_from_pickle(read(f), f"{source}/{f}", "labels") for f in files])
        return _split([_from_records(read(f), f"{source}/{f}", 1, 0) for f in files])

    return check(
        DataSet(
            name="cifar10",
            classes=CIFAR10_CLASSES,
            train=parts(version.train),
            test=parts((version.test,)),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            size=(32, 32),
            source=str(source),
            notes=(f"{version.kind} version",),
        ),
        expected=_COUNTS,
        partial=partial,
    )


@register(
    "cifar100",
    about="60,000 color images, 32 x 32, 100 classes in 20 superclasses",
    obtain="download=True downloads it (161 MB).",
    license="none stated; please cite Krizhevsky, 2009",
)
def cifar100(root: Path, *, download: bool = False, partial: bool = False, coarse: bool = False) -> DataSet:
    """CIFAR-100, in memory.

    Args:
        root: The folder of the files, the one above it (or above `cifar100/`), or the .tar.gz; python or binary.
        download: Whether it may be downloaded where it is not found.
        partial: Accept other counts than 50,000 and 10,000.
        coarse: Take the 20 superclasses as labels.
    """
    version, source, read = _open("cifar100", root, _CIFAR100, download)
    level = "coarse" if coarse else "fine"

    def part(file: str) -> Split:
        if version.kind == "python":
            return _split([_from_pickle(read(file), f"{source}/{file}", f"{level}_labels")])
        return _split([_from_records(read(file), f"{source}/{file}", 2, 0 if coarse else 1)])

    meta = version.meta[-1] if coarse else version.meta[0]
    classes = _class_names(read(meta), f"{source}/{meta}", version.kind, f"{level}_label_names")
    if len(classes) != (20 if coarse else 100):
        raise ValueError(f"{source}/{meta} names {len(classes)} classes; expected {20 if coarse else 100}")
    return check(
        DataSet(
            name="cifar100",
            classes=classes,
            train=part(version.train[0]),
            test=part(version.test),
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            size=(32, 32),
            source=str(source),
            notes=(f"{version.kind} version, {level} labels",),
        ),
        expected=_COUNTS,
        partial=partial,
    )
