"""A folder with one sub-folder of images for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ncsam._errors import bad_value
from ncsam._text import printable
from ncsam.data.images.decode_cache import enable_cache
from ncsam.data.images.exif import infer_image_size
from ncsam.data.images.files import IMAGE_SUFFIXES, IMAGENET_MEAN, IMAGENET_STD, image_files, into_memory, subfolders
from ncsam.data.readers.folder_index import LARGE, keep_index, read_index
from ncsam.data.registry import check
from ncsam.data.types import DataSet, PathList, Split, test_from_val

_SHOWN = 3  # class folders that an error names
SPLIT_FOLDERS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "valid", "validation"),
}


def from_folder(
    path: str | Path,
    *,
    size: tuple[int, int] | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    in_memory: bool | None = None,
    allow_empty: bool = False,
) -> DataSet:
    """A dataset from `path/<class>/.../<image>`, or from `path/train/<class>/...` with `test/` or `val/` beside it.

    Classes are the sub-folders' names, sorted; files are sorted too, so the order is the same everywhere. Where there
    is a `val/` but no `test/`, it is the test split.

    Args:
        path: The folder of the class folders, or of the splits.
        size: The (height, width) that a network sees. Default: the images' own where they are all of one size up to
            224 x 224, else a square with the median of their shorter sides, at most 224 (see `infer_image_size`).
        mean, std: For normalization, per channel; those of ImageNet by default.
        in_memory: `True` decodes everything now, for small images of one size; `size` is then theirs. `False` reads
            every file again in each epoch. By default files are read when they are needed, and a loader keeps what it
            has decoded where that fits into 1 GiB (see `ncsam.data.images.decode_cache`); no pixel depends on it.
        allow_empty: Accept classes without a training image.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such folder")
    there = subfolders(path)
    named = {split: next((name for name in names if name in there), None) for split, names in SPLIT_FOLDERS.items()}
    train_folder = path if named["train"] is None else path / named["train"]
    classes = tuple(subfolders(train_folder))  # as the file system spells them
    if not classes:
        raise ValueError(f"{train_folder} has no subfolders; expected one per class, with images in it")
    splits = {"train": class_folders(train_folder, classes)}
    if not len(splits["train"]):
        raise ValueError(
            f"{train_folder} has no images in its class folders {', '.join(classes[:_SHOWN])}; expected files that end "
            f"in {', '.join(IMAGE_SUFFIXES)}"
        )
    if named["train"] is not None:
        splits |= {
            split: class_folders(path / name, classes)
            for split, name in named.items()
            if name is not None and split != "train"
        }
    notes = test_from_val(splits, f"the images of {named['val']}/")
    dataset = DataSet(
        name=printable(path.resolve().name),
        classes=tuple(map(printable, classes)),
        train=splits["train"],
        test=splits.get("test"),
        val=splits.get("val"),
        mean=tuple(mean),
        std=tuple(std),
        size=size or infer_image_size(splits["train"].inputs),
        source=str(path),
        notes=notes,
    )
    return apply_cache_policy(check(dataset, allow_empty=allow_empty), in_memory)


def apply_cache_policy(dataset: DataSet, in_memory: bool | None) -> DataSet:
    """The dataset decoded now (`True`), read again in each epoch (`False`), or kept once it is read (`None`).

    Args:
        dataset: One of image files.
        in_memory: `None` keeps images once decoded, if all of a split fit into its share of 1 GiB.

    Raises:
        UsageError: `in_memory` is something else.
    """
    if in_memory not in (True, False, None):
        raise bad_value("in_memory", in_memory, "True, False or None (keep images once decoded, where they fit)")
    if in_memory:
        return decoded(dataset)
    return enable_cache(dataset) if in_memory is None else dataset


def decoded(dataset: DataSet) -> DataSet:
    """The dataset with every split's images in memory.

    Args:
        dataset: One of image files that all have one size.
    """
    train = into_memory(dataset.train)
    assert isinstance(train.inputs, np.ndarray)
    return replace(
        dataset,
        train=train,
        test=None if dataset.test is None else into_memory(dataset.test),
        val=None if dataset.val is None else into_memory(dataset.val),
        size=train.inputs.shape[1:3],
    )


def class_folders(folder: Path, classes: Sequence[str]) -> Split:
    """The images of `folder/<class>/...`, class by class.

    Args:
        folder: The folder of a split.
        classes: Names of the class folders, in the order of the class numbers; some may be absent here.

    Raises:
        ValueError: There is a folder of another name.
    """
    unknown = [name for name in subfolders(folder) if name not in classes]
    if unknown:
        raise ValueError(f"{folder} has class folders that the training split lacks: {', '.join(unknown)}")
    kept = read_index(folder, classes)
    if kept is not None:
        return Split(PathList(folder, kept[0]), kept[1])
    names, numbers = [], []
    for number, name in enumerate(classes):
        files = image_files(folder / name) if (folder / name).is_dir() else []
        names += [f"{name}/{file}" for file in files]
        numbers += [number] * len(files)
    paths, labels = PathList(folder, names), np.array(numbers, dtype=np.int64)
    if len(names) >= LARGE:
        keep_index(folder, classes, paths.names, labels)
    return Split(paths, labels)
