"""Any `torch.utils.data.Dataset`: labels without decoding where the data set has them, pictures when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam._errors import bad_value
from ncsam.data.arrays import statistics
from ncsam.data.check import check
from ncsam.data.files import IMAGENET_MEAN, IMAGENET_STD
from ncsam.data.labels import encode_labels
from ncsam.data.types import DataSet, Inputs, LazyInputs, PathList, Split
from ncsam.data.upright import usual_size


def from_dataset(
    dataset: Any,
    test: Any = None,
    *,
    classes: Sequence[str] | None = None,
    clean: Any = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: tuple[int, int] | None = None,
    name: str = "dataset",
    allow_empty: bool = False,
) -> DataSet:
    """A data set from torch data sets whose items begin with (picture, label).

    Labels come from `.targets` or `.labels` where there is such an attribute; else every item is read once. Pictures
    come from `.samples` or `.imgs` (paths, as in torchvision's folders) or a uint8 `.data`, without any of the data
    set's own transforms, for ours are applied later; else item by item, as they are asked for. An item's picture may be
    a PIL image, a uint8 array (H, W) or (H, W, C), or a tensor (C, H, W) of uint8 or of floats in [0, 1]. Items that
    are float vectors are kept in memory as features.

    Args:
        dataset, test: For training and for the test.
        classes: Class names in order. Default: `dataset.classes` where there is one.
        clean: True labels of the training items, where known; they reach metrics only.
        mean, std: For normalisation. Default: of the training images if they are in memory, else of ImageNet (for grey
            pictures 0.5 and 0.5).
        size: The (height, width) a network sees. Default: that of the first picture; for paths as for `from_folder`.
    """
    if len(dataset) == 0:
        raise bad_value("dataset", dataset, "it has no items")
    if classes is None and isinstance(getattr(dataset, "classes", None), (list, tuple)):
        classes = [str(c) for c in dataset.classes]
    columns = [_labels(dataset), clean, None if test is None else _labels(test)]
    (observed, true, tested), names = encode_labels(columns, classes, where=name)
    assert observed is not None
    train_inputs = _inputs(dataset)
    parts = Split(train_inputs, observed, true)
    held = None if tested is None else Split(_inputs(test), tested)
    found_mean, found_std, found_size = _measures(train_inputs)
    return check(
        DataSet(
            name=name,
            classes=names,
            train=parts,
            test=held,
            mean=found_mean if mean is None else tuple(mean),
            std=found_std if std is None else tuple(std),
            size=size or found_size,
            source=type(dataset).__name__,
        ),
        allow_empty=allow_empty,
    )


def _labels(dataset: Any) -> Any:
    for attribute in ("targets", "labels"):
        found = getattr(dataset, attribute, None)
        if found is not None and len(found) == len(dataset):
            return torch.as_tensor(found).numpy() if isinstance(found, torch.Tensor) else list(found)
    return [_plain(dataset[i][1]) for i in range(len(dataset))]


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, (torch.Tensor, np.generic)) else label


def _inputs(dataset: Any) -> Inputs:
    for attribute in ("samples", "imgs"):
        found = getattr(dataset, attribute, None)
        if found and len(found) == len(dataset) and isinstance(found[0], (tuple, list)):
            return PathList(Path(), [str(sample[0]) for sample in found])
    data = getattr(dataset, "data", None)
    if isinstance(data, torch.Tensor):
        data = data.numpy()
    if isinstance(data, np.ndarray) and data.dtype == np.uint8 and len(data) == len(dataset):
        if data.ndim == 3:
            return data[..., None]
        if data.ndim == 4 and data.shape[3] in (1, 3):
            return data
    first = dataset[0][0]
    if isinstance(first, (torch.Tensor, np.ndarray)) and first.ndim == 1:
        return np.stack([np.asarray(dataset[i][0], dtype=np.float32) for i in range(len(dataset))])
    return LazyInputs(_Maker(dataset), np.arange(len(dataset)))


class _Maker:
    """A class, not a closure, so that the workers of a loader can receive it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, index: int) -> npt.NDArray[np.uint8]:
        return as_picture(self.dataset[index][0])


def as_picture(item: Any) -> npt.NDArray[np.uint8]:
    """A PIL image, array or tensor as uint8 (H, W, C)."""
    if isinstance(item, torch.Tensor):
        tensor = item if item.ndim == 3 else item[None]
        if tensor.is_floating_point():
            low, high = float(tensor.min()), float(tensor.max())
            if low < 0 or high > 1:
                raise ValueError(
                    f"a picture holds values from {low:.3g} to {high:.3g}; floats must be in [0, 1]. Leave the data "
                    "set's own normalisation out: it is applied later, by mean and std"
                )
            tensor = (tensor * 255).round().to(torch.uint8)
        return tensor.permute(1, 2, 0).contiguous().numpy()
    if hasattr(item, "convert") and item.mode not in ("L", "RGB"):
        item = item.convert("RGB")
    picture = np.asarray(item)
    if picture.dtype != np.uint8 or picture.ndim not in (2, 3):
        raise ValueError(f"a picture is {picture.dtype} of shape {picture.shape}; expected uint8 (H, W) or (H, W, C)")
    return picture[..., None] if picture.ndim == 2 else picture


def _measures(inputs: Inputs) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, int] | None]:
    if isinstance(inputs, np.ndarray):
        size = (inputs.shape[1], inputs.shape[2]) if inputs.dtype == np.uint8 else None
        return *statistics(inputs), size
    if isinstance(inputs, PathList):
        return IMAGENET_MEAN, IMAGENET_STD, usual_size(inputs)
    first = inputs[0]
    assert isinstance(first, np.ndarray)
    height, width, channels = first.shape
    return (*((IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((0.5,), (0.5,))), (height, width))
