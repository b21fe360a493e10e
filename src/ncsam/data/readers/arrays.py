"""Data that is in memory already: numpy arrays and `.npz` files of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._arguments import flag, instance
from ncsam._errors import bad_value
from ncsam._files import open_arrays
from ncsam._trees import TreeArrays, nested
from ncsam.data.readers.embedded import with_original
from ncsam.data.registry import check
from ncsam.data.types import DataSet, Inputs, Labels, Split, encode_labels

#: The names under which each array of an `.npz` is looked for; the first one there is taken.
NPZ_NAMES = {
    "x": ("x", "images", "x_train", "train_images", "data", "X"),
    "y": ("y", "labels", "y_train", "train_labels", "targets"),
    "y_clean": ("y_clean", "clean_labels", "y_train_clean", "clean"),
    "x_test": ("x_test", "test_images", "images_test", "X_test"),
    "y_test": ("y_test", "test_labels", "labels_test"),
    "y_test_clean": ("y_test_clean", "test_clean_labels"),
    "y_val_clean": ("y_val_clean", "val_clean_labels"),
    "x_val": ("x_val", "val_images", "images_val", "X_val"),
    "y_val": ("y_val", "val_labels", "labels_val"),
    "names": ("paths", "files"),
    "names_test": ("paths_test", "files_test"),
    "names_val": ("paths_val", "files_val"),
    "texts": ("texts",),
    "texts_test": ("texts_test",),
    "texts_val": ("texts_val",),
    "encoder": ("encoder",),
    "classes": ("classes", "class_names", "label_names"),
}


def from_arrays(
    x: npt.ArrayLike | Mapping[str, Any] | tuple[Any, ...],
    y: Any,
    *,
    y_clean: Any = None,
    x_test: Any = None,
    y_test: Any = None,
    y_test_clean: Any = None,
    x_val: Any = None,
    y_val: Any = None,
    y_val_clean: Any = None,
    names: npt.ArrayLike | None = None,
    names_test: npt.ArrayLike | None = None,
    names_val: npt.ArrayLike | None = None,
    classes: Sequence[str] | None = None,
    channels_first: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str = "arrays",
    allow_empty: bool = False,
) -> DataSet:
    """A dataset from arrays.

    Args:
        x: Images as uint8, (N, H, W, C) or (N, H, W); or features as floats of any shape (N, ...), kept as float32;
            or a dict or tuple of arrays, nested as one likes, which reaches the network as a tree of tensors.
        y: Observed labels: class numbers or class names, one per sample.
        y_clean: The true labels, where known; they reach metrics only.
        names, names_test, names_val: The file behind each sample, for features that were computed from files.
        classes: Class names in order. Default: the names found, sorted, or the numbers.
        channels_first: The images are (N, C, H, W).
        mean, std: For normalization, per channel (images in [0, 1]). Default: those of the training images.
        allow_empty: Accept classes without a training sample.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(6, 4))
        >>> dataset = from_arrays(rows, ["cat", "dog", "cat", "dog", "cat", "cat"])
        >>> dataset.classes, dataset.train.labels.tolist()
        (('cat', 'dog'), [0, 1, 0, 1, 0, 0])
    """
    instance("name", name, str, "text")
    if y is None:
        raise bad_value("y", y, "a label for each sample")
    for part, inputs, labels in (("test", x_test, y_test), ("val", x_val, y_val)):
        if (inputs is None) != (labels is None):
            raise ValueError(f"{name}: x_{part} and y_{part} go together; one of them is missing")
    for argument, value, needed in (
        ("y_test_clean", y_test_clean, y_test),
        ("y_val_clean", y_val_clean, y_val),
        ("names_test", names_test, y_test),
        ("names_val", names_val, y_val),
    ):
        if value is not None and needed is None:
            raise ValueError(f"{name}: {argument} is given, and there are no such samples")
    flag("channels_first", channels_first)
    encoded, class_names = encode_labels([y, y_clean, y_test, y_test_clean, y_val, y_val_clean], classes, where=name)
    train_y, train_clean, test_y, test_clean, val_y, val_clean = encoded
    assert train_y is not None
    train = Split(_inputs(x, "x", channels_first), train_y, train_clean, _names(names, "names", train_y))
    test = val = None
    if test_y is not None:
        files = _names(names_test, "names_test", test_y)
        test = Split(_inputs(x_test, "x_test", channels_first), test_y, test_clean, files)
    if val_y is not None:
        files = _names(names_val, "names_val", val_y)
        val = Split(_inputs(x_val, "x_val", channels_first), val_y, val_clean, files)
    for argument, numbers in (("mean", mean), ("std", std)):
        if numbers is not None and not isinstance(numbers, (list, tuple)) and getattr(numbers, "ndim", 0) != 1:
            raise bad_value(argument, numbers, "a list of numbers, one for each channel or feature")
    found_mean, found_std = statistics(train.inputs) if isinstance(train.inputs, np.ndarray) else ((), ())
    return check(
        DataSet(
            name=name,
            classes=class_names,
            train=train,
            test=test,
            val=val,
            mean=found_mean if mean is None else tuple(mean),
            std=found_std if std is None else tuple(std),
            size=image_size(train.inputs),
            source="arrays",
        ),
        allow_empty=allow_empty,
    )


def from_npz(
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    channels_first: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    name: str | None = None,
    allow_empty: bool = False,
) -> DataSet:
    """A dataset from an `.npz` file; the options are those of `from_arrays`.

    `NPZ_NAMES` lists the array names: `x` or `images`, `y` or `labels`, and where there are such `y_clean`, `x_test`,
    `y_test`, `x_val`, `y_val`, `y_val_clean`, `classes`, and `paths` (`paths_test`, `paths_val`) with the file behind
    each sample.
    Files of `ncsam embed` also hold `texts` and the description of the `encoder`: see `DataSet.original`.
    Arrays `x.NAME` in the place of `x` are a tree of arrays, {NAME: array}; deeper names are joined by dots.

    Args:
        path: The file.
        classes: Class names in the order of the class numbers; by default those in the file.
        channels_first: Whether images are (N, C, H, W).
        mean, std: Normalization per channel or feature; by default that of the training split.
        name: The dataset's name; by default the file's.
        allow_empty: Accept classes without training samples.

    Raises:
        ValueError: There are no inputs or no labels in the file, or arrays do not fit each other.
    """
    path = Path(path)
    arrays = read_npz(path)
    where = {argument: next((name for name in known if name in arrays), None) for argument, known in NPZ_NAMES.items()}
    found: dict[str, Any] = {argument: arrays[name] for argument, name in where.items() if name is not None}
    for argument in ("x", "x_test", "x_val"):
        branches = {name.partition(".")[2]: array for name, array in arrays.items() if name.startswith(f"{argument}.")}
        if branches and argument not in found:
            found[argument] = nested(branches)
    for argument in ("x", "y"):
        if argument not in found:
            raise ValueError(
                f"{path} has no array named {' or '.join(NPZ_NAMES[argument][:2])}; it holds {', '.join(arrays)}"
            )
    stored = found.pop("classes", None)
    if classes is None and stored is not None:
        if stored.ndim != 1:
            raise bad_value(f"{path}, {where['classes']}.shape", stored.shape, "(C,), a name for each class")
        classes = [str(label) for label in stored.tolist()]
    about = {argument: found.pop(argument, None) for argument in ("encoder", "texts", "texts_test", "texts_val")}
    dataset = from_arrays(
        **found,
        classes=classes,
        channels_first=channels_first,
        mean=mean,
        std=std,
        name=name or path.stem,
        allow_empty=allow_empty,
    )
    return replace(dataset if about["encoder"] is None else with_original(dataset, about, path), source=str(path))


def read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Those arrays of a file whose names mean something here, and trees of them. Nothing is unpickled.

    Args:
        path: The file.

    Raises:
        ValueError: No array has a known name.
    """
    meant = {name for known in NPZ_NAMES.values() for name in known}
    with open_arrays(path) as file:
        names = [name for name in file.files if name in meant or name.partition(".")[0] in meant]
        if not names:
            raise ValueError(f"{path} has no array named x or images; it holds {', '.join(file.files)}")
        file.check(names)
        return {name: file[name] for name in names}


