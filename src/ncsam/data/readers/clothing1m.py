"""Clothing1M (Xiao et al., 2015): a million photographs of clothes whose labels were taken from the text around them.

`noisy_train_key_list.txt`, `clean_{train,val,test}_key_list.txt`: one image path a line. `noisy_label_kv.txt` and
`clean_label_kv.txt`: a path and a class number a line.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ncsam.data.images.files import listed_files
from ncsam.data.readers.download import find, present
from ncsam.data.registry import check, not_found, register
from ncsam.data.types import DataSet, Labels, Split

CLASSES = (
    "T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker",
    "Jacket", "Downcoat", "Suit", "Shawl", "Dress", "Vest", "Underwear",
)  # fmt: skip
_MARKER = "noisy_train_key_list.txt"


@register(
    "clothing1m",
    about="1,000,000 photographs of clothes with noisy labels and 72,409 with clean ones, 14 classes",
    obtain="Ask its authors for the link (github.com/Cysu/noisy_label) and unpack it into <root>/clothing1m.",
    license="research only; by request",
)
def clothing1m(root: Path, *, download: bool = False, partial: bool = False) -> DataSet:
    """Clothing1M as paths: the noisy training images, and the clean validation and test images.

    `extra["clean_train"]` are the training images with clean labels. `extra["both"]` are the images that have a noisy
    label and a clean one: from them the noise can be measured.

    Args:
        root: The folder of the lists (or of `annotations/` with them), or the one above it.
        download: Not possible: the dataset is given on request.
        partial: Accept other counts than the published ones.
    """
    homes = ("clothing1m", "clothing1M", "Clothing1M", "clothing-1m")
    lists = find(root, _MARKER, ("annotations", *homes, *(f"{home}/annotations" for home in homes)))
    if lists is None:
        raise not_found("clothing1m", root, _MARKER)
    base = lists if (lists / "images").is_dir() else lists.parent
    noisy, clean = _labels_by_key(lists / "noisy_label_kv.txt"), _labels_by_key(lists / "clean_label_kv.txt")

    def part(file: str, labels: dict[str, int]) -> Split:
        path = lists / file
        return _split(base, _keys(path), labels, path)

    both = sorted(noisy.keys() & clean.keys())
    pairs = _split(base, both, noisy, lists / "noisy_label_kv.txt")
    dataset = DataSet(
        name="clothing1m",
        classes=_class_names(lists / "category_names_eng.txt"),
        train=part(_MARKER, noisy),
        test=part("clean_test_key_list.txt", clean),
        val=part("clean_val_key_list.txt", clean),
        mean=(0.6959, 0.6537, 0.6371),
        std=(0.3113, 0.3192, 0.3214),
        size=(224, 224),
        source=str(base),
        extra={
            "clean_train": part("clean_train_key_list.txt", clean),
            "both": pairs.with_labels(pairs.labels, _pick(clean, both, lists / "clean_label_kv.txt")),
        },
    )
    counts = {"train": 1_000_000, "val": 14_313, "test": 10_526, "clean_train": 47_570}
    return check(dataset, expected=counts, partial=partial)


def _read(path: Path) -> list[str]:
    return [line for line in present(path).read_text().splitlines() if line.strip()]


def _keys(path: Path) -> list[str]:
    return [line.strip() for line in _read(path)]


def _labels_by_key(path: Path) -> dict[str, int]:
    labels = {}
    for number, line in enumerate(_read(path), start=1):
        key, _, label = line.strip().rpartition(" ")
        if not key or not label.isdecimal():
            raise ValueError(f"{path}, line {number}: expected a path and a class number, found {line!r}")
        labels[key.strip()] = int(label)
    return labels


def _pick(labels: dict[str, int], keys: list[str], where: Path) -> Labels:
    without = [key for key in keys if key not in labels]
    if without:
        raise ValueError(f"{where}: {len(without):,} images have no label, the first is {without[0]!r}")
    return np.array([labels[key] for key in keys], dtype=np.int64)


def _split(base: Path, keys: list[str], labels: dict[str, int], where: Path) -> Split:
    return Split(listed_files(base, keys, str(where)), _pick(labels, keys, where))


def _class_names(path: Path) -> tuple[str, ...]:
    names = tuple(_keys(path)) if path.is_file() else CLASSES
    if len(names) != len(CLASSES):
        raise ValueError(f"{path} names {len(names)} classes; expected {len(CLASSES)}")
    return names
