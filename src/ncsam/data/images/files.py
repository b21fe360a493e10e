"""Lists of image files: found in folders in a fixed order, checked to be there, decoded or tested for damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ncsam._errors import DamagedFileError, bad_value, need
from ncsam.data.images.exif import exif_transpose, open_image
from ncsam.data.types import LazyImages, PathList, Split, first_few

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
#: Of the images of ImageNet; the default for color photographs, and what pretrained backbones expect.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
T = TypeVar("T")


def subfolders(folder: Path) -> list[str]:
    """Names of the folders in `folder`, sorted; hidden ones and links that lead in a circle are left out.

    Args:
        folder: An existing folder.
    """
    above = _identities_above(folder)
    with os.scandir(folder) as entries:
        there = [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    return sorted(entry.name for entry in there if not (entry.is_symlink() and _identity(entry.path) in above))


def _identity(path: str | os.PathLike[str]) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _identities_above(folder: Path) -> set[tuple[int, int]]:
    """Of the folder and all above it: a link to one of these leads in a circle."""
    real = folder.resolve()
    return {_identity(each) for each in (real, *real.parents)}


def image_files(folder: Path) -> list[str]:
    """Paths, relative to `folder`, of the image files in it and below it, sorted; hidden ones are left out.

    Links to folders are followed, but each folder is read once: one that links to itself has no more files for it.

    Args:
        folder: An existing folder.

    Raises:
        ValueError: Something with the name of an image is a pipe, a socket or a device.
    """
    found: list[str] = []
    read = _identities_above(folder) - {_identity(folder)}
    links: list[str] = []
    waiting = [""]
    while waiting or links:
        prefix = waiting.pop() if waiting else links.pop(0)  # folders by their own names come first
        here = folder / prefix
        if _identity(here) in read:
            continue
        read.add(_identity(here))
        with os.scandir(here) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                name = prefix + entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    (links if entry.is_symlink() else waiting).append(f"{name}/")
                elif entry.name.lower().endswith(IMAGE_SUFFIXES):
                    if not _is_ordinary(entry):
                        raise ValueError(f"{entry.path} is a pipe, a socket or a device, not an image file")
                    found.append(name)
    return sorted(found)


def other_files(folder: Path) -> list[str]:
    """Paths, relative to `folder`, of what `image_files` leaves out by its name, sorted; hidden ones are not listed.

    Args:
        folder: An existing folder.
    """
    found = []
    for here, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        left_out = [name for name in files if not name.startswith(".") and not name.lower().endswith(IMAGE_SUFFIXES)]
        found += [os.path.relpath(os.path.join(here, name), folder) for name in left_out]
    return sorted(found)


def _is_ordinary(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file; a link that leads nowhere counts as one, which is then said to be missing."""
    return entry.is_file() or not os.path.exists(entry.path)


def listed_files(root: Path, names: Sequence[str], where: str) -> PathList:
    """`names` below `root` as paths, or one error that lists the first files that are not there.

    Args:
        root: Folder that the names start from.
        names: Relative paths.
        where: What the error message calls the list.

    Raises:
        FileNotFoundError: Some files do not exist.
    """
    present: dict[str, set[str]] = {}  # one listing of each folder is much quicker than one question for each file
    missing = []
    for name in names:
        folder, file = os.path.split(name)
        if folder not in present:
            path = root / folder
            present[folder] = _ordinary_files(path) if path.is_dir() else set()
        if file not in present[folder]:
            missing.append(name)
    if missing:
        listed = first_few((str(root / name) for name in missing), len(missing))
        raise FileNotFoundError(f"{where}: {len(missing):,} of {len(names):,} files do not exist: {listed}")
    return PathList(root, names)


def _ordinary_files(folder: Path) -> set[str]:
    with os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_file()}


@dataclass(frozen=True)
class BadImage:
    """An image that cannot be read: its index in the split, its path where it has one, and why.

    Attributes:
        index: Position in the split.
        path: The file, or `None`.
        reason: The decoder's message.
    """

    index: int
    path: Path | None
    reason: str

    def __str__(self) -> str:
        return f"{self.path or f'sample {self.index}'} ({self.reason})"


def check_images(split: Split, *, workers: int = 2, skip: bool = False) -> tuple[Split, list[BadImage]]:
    """Open and decode every image of a split, to find damaged ones before training does.

    JPEG files are decoded at an eighth of their size: that reads the whole file at a fraction of the cost.

    Args:
        split: Images in memory are returned as they are.
        workers: Threads.
        skip: Return the split without the damaged images, and the list of them with the reasons. By default the first
            few are named in a `ValueError`.
    """
    images = split.inputs
    if not isinstance(images, (PathList, LazyImages, list, tuple)):
        return split, []

    def examine(index: int) -> BadImage | None:
        pil = need("PIL.Image", "data", "reading image files")
        path = None
        try:
            item = images[index]
            if isinstance(item, Path):
                path = item
                with open_image(path) as image:
                    image.draft(image.mode, (1, 1))
                    image.load()
        except (OSError, SyntaxError, ValueError, pil.DecompressionBombError) as error:
            reason = str(error).replace(f" {str(path)!r}", "")
            return BadImage(index, path, reason or "it cannot be decoded")
        return None

    bad = [found for found in _in_threads(examine, range(len(images)), workers) if found is not None]
    if bad and not skip:
        raise ValueError(
            f"{len(bad):,} of {len(split):,} images cannot be read: {first_few(bad, len(bad))}. "
            "skip=True leaves them out"
        )
    good = np.delete(np.arange(len(split)), [found.index for found in bad])
    return (split.take(good) if bad else split), bad


def into_memory(split: Split, *, workers: int = 2) -> Split:
    """The split with its images decoded as one uint8 (N, H, W, 3) array; they must all have one size.

    Args:
        split: Image files or images made on demand; arrays are returned as they are.
        workers: Threads that decode.

    Raises:
        ValueError: Two images differ in shape.
        DamagedFileError: A file cannot be decoded.
    """
    if isinstance(split.inputs, np.ndarray):
        return split
    paths = split.inputs
    if len(paths) == 0:
        raise bad_value("split", split, "a split with images")
    first = decode_image(paths[0])
    images = np.empty((len(paths), *first.shape), dtype=np.uint8)

    def put(i: int) -> None:
        image = decode_image(paths[i])
        if image.shape != first.shape:
            raise ValueError(f"{paths[i]} is of shape {image.shape}, {paths[0]} of {first.shape}; they must be alike")
        images[i] = image

    _in_threads(put, range(len(paths)), workers)
    return Split(images, split.labels, split.clean, split.names)


def decode_image(item: Any) -> npt.NDArray[np.uint8]:
    """A file as a uint8 (H, W, 3) array; an array as it is.

    Args:
        item: A path, or an array.

    Raises:
        DamagedFileError: The file cannot be decoded.
    """
    if isinstance(item, np.ndarray):
        return item
    try:
        with open_image(item) as image:
            return np.asarray(exif_transpose(image, "RGB"), dtype=np.uint8)
    except (OSError, SyntaxError) as error:
        raise DamagedFileError(f"{item} cannot be read as an image: {error}") from error


def _in_threads(work: Callable[[Any], T], items: Iterable[Any], workers: int) -> list[T]:
    if workers < 1:
        raise bad_value("workers", workers, "at least 1")
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, items))
