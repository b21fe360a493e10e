"""Any `torch.utils.data.Dataset`: labels without decoding where the dataset has them, inputs when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ncsam._errors import bad_value
from ncsam.data.images.exif import infer_image_size
from ncsam.data.images.files import IMAGENET_MEAN, IMAGENET_STD
from ncsam.data.modalities.nested import LazyNested
from ncsam.data.readers.arrays import image_size, statistics
from ncsam.data.registry import check
from ncsam.data.types import DataSet, Inputs, LazyImages, PathList, Split, encode_labels

#: Where a dict item may have its label.
LABEL_KEYS = ("label", "labels", "target", "y")


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
    """A dataset from torch datasets whose items begin with (inputs, label), or are dicts with a `label`.

    Labels come from `.targets` or `.labels` where there is such an attribute; else every item is read once. Images
    come from `.samples` or `.imgs` (paths, as in torchvision's folders) or a uint8 `.data`, without the dataset's own
    transforms, for ours are applied later; else item by item, as they are asked for. What an item's inputs are
    decides the kind of data:

    - a PIL image, a uint8 array (H, W) or (H, W, C), a tensor (C, H, W) of uint8 or of floats in [0, 1]: an image;
    - a vector of floats: features, kept in memory;
    - anything else (a dict, tuple or list of tensors, nested as one likes, or a tensor of another shape or type): a
      tree of tensors, of one form for all items. A dict item that holds the label itself is its own tree without it.

    Args:
        dataset, test: For training and for the test.
        classes: Class names in order. Default: `dataset.classes` where there is one.
        clean: True labels of the training items, where known; they reach metrics only.
        mean, std: For normalization. Default: of the training images if they are in memory, else of ImageNet (for gray
            images 0.5 and 0.5).
        size: The (height, width) a network sees. Default: that of the first image; for paths as for `from_folder`.
        name: The dataset's name.
        allow_empty: Accept classes without a training sample.
    """
    if len(dataset) == 0:
        raise bad_value("dataset", dataset, "a dataset with at least one item")
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
    return [_plain(as_items(dataset[i])[1]) for i in range(len(dataset))]


def as_items(item: Any) -> tuple[Any, Any]:
    """Inputs and label of an item: of a pair, or of a dict with a label.

    Args:
        item: A sequence that begins with inputs and label, or a dict with one of `LABEL_KEYS`.

    Raises:
        ValueError: It is neither.
    """
    if not isinstance(item, Mapping):
        try:
            if not isinstance(item, str | bytes):
                return item[0], item[1]
        except (TypeError, IndexError, KeyError):
            pass
        raise bad_value("data", item, "items that begin with inputs and a label, or dicts with a label")
    name = next((name for name in LABEL_KEYS if name in item), None)
    if name is None:
        raise ValueError(f"an item has the keys {', '.join(map(str, item))}; expected one of {', '.join(LABEL_KEYS)}")
    return {key: value for key, value in item.items() if key != name}, item[name]


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
    first = as_items(dataset[0])[0]
    if isinstance(first, str):
        raise bad_value("dataset", type(dataset).__name__, "items that are no texts; as_dataset takes those, too")
    every = np.arange(len(dataset))
    if _is_image(first):
        return LazyImages(_Image(dataset), every)
    if isinstance(first, (torch.Tensor, np.ndarray)) and first.ndim == 1 and "float" in str(first.dtype):
        return np.stack([np.asarray(as_items(dataset[i])[0], dtype=np.float32) for i in every])
    return LazyNested(_Inputs(dataset), every)


def _is_image(item: Any) -> bool:
    """A PIL image, uint8 values, or floats (H, W) or (C, H, W)."""
    if isinstance(item, np.ndarray):
        return item.dtype == np.uint8 and item.ndim in (2, 3)
    if isinstance(item, torch.Tensor):
        colors = item.ndim == 2 or (item.ndim == 3 and item.shape[0] in (1, 3))
        return colors and (item.dtype == torch.uint8 or item.is_floating_point())
    return hasattr(item, "convert")


class _Inputs:
    """A class, not a closure, so that the workers of a loader can receive it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, index: int) -> Any:
        return as_items(self.dataset[index])[0]


class _Image(_Inputs):
    def __call__(self, index: int) -> npt.NDArray[np.uint8]:
        return as_image(super().__call__(index))


def as_image(item: Any) -> npt.NDArray[np.uint8]:
    """A PIL image, array or tensor as uint8 (H, W, C).

    Args:
        item: A tensor is (H, W) or (C, H, W), uint8 or floats in [0, 1]; an array uint8 (H, W) or (H, W, C).

    Raises:
        ValueError: Values or shape are not those of an image.
    """
    if isinstance(item, torch.Tensor):
        tensor = item if item.ndim == 3 else item[None]
        if tensor.is_floating_point():
            low, high = float(tensor.min()), float(tensor.max())
            if low < 0 or high > 1:
                raise ValueError(
                    f"an image holds values from {low:.3g} to {high:.3g}; floats must be in [0, 1]. Leave the data "
                    "set's own normalization out: it is applied later, by mean and std"
                )
            tensor = (tensor * 255).round().to(torch.uint8)
        return tensor.permute(1, 2, 0).contiguous().numpy()
    if hasattr(item, "convert") and item.mode not in ("L", "RGB"):
        item = item.convert("RGB")
    image = np.asarray(item)
    if image.dtype != np.uint8 or image.ndim not in (2, 3):
        raise ValueError(f"an image is {image.dtype} of shape {image.shape}; expected uint8 (H, W) or (H, W, C)")
    return image[..., None] if image.ndim == 2 else image


def _measures(inputs: Inputs) -> tuple[tuple[float, ...], tuple[float, ...], tuple[int, int] | None]:
    if isinstance(inputs, np.ndarray):
        return *statistics(inputs), image_size(inputs)
    if isinstance(inputs, LazyNested):
        return (), (), None
    if isinstance(inputs, PathList):
        return IMAGENET_MEAN, IMAGENET_STD, infer_image_size(inputs)
    first = inputs[0]
    assert isinstance(first, np.ndarray)
    height, width, channels = first.shape
    return (*((IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else ((0.5,), (0.5,))), (height, width))