def _inputs(x: Any, name: str, channels_first: bool) -> Inputs:
    if isinstance(x, Mapping) or (isinstance(x, tuple) and all(isinstance(part, np.ndarray) for part in x)):
        return TreeArrays(x)
    try:
        inputs = np.asarray(x)
    except ValueError:
        raise bad_value(name, x, "an array with rows of equal length") from None
    if inputs.dtype.kind == "f":
        if not np.isfinite(inputs).all():
            raise ValueError(f"{name} holds values that are not finite")
        with np.errstate(over="ignore"):
            features = np.ascontiguousarray(inputs, dtype=np.float32)
        if not np.isfinite(features).all():
            largest = float(np.abs(inputs).max())
            raise ValueError(f"{name} holds values up to {largest:.3g}, beyond the range of float32: scale them down")
        return features
    if inputs.dtype != np.uint8:
        raise bad_value(f"{name}.dtype", str(inputs.dtype), "uint8 for images, a float type for features")
    if inputs.ndim == 4 and channels_first:
        inputs = channels_last([inputs])
    if inputs.ndim == 3:
        inputs = inputs[..., None]
    if inputs.ndim != 4 or inputs.shape[3] not in (1, 3):
        hint = "; channels_first=True is for (N, C, H, W)" if inputs.ndim == 4 and inputs.shape[1] in (1, 3) else ""
        raise bad_value(f"{name}.shape", inputs.shape, f"(N, H, W) or (N, H, W, C) with 1 or 3 channels{hint}")
    return np.ascontiguousarray(inputs)


