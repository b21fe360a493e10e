"""Tar archives of samples ("shards"), as `webdataset` writes them: `000017.jpg` beside `000017.cls`, thousands in each.

Nothing is unpacked. The headers are read once; where each image lies, and its label, are kept in an index beside the
archives, so that a sample has the same number ever after.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path, open_arrays
from ncsam.data.images.encoded import InArchives, infer_image_size_of
from ncsam.data.images.files import IMAGE_SUFFIXES, IMAGENET_MEAN, IMAGENET_STD
from ncsam.data.readers.archives import open_tar
from ncsam.data.registry import check
from ncsam.data.types import DataSet, LazyImages, Split, encode_labels, test_from_val

INDEX = ".ncsam-shards.npz"
LABEL_SUFFIXES = (".cls", ".label")
_SPLITS = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(("val", "valid", "validation"), "val")
_LONGEST_LABEL, _LONGEST_JSON = 4096, 1 << 20  # bytes


def from_shards(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    keep_index: bool = True,
    allow_empty: bool = False,
) -> DataSet:
    """A dataset from a `.tar` file, or from a folder of them, taken in the order of their names.

    A sample is the members of one archive that share a name up to the first dot: an image, and its label in `.cls` or
    `.label` (a class number or name), or in a `.json` under `label` or `cls`. Archives whose names begin with `train`,
    `test` or `val` (up to a `-`, `_` or digit) are those splits; without such names all are training samples.

    Args:
        path: The archive, or the folder of archives.
        classes: Class names in order. Default: the labels found, sorted, or the numbers.
        size, mean, std, allow_empty: As for `from_folder`.
        keep_index: Write the index `.ncsam-shards.npz` beside the archives, and use it while their names, sizes and
            times are the same.
    """
    path = Path(path)
    archives = [path] if path.is_file() else sorted(path.glob("*.tar"))
    if not archives:
        raise FileNotFoundError(f"path={str(path)!r}: there is no such file, or no .tar file in it")
    places, labels = _indexed(archives, keep_index)
    (observed,), names = encode_labels([labels], classes, where=str(path))
    assert observed is not None
    split_of = [_SPLITS.get(_first_word(archive.stem), "train") for archive in archives]
    if "train" not in split_of:
        split_of = ["train"] * len(archives)
    kinds = np.array(split_of)[places[:, 0]]
    parts = {}
    for name in sorted(set(split_of)):
        rows = np.flatnonzero(kinds == name)
        parts[name] = Split(LazyImages(InArchives(archives, places), rows), observed[rows])
    notes = test_from_val(parts, "the validation archives")
    images = parts["train"].inputs
    assert isinstance(images, LazyImages)
    return check(
        DataSet(
            name=path.stem,
            classes=names,
            train=parts["train"],
            test=parts.get("test"),
            val=parts.get("val"),
            mean=tuple(mean),
            std=tuple(std),
            size=size or infer_image_size_of(images),
            source=str(path),
            notes=notes,
        ),
        allow_empty=allow_empty,
    )


def _first_word(stem: str) -> str:
    return "".join(c if c.isalpha() else " " for c in stem.lower()).split(" ", 1)[0]


def _indexed(archives: list[Path], keep: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.str_]]:
    """(archive, offset, bytes) of each image, and its label as text; from the kept index where it still holds."""
    stats = [archive.stat() for archive in archives]
    state = np.array(
        [f"{a.name} {s.st_size} {s.st_mtime_ns}" for a, s in zip(archives, stats, strict=True)], dtype=np.str_
    )
    path = archives[0].parent / INDEX
    if keep and path.is_file():
        with contextlib.suppress(OSError, ValueError, KeyError), open_arrays(path) as file:
            known = file["places"], file["labels"]
            if np.array_equal(file["state"], state) and _fit(*known, [s.st_size for s in stats]):
                return known
    places: list[tuple[int, int, int]] = []
    labels: list[str] = []
    for number, archive in enumerate(archives):
        _read_headers(archive, number, places, labels)
    if not places:
        raise ValueError(f"{archives[0]}: no sample of an image and a label is in it, nor in the archives beside it")
    found = np.array(places, dtype=np.int64), np.array(labels, dtype=np.str_)
    if keep:
        # a folder that cannot be written is read each time
        with contextlib.suppress(OSError), atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, state=state, places=found[0], labels=found[1])
    return found


def _fit(places: npt.NDArray[Any], labels: npt.NDArray[Any], sizes: list[int]) -> bool:
    """Whether an index names parts of archives of these sizes, each with a label."""
    if places.dtype != np.int64 or places.shape != (len(labels), 3) or labels.dtype.kind != "U" or labels.ndim != 1:
        return False
    archive, start, length = places.T
    if not len(labels) or archive.min() < 0 or archive.max() >= len(sizes):
        return False
    return bool(start.min() >= 0 and length.min() >= 0 and (length <= np.array(sizes)[archive] - start).all())


def _read_headers(archive: Path, number: int, places: list[tuple[int, int, int]], labels: list[str]) -> None:
    images: dict[str, tuple[int, int, int]] = {}
    named: dict[str, str] = {}
    try:
        with open_tar(archive, "r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():  # a sparse one may claim any size
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, dot, suffix = file.partition(".")
                key, suffix = f"{folder}/{stem}", dot + suffix.lower()
                if suffix.endswith(IMAGE_SUFFIXES) and key not in images:
                    images[key] = (number, member.offset_data, member.size)
                elif suffix in LABEL_SUFFIXES or suffix == ".json":
                    content = tar.extractfile(member)
                    assert content is not None
                    text = content.read(_LONGEST_JSON if suffix == ".json" else _LONGEST_LABEL).decode("utf-8").strip()
                    label = _from_json(text, archive, key) if suffix == ".json" else text
                    if label is not None:
                        named[key] = label
    except (tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{archive} is not a readable tar file of samples: {error}") from error
    lonely = next((key for key in images if key not in named), None)
    if lonely is not None:
        raise bad_value("path", str(archive), f"a label (.cls, .label or .json) for sample {lonely.lstrip('/')!r}")
    places += images.values()
    labels += [named[key] for key in images]


def _from_json(text: str, archive: Path, key: str) -> str | None:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{archive}: the .json of sample {key.lstrip('/')!r} is not JSON") from error
    known = content if isinstance(content, dict) else {}
    found = next((known[name] for name in ("label", "cls") if name in known), None)
    return None if found is None else str(found)
