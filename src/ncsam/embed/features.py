"""A dataset turned into features by an encoder, in memory; whatever was computed once is found in the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._arguments import require_explicit_import
from ncsam._errors import bad_value
from ncsam.data.loading.loader import Loader
from ncsam.data.modalities.images import Images
from ncsam.data.modalities.text import TextList
from ncsam.data.readers.arrays import statistics
from ncsam.data.types import DataSet, Encoding, Inputs, PathList, Split
from ncsam.embed.cache import FeatureCache, array_hash, file_hash, text_hash
from ncsam.embed.encoder import Encoder, image_encoder
from ncsam.embed.text import NamedTextEncoder, text_encoder

Floats = npt.NDArray[np.float32]
_SPEAK = 10.0  # seconds between two lines of progress


def features_of(
    dataset: DataSet,
    encoder: Encoder | NamedTextEncoder,
    *,
    cache: FeatureCache | None = None,
    batch_size: int = 64,
    workers: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> DataSet:
    """The dataset with the features of its samples as inputs.

    The result remembers where they come from: `result.original` is the dataset of the images or texts, and
    `result.encoding` describes the encoder, so that a run can encode new samples.

    Args:
        dataset: Images or texts.
        encoder: From `image_encoder` or `text_encoder`.
        cache: Where features are kept by content. Default: the user's (see `ncsam.embed.cache`).
        batch_size: Images at a time.
        workers: Processes that decode image files.
        say: Told how far it is, every ten seconds.

    Returns:
        A dataset of float32 features, normalized by the mean and std of the training samples.

    Raises:
        UsageError: The dataset holds other samples than the encoder takes.
    """
    check_kind(dataset.train.inputs, encoder, dataset.name)
    cache = FeatureCache() if cache is None else cache
    splits = {
        name: replace(
            split,
            inputs=encode(split.inputs, encoder, cache, batch_size, workers, _Progress(name, len(split), say)),
            original=split.inputs,
        )
        for name, split in dataset.splits.items()
        if name not in dataset.extra
    }
    mean, std = statistics(np.asarray(splits["train"].inputs))
    return replace(
        dataset,
        train=splits["train"],
        val=splits.get("val"),
        test=splits.get("test"),
        extra={},
        mean=mean,
        std=std,
        size=None,
        encoding=Encoding(encoder.describe(), dataset.mean, dataset.std, dataset.size),
    )


def check_kind(inputs: Inputs, encoder: Encoder | NamedTextEncoder, name: str) -> None:
    """Check that an encoder takes these samples.

    Args:
        inputs: Images or texts.
        encoder: The encoder.
        name: Name of the data, for the error message.

    Raises:
        UsageError: The encoder takes another kind of sample.
    """
    fits = isinstance(inputs, TextList) if encoder.kind == "texts" else Images.holds(inputs)
    if not fits:
        raise bad_value("data", name, f"{encoder.kind}, for the encoder {encoder.name!r}")


def encode(
    inputs: Inputs,
    encoder: Encoder | NamedTextEncoder,
    cache: FeatureCache | None,
    batch_size: int = 64,
    workers: int = 0,
    done: Callable[[int], None] = lambda count: None,
) -> Floats:
    """The features (N, F) of images or texts, read from the cache where possible.

    Args:
        inputs: N images or texts.
        encoder: From `image_encoder` or `text_encoder`.
        cache: Where features are kept by content; `None` computes all of them.
        batch_size: Images per forward pass; text encoders choose their own.
        workers: Processes that decode image files; 0 decodes in this one.
        done: Called with the number of samples encoded so far.
    """

    def compute(start: int, stop: int) -> Floats:
        if isinstance(encoder, NamedTextEncoder):
            return encoder(list(inputs[start:stop]))
        parts = []
        for part in _image_batches(inputs, encoder, batch_size, workers, np.arange(start, stop)):
            parts.append(part)
            done(start + sum(map(len, parts)))
        return np.concatenate(parts)

    if cache is None:
        return compute(0, len(inputs))
    return cache.rows(encoder.source(), sample_hashes(inputs), compute, done=done)


def _image_batches(
    inputs: Inputs, encoder: Encoder, batch_size: int, workers: int, subset: npt.NDArray[np.int64]
) -> Iterator[Floats]:
    split = Split(inputs, np.zeros(len(inputs), dtype=np.int64))
    for batch in image_loader(split, encoder, batch_size, workers, subset).iterate(0):
        yield encoder(batch.views[0]).cpu().numpy()


def image_loader(split: Split, encoder: Encoder, batch_size: int, workers: int, subset: Any = None) -> Loader:
    """Load the images of a split in order, resized and normalized for an encoder.

    Args:
        split: The images.
        encoder: Its size, crop, normalization and device are used.
        batch_size: Images per batch.
        workers: Processes that decode image files; 0 decodes in this one.
        subset: Positions of the images to load; `None` means all.
    """
    files = not isinstance(split.inputs, np.ndarray)
    if isinstance(split.inputs, np.ndarray) and split.inputs.shape[-1] == 1 and len(encoder.mean) == 3:
        split = replace(split, inputs=split.inputs.repeat(3, axis=-1))  # files of gray images become color ones, too
    return Loader(
        split,
        batch_size,
        mean=encoder.mean,
        std=encoder.std,
        size=encoder.size if files else None,
        resize=round(max(encoder.size) * 8 / 7) if files and encoder.crops else None,
        workers=workers,
        subset=subset,
        device=encoder.device,
    ).evaluation(batch_size)


def sample_hashes(inputs: Inputs) -> list[str]:
    """The SHA-256 of each sample: of a file's bytes, of a text, or of pixels.

    Args:
        inputs: Images, files or texts.
    """
    if isinstance(inputs, TextList):
        return [text_hash(text) for text in inputs.texts]
    if isinstance(inputs, PathList) or (len(inputs) and isinstance(inputs[0], Path)):
        return [file_hash(path) for path in inputs]
    return [array_hash(np.asarray(sample)) for sample in inputs]


def encoder_from(
    description: Mapping[str, Any], *, device: str = "cpu", named: Collection[str] = ()
) -> Encoder | NamedTextEncoder:
    """The encoder that `describe()` described.

    Args:
        description: Plain values, as `DataSet.encoding.encoder` and the modality of a run hold them.
        device: Where to compute.
        named: Names of models that the caller allows to be imported: a description is read from a file, which does not
            decide what code runs.

    Raises:
        UsageError: Its weights are not those of the description, it cannot be made again, or it is code not in `named`.
        ImportError: A package is not installed.
    """
    kind, name = description.get("kind"), str(description.get("name", ""))
    found: Encoder | NamedTextEncoder
    if kind == "texts":
        options = {key: description[key] for key in ("max_length", "precision")}
        found = text_encoder(name, device=device, **options)
    elif kind == "images" and name:
        options = {key: description[key] for key in ("size", "crop", "precision")}
        given = dict(description.get("options", {}))
        own = {key: value for key, value in given.items() if key not in ("channels", "pretrained")}
        asked = {"model": name, "model_options": own}
        require_explicit_import("what embedded these images", asked, {"model": name if name in named else None})
        found = image_encoder(name, device=device, **options, **given)
    else:
        raise bad_value("encoder", dict(description), "the description of a named encoder of images or texts")
    weights = found.describe()["weights"]
    if weights != description.get("weights"):
        raise bad_value("encoder", f"{name} ({weights[:24]})", f"the weights {str(description.get('weights'))[:24]}")
    return found


class _Progress:
    """A line now and then: how many samples are done, how fast, how long it will still take."""

    def __init__(self, name: str, samples: int, say: Callable[[str], None]) -> None:
        self.name, self.samples, self.say = name, samples, say
        self.began = self.spoke = time.monotonic()
        self.first: int | None = None

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = done
        if now - self.spoke < _SPEAK or done == self.first:
            return
        self.spoke = now
        speed = (done - self.first) / (now - self.began)
        left = (self.samples - done) / speed
        self.say(f"{self.name}: {done:,} of {self.samples:,} samples, {speed:.0f} a second, {left / 60:.1f} min left")