def image_size(inputs: Inputs) -> tuple[int, int] | None:
    """(height, width) of images in memory, `None` for anything else.

    Args:
        inputs: uint8 (N, H, W, C), or anything else.
    """
    if not isinstance(inputs, np.ndarray) or inputs.dtype != np.uint8:
        return None
    return inputs.shape[1], inputs.shape[2]


def _names(names: npt.ArrayLike | None, argument: str, labels: Labels) -> npt.NDArray[np.str_] | None:
    if names is None:
        return None
    try:
        found = np.asarray(names, dtype=np.str_)
    except ValueError:  # of lists of different lengths
        found = np.empty(0, dtype=np.str_)
    if found.shape != labels.shape:
        raise bad_value(f"{argument}.shape", found.shape, f"a name for each of the {len(labels):,} samples")
    return found


def channels_last(parts: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Parts of shape (n, C, H, W) as one array (N, H, W, C): plane by plane, much faster than by a transposition.

    Args:
        parts: uint8, alike but for n.
    """
    channels, height, width = parts[0].shape[1:]
    images = np.empty((sum(map(len, parts)), height, width, channels), dtype=np.uint8)
    start = 0
    for part in parts:
        for c in range(channels):
            images[start : start + len(part), :, :, c] = part[:, c]
        start += len(part)
    return images


def statistics(images: npt.NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation: per channel of uint8 images scaled to [0, 1], per column of (N, F) features, one
    number for features of another shape. A constant channel or column gets a standard deviation of 1.

    Args:
        images: uint8 (N, H, W, C), or a float array (N, ...).
    """
    if images.dtype == np.uint8:
        # From the counts of the 256 values, some images at a time: exact, and no float copy of them is made.
        channels = images.shape[-1]
        counts = np.zeros((channels, 256), dtype=np.int64)
        for start in range(0, len(images), 1000):
            for c in range(channels):
                counts[c] += np.bincount(images[start : start + 1000, ..., c].reshape(-1), minlength=256)
        values, total = np.arange(256) / 255, max(1, int(counts[0].sum()))
        mean = counts @ values / total
        variance = (counts * (values - mean[:, None]) ** 2).sum(axis=1) / total
    else:
        features = images if images.ndim == 2 else images.reshape(-1, 1)
        mean = features.mean(axis=0, dtype=np.float64)
        variance = features.var(axis=0, dtype=np.float64)
    std = np.where(variance > 0, np.sqrt(variance), 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())
