"""Features of a dataset in a file that trains like any other, and remembers the samples and the encoder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam.data.modalities.text import TextList
from ncsam.data.types import DataSet
from ncsam.embed.cache import FeatureCache
from ncsam.embed.encoder import Encoder
from ncsam.embed.features import features_of
from ncsam.embed.text import NamedTextEncoder


def embed(
    dataset: DataSet,
    encoder: Encoder | NamedTextEncoder,
    out: str | os.PathLike[str],
    *,
    cache: FeatureCache | None = None,
    batch_size: int = 64,
    workers: int = 0,
    say: Callable[[str], None] = print,
) -> Path:
    """Write the features of every split, with labels, class names and the original samples, to an `.npz` file.

    What is computed is kept in the cache on the way, so that the same call resumes after an interruption.

    Args:
        dataset: Images or texts, as `ncsam.data.load` or `as_dataset` return them.
        encoder: From `image_encoder` or `text_encoder`.
        out: The file; it ends in `.npz`.
        cache, batch_size, workers: As for `features_of`.
        say: Told how far it is.

    Returns:
        `out`, which `ncsam.data.load`, `ncsam train` and `ncsam auto` read. It holds paths or texts of the samples and
        the encoder's description: reports show the samples, and runs encode new files.

    Examples:
        >>> from ncsam import data, embed
        >>> encoder = embed.image_encoder("lite0")                                        # doctest: +SKIP
        >>> embed.embed(data.load("photos/"), encoder, "features.npz")                    # doctest: +SKIP
    """
    out = Path(out)
    if out.suffix != ".npz":
        raise bad_value("out", str(out), "a file that ends in .npz")
    return write_features(
        features_of(dataset, encoder, cache=cache, batch_size=batch_size, workers=workers, say=say), out, say
    )


def write_features(embedded: DataSet, out: Path, say: Callable[[str], None] = print) -> Path:
    """Write the dataset that `features_of` returned to an `.npz` file that `ncsam.data.from_npz` reads.

    Args:
        embedded: A dataset of features with its encoding.
        out: The file to write; it is replaced atomically.
        say: Called with one line of text when the file is written.

    Returns:
        `out`.

    Raises:
        UsageError: The dataset does not come from `features_of`.
    """
    encoding = embedded.encoding
    if encoding is None:
        raise bad_value("data", embedded.name, "features, as features_of returns them")
    about = {**encoding.encoder, "original": {"mean": encoding.mean, "std": encoding.std, "size": encoding.size}}
    arrays: dict[str, npt.NDArray[Any]] = {
        "classes": np.array(embedded.classes),
        "encoder": np.array(json.dumps(about)),
    }
    for name, split in embedded.splits.items():
        suffix = "" if name == "train" else f"_{name}"
        arrays[f"x{suffix}"] = np.asarray(split.inputs)
        arrays[f"y{suffix}"] = split.labels
        if split.clean is not None:
            arrays[f"y{suffix}_clean"] = split.clean
        if split.has_paths:
            arrays[f"paths{suffix}"] = np.array([split.path(i) for i in range(len(split))])
        if isinstance(split.original, TextList):
            arrays[f"texts{suffix}"] = np.array(split.original.texts, dtype=np.str_)
    with atomic_path(out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    say(f"{out}: {len(embedded.train):,} training samples, {arrays['x'].shape[1]:,} features")
    return out
