"""ANIMAL-10N (Song, Kim and Lee, 2019): ten animals in five confusable pairs, labeled by people, about 8 % wrong.

Raw: files `<label>_<id>.jpg` in `training/` and `testing/`. Binary: `data_batch_*.bin` and `test_batch.bin`, records of
an id and a label (4 bytes each) and 3 x 64 x 64 bytes, channel by channel. The four bytes are big-endian in the reading
code of the dataset's authors (SELFIE's `bytes_to_int`); small numbers leave no doubt, so the reader takes the order in
which every label is a class, and says so when it had to be the other one.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ncsam.data.images.files import image_files
from ncsam.data.readers.arrays import channels_last
from ncsam.data.readers.download import find
from ncsam.data.readers.folder import decoded
from ncsam.data.registry import check, not_found, register
from ncsam.data.types import DataSet, Labels, PathList, Split

CLASSES = ("Cat", "Lynx", "Wolf", "Coyote", "Cheetah", "Jaguar", "Chimpanzee", "Orangutan", "Hamster", "Guinea pig")
_SIDE = 64
_RECORD = np.dtype([("id", "4u1"), ("label", "4u1"), ("pixels", "u1", (3, _SIDE, _SIDE))])


@register(
    "animal10n",
    about="55,000 color images of animals, 64 x 64, 10 classes, about 8 % of the training labels wrong",
    obtain="Ask for it by the form at https://dm.kaist.ac.kr/datasets/animal-10n and unpack it into <root>/animal10n.",
    license="research only; by request",
)
def animal10n(root: Path, *, download: bool = False, partial: bool = False, in_memory: bool = False) -> DataSet:
    """ANIMAL-10N, as paths (raw version) or in memory (binary version).

    Args:
        root: The folder that holds `training/` and `testing/`, or the `.bin` files; or one above it.
        download: Not possible: the dataset is given on request.
        partial: Accept other counts than 50,000 and 5,000.
        in_memory: Decode the raw version's images now (0.7 GB).
    """
    homes, versions = ("animal10n", "ANIMAL-10N", "animal-10n"), ("raw_image_ver", "binary_ver")
    below = [*homes, *versions, *(f"{home}/{version}" for home in homes for version in versions)]
    raw, binary = find(root, "training", below), find(root, "test_batch.bin", below)
    notes: tuple[str, ...] = ()
    if raw is not None:
        train, test, source = _raw(raw / "training"), _raw(raw / "testing"), raw
    elif binary is not None:
        batches = sorted(binary.glob("data_batch*.bin"), key=_numbers_in_name)
        train, order = _binary(batches, binary)
        test, _ = _binary([binary / "test_batch.bin"], binary)
        source, notes = binary, (f"binary version, {order}",)
    else:
        raise not_found("animal10n", root, "training/ nor test_batch.bin")
    dataset = DataSet(
        name="animal10n",
        classes=CLASSES,
        train=train,
        test=test,
        mean=(0.6959, 0.6537, 0.6371),
        std=(0.3113, 0.3192, 0.3214),
        size=(_SIDE, _SIDE),
        source=str(source),
        notes=notes,
    )
    check(dataset, expected={"train": 50_000, "test": 5_000}, partial=partial)
    return decoded(dataset) if in_memory else dataset


def _raw(folder: Path) -> Split:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there; the raw version has training/ and testing/")
    names = image_files(folder)
    labels = []
    for name in names:
        label, underscore, _ = Path(name).name.partition("_")
        if not underscore or not label.isdecimal():
            raise ValueError(f"{folder / name}: a file must be named <label>_<id>.jpg")
        labels.append(int(label))
    return Split(PathList(folder, names), np.array(labels, dtype=np.int64))


def _numbers_in_name(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]


def _binary(paths: list[Path], folder: Path) -> tuple[Split, str]:
    if not paths:
        raise FileNotFoundError(f"{folder} has no data_batch_*.bin; the binary version has them beside test_batch.bin")
    parts = []
    for path in paths:
        content = path.read_bytes()
        if not content or len(content) % _RECORD.itemsize:
            raise ValueError(
                f"{path} is truncated or damaged: {len(content):,} bytes are not records of {_RECORD.itemsize:,}"
            )
        parts.append(np.frombuffer(content, dtype=_RECORD))
    labels, order = _numbers(np.concatenate([records["label"] for records in parts]), folder)
    return Split(channels_last([records["pixels"] for records in parts]), labels), order


def _numbers(four_bytes: npt.NDArray[np.uint8], folder: Path) -> tuple[Labels, str]:
    for code, order in ((">u4", "big-endian"), ("<u4", "little-endian")):
        labels = four_bytes.view(code)[:, 0].astype(np.int64)
        if (labels < len(CLASSES)).all():
            return labels, order
    worst = four_bytes.view(">u4").max()
    raise ValueError(f"{folder}: label {worst} is out of range in either byte order; the 10 classes are 0 to 9")
