"""The original samples behind the features of an `.npz` file that `ncsam embed` wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncsam._errors import DamagedFileError
from ncsam.data.types import DataSet, Encoding, Inputs, PathList, Split


def with_original(dataset: DataSet, about: Mapping[str, Any], path: Path) -> DataSet:
    """The dataset with its encoding and, where the file tells them, the original samples.

    Args:
        dataset: Of the features.
        about: The arrays `encoder`, `texts`, `texts_test` and `texts_val` of the file; `None` for those it lacks.
        path: The file, for messages.
    """
    try:
        encoder = dict(json.loads(str(about["encoder"])))
        original = dict(encoder.pop("original", {}))
        size = original.get("size")
        encoding = Encoding(
            encoder,
            tuple(map(float, original.get("mean", ()))),
            tuple(map(float, original.get("std", ()))),
            None if size is None else (int(size[0]), int(size[1])),
        )
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise DamagedFileError(f"{path}: the array 'encoder' does not describe an encoder") from error
    length = encoder.get("max_length")
    length = length if isinstance(length, int) and length > 0 else 256
    splits: dict[str, Split | None] = {}
    for name, split, key in (
        ("train", dataset.train, "texts"),
        ("test", dataset.test, "texts_test"),
        ("val", dataset.val, "texts_val"),
    ):
        splits[name] = None if split is None else _with(split, about[key], length, path)
    return replace(dataset, encoding=encoding, **splits)  # type: ignore[arg-type]


def _with(split: Split, texts: Any, length: int, path: Path) -> Split:
    original: Inputs | None = None
    if texts is not None:
        from ncsam.data.modalities.text import TextList, Words  # which reads arrays, too

        written = [str(text) for text in texts.tolist()]
        if len(written) != len(split):
            raise DamagedFileError(f"{path}: {len(written):,} texts for {len(split):,} samples")
        original = TextList(written, Words.of(written), length)
    elif split.names is not None:
        original = PathList(Path(), split.names.tolist())
    return replace(split, original=original)
