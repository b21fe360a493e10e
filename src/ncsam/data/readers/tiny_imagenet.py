"""Tiny-ImageNet-200: `train/<wnid>/images/*.JPEG`, `val/images` with `val_annotations.txt`, `words.txt`.

The unlabeled `test/` is not read; the validation part is the test split, as everyone has it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ncsam.data.images.files import listed_files, subfolders
from ncsam.data.readers.archives import extract
from ncsam.data.readers.download import Remote, archive_at, find
from ncsam.data.readers.folder import class_folders, decoded
from ncsam.data.registry import check, not_found, register
from ncsam.data.types import DataSet, Split

_FOLDER = "tiny-imagenet-200"
# Not stated by the source; many independent projects pin this digest for the file of 248,100,043 bytes.
_REMOTE = Remote(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
)
_ANNOTATIONS = "val/val_annotations.txt"


@register(
    "tiny_imagenet",
    about="110,000 color images, 64 x 64, 200 classes of ImageNet",
    obtain="download=True downloads it (248 MB).",
    license="research only (ImageNet's terms)",
)
def tiny_imagenet(root: Path, *, download: bool = False, partial: bool = False, in_memory: bool = False) -> DataSet:
    """Tiny-ImageNet-200 as paths, in sorted order; class numbers are those of the sorted wnids.

    Args:
        root: The folder `tiny-imagenet-200` or the one above it; or its zip file or the folder of that: it is
            unpacked there.
        download: Whether it may be downloaded where it is not found.
        partial: Accept other counts than 100,000 and 10,000.
        in_memory: Decode all images now (1.4 GB).
    """
    folder = find(root, _ANNOTATIONS, (_FOLDER, "tiny_imagenet", f"tiny_imagenet/{_FOLDER}"))
    if folder is None:
        archive = archive_at(root, "tiny_imagenet", _REMOTE, download=download)
        if archive is None:
            raise not_found("tiny_imagenet", root, f"{_FOLDER}/{_ANNOTATIONS}")
        folder = extract(archive, archive.with_name(_FOLDER))
    wnids = subfolders(folder / "train")
    dataset = DataSet(
        name="tiny_imagenet",
        classes=_class_names(folder, wnids),
        train=class_folders(folder / "train", wnids),
        test=_validation(folder, wnids),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        size=(64, 64),
        source=str(folder),
        notes=("the validation part is the test split",),
    )
    check(dataset, expected={"train": 100_000, "test": 10_000}, partial=partial)
    return decoded(dataset) if in_memory else dataset


def _validation(folder: Path, wnids: list[str]) -> Split:
    path = folder / _ANNOTATIONS
    number = {wnid: i for i, wnid in enumerate(wnids)}
    files, labels = [], []
    for line, text in enumerate(path.read_text().splitlines(), start=1):
        fields = text.split("\t")
        if len(fields) < 2 or fields[1] not in number:
            raise ValueError(f"{path}, line {line}: expected a file and a wnid of train/, found {text!r}")
        files.append(fields[0])
        labels.append(number[fields[1]])
    return Split(listed_files(folder / "val" / "images", files, str(path)), np.array(labels, dtype=np.int64))


def _class_names(folder: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first of each wnid's words; the wnid itself where there are none or where two classes would share a name."""
    words: dict[str, str] = {}
    path = folder / "words.txt"
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            wnid, _, text = line.partition("\t")
            words[wnid] = text.split(",")[0].strip()
    names = [words.get(wnid) or wnid for wnid in wnids]
    return tuple(name if names.count(name) == 1 else wnid for name, wnid in zip(names, wnids, strict=True))
