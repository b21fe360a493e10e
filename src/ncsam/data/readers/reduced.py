"""A part of another dataset, small enough for two cores: fewer classes, fewer samples, fewer pixels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from ncsam._arguments import is_reference
from ncsam._errors import bad_value
from ncsam.data.images.files import decode_image
from ncsam.data.readers.arrays import image_size, statistics
from ncsam.data.registry import load, names, register
from ncsam.data.types import DataSet, Inputs, Split


@register(
    "reduced",
    about="a part of another dataset (`of`): its first classes, some of their images, averaged to `side` pixels",
    obtain="is made of the dataset or file that its option `of` names",
    license="that of the dataset it is made of",
)
def reduced(
    root: Path,
    *,
    download: bool = False,
    of: str = "digits",
    classes: int | None = None,
    train: int | None = None,
    test: int | None = None,
    side: int | None = None,
) -> DataSet:
    """The first `classes` classes; of n samples those at floor(i n / train); images as means of equal areas.

    Samples are spread evenly over the order that the dataset has, so a file sorted by class gives all classes their
    part, and the same samples come at every time. What is smaller than asked for stays as it is.

    Args:
        root, download: Of the dataset that `of` names.
        of: A name from `names()` or a path, as `load` takes it.
        classes, train, test: How many classes, training and test samples to keep; `None` keeps all.
        side: Height and width of the images in pixels; `None` keeps their size.
    """
    for name, value in (("classes", classes), ("train", train), ("test", test), ("side", side)):
        if value is not None and value < (2 if name == "classes" else 1):
            raise bad_value(name, value, "the number to keep, at least 1 (of classes 2), or None for all")
    if of == "reduced" or is_reference(of):
        raise bad_value("of", of, "another dataset, by its name or its path")
    whole = load(of, root, download=download) if of in names() else load(of)
    kept = whole.num_classes if classes is None else min(classes, whole.num_classes)
    trained = _part(whole.train, kept, train, side)
    tested = None if whole.test is None else _part(whole.test, kept, test, side)
    mean, std = statistics(trained.inputs) if isinstance(trained.inputs, np.ndarray) else ((), ())
    return replace(
        whole,
        name=f"{whole.name}, reduced",
        classes=whole.classes[:kept],
        train=trained,
        test=tested,
        val=None,
        extra={},
        mean=mean,
        std=std,
        size=image_size(trained.inputs),
    )


def _part(split: Split, classes: int, count: int | None, side: int | None) -> Split:
    fits = split.labels < classes
    if split.clean is not None:
        fits &= split.clean < classes
    there = np.flatnonzero(fits)
    if count is not None and count < len(there):
        there = there[np.arange(count) * len(there) // count]
    part = split.take(there)
    return part if side is None else replace(part, inputs=_averaged(part.inputs, side))


def _averaged(inputs: Inputs, side: int) -> Inputs:
    """Images of side x side pixels; features and texts as they are."""
    if isinstance(inputs, np.ndarray):
        return _pooled(inputs, side) if inputs.dtype == np.uint8 and max(inputs.shape[1:3]) > side else inputs
    first: Any = inputs[0]
    if not isinstance(first, (Path, np.ndarray)):
        return inputs
    return np.concatenate([_pooled(decode_image(item)[None], side) for item in inputs])


def _pooled(images: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    means = F.adaptive_avg_pool2d(channels_first, side).round().to(torch.uint8)
    return np.ascontiguousarray(means.permute(0, 2, 3, 1).numpy())
