"""Food-101 (Bossard et al., 2014) and Food-101N (Lee et al., 2018), 101 dishes; Food-101N is tested on Food-101's test.

Food-101: `images/<class>/<id>.jpg`; `meta/train.txt` and `meta/test.txt` of lines `<class>/<id>`.

Food-101N: `images/<class>/<file>.jpg`; under a header each, `meta/classes.txt`, `meta/imagelist.tsv` of lines
`<class>/<file>.jpg`, and `meta/verified_train.tsv` and `meta/verified_val.tsv`: such a line, a tab, and 1 where people
found the class right, else 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ncsam.data.images.files import IMAGENET_MEAN, IMAGENET_STD, listed_files
from ncsam.data.readers.archives import extract
from ncsam.data.readers.download import Remote, archive_at, find, present
from ncsam.data.registry import check, not_found, register
from ncsam.data.types import UNKNOWN, DataSet, Labels, Split

# SHA-256 as TensorFlow Datasets and torchvision pin it.
_REMOTE = Remote(
    "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz",
    "d97d15e438b7f4498f96086a4f7e2fa42a32f2712e87d3295441b2b6314053a4",
)
_FOOD101_FOLDERS = ("food-101", "food101", "food101/food-101")
_FOOD101N_FOLDERS = ("Food-101N_release", "food101n", "food101n/Food-101N_release", "Food-101N")


def _lines(path: Path, header: bool = False) -> list[str]:
    lines = [line.strip() for line in present(path).read_text(encoding="utf-8").splitlines()]
    return [line for line in lines[1 if header else 0 :] if line]


def _labels(names: Sequence[str], classes: Sequence[str], where: Path) -> Labels:
    number = {name: i for i, name in enumerate(classes)}
    labels = np.empty(len(names), dtype=np.int64)
    for i, name in enumerate(names):
        folder = name.partition("/")[0]
        if folder not in number:
            raise ValueError(f"{where}: {name!r} is of no class of classes.txt")
        labels[i] = number[folder]
    return labels


def _food101_split(folder: Path, part: str, classes: Sequence[str]) -> Split:
    where = folder / "meta" / f"{part}.txt"
    names = _lines(where)
    files = [f"{name}.jpg" for name in names]
    return Split(listed_files(folder / "images", files, str(where)), _labels(names, classes, where))


def _find_food101(root: Path, download: bool) -> Path | None:
    folder = find(root, "meta/test.txt", _FOOD101_FOLDERS)
    if folder is not None:
        return folder
    archive = archive_at(root, "food101", _REMOTE, download=download)
    return None if archive is None else extract(archive, archive.with_name("food-101"))


@register(
    "food101",
    about="101,000 photographs of dishes, 101 classes; the training labels were left uncleaned on purpose",
    obtain="download=True downloads it (5 GB).",
    license="research only (the images are Foodspotting's)",
)
def food101(root: Path, *, download: bool = False, partial: bool = False) -> DataSet:
    """Food-101 as paths, in the order of its lists.

    Args:
        root: The folder `food-101` or the one above it; or its .tar.gz or the folder of that: it is unpacked there.
        download: Whether it may be downloaded where it is not found.
        partial: Accept other counts than 75,750 and 25,250.
    """
    folder = _find_food101(root, download)
    if folder is None:
        raise not_found("food101", root, "food-101/meta/test.txt")
    classes = tuple(_lines(folder / "meta" / "classes.txt"))
    dataset = DataSet(
        name="food101",
        classes=classes,
        train=_food101_split(folder, "train", classes),
        test=_food101_split(folder, "test", classes),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        size=(224, 224),
        source=str(folder),
    )
    return check(dataset, expected={"train": 75_750, "test": 25_250}, partial=partial)


def _judged(folder: Path, part: str) -> dict[str, bool]:
    """Whether people found the class of a file right, for those they looked at."""
    where = folder / "meta" / f"verified_{part}.tsv"
    found = {}
    for line in _lines(where, header=True):
        name, _, verdict = line.rpartition("\t")
        if verdict not in ("0", "1"):
            raise ValueError(f"{where}: expected a path, a tab and 0 or 1, found {line!r}")
        found[name] = verdict == "1"
    return found


def _verified(folder: Path, part: str, classes: Sequence[str]) -> Split:
    where = folder / "meta" / f"verified_{part}.tsv"
    judged = _judged(folder, part)
    labels = _labels(list(judged), classes, where)
    clean = np.where(np.fromiter(judged.values(), dtype=bool), labels, UNKNOWN)
    return Split(listed_files(folder / "images", list(judged), str(where)), labels, clean)


@register(
    "food101n",
    about="310,009 web photographs of dishes, 101 classes, about 20 % of the labels wrong; tested on Food-101",
    obtain="Get it from https://kuanghuei.github.io/Food-101N/ and unpack it into <root>; for the test, "
    "load('food101', download=True) fetches Food-101.",
    license="research only",
)
def food101n(root: Path, *, food101: Path | None = None, download: bool = False, partial: bool = False) -> DataSet:
    """Food-101N as paths, in the order of its list, with Food-101's test split.

    `extra["verified_train"]` and `extra["verified_val"]` are the images whose label people judged: `clean` is the label
    where it was found right, and -1 (the true class is not known) where it was found wrong. `train.verified` has the
    verdicts of `verified_train` for those of its images that are in the list.

    Args:
        root: The folder `Food-101N_release`, or the one above it.
        food101: Where Food-101 lies, for the test split. Default: under `root` or beside it.
        download: Fetches Food-101 only; Food-101N itself is not given directly.
        partial: Accept other counts than the published ones.
    """
    folder = find(root, "meta/imagelist.tsv", _FOOD101N_FOLDERS)
    if folder is None:
        raise not_found("food101n", root, "Food-101N_release/meta/imagelist.tsv")
    places = [Path(food101)] if food101 is not None else [root, folder.parent]
    found = (_find_food101(place, download and place == places[-1]) for place in places)
    test_folder = next((place for place in found if place is not None), None)
    if test_folder is None:
        raise not_found("food101", places[0], "food-101/meta/test.txt, which Food-101N is tested on,")
    classes = tuple(_lines(folder / "meta" / "classes.txt", header=True))
    where = folder / "meta" / "imagelist.tsv"
    names = _lines(where, header=True)
    judged = _judged(folder, "train")
    train = Split(
        listed_files(folder / "images", names, str(where)),
        _labels(names, classes, where),
        verified=np.array([int(judged[name]) if name in judged else -1 for name in names], dtype=np.int8),
    )
    dataset = DataSet(
        name="food101n",
        classes=classes,
        train=train,
        test=_food101_split(test_folder, "test", classes),
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        size=(224, 224),
        source=str(folder),
        notes=("the test split is Food-101's",),
        extra={f"verified_{part}": _verified(folder, part, classes) for part in ("train", "val")},
    )
    counts = {"train": 310_009, "test": 25_250, "verified_train": 52_868, "verified_val": 4_741}
    return check(dataset, expected=counts, partial=partial)
