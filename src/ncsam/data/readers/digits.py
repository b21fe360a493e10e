"""scikit-learn's digits: 1,797 images of 8 x 8 inside the package itself, so that all runs without a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ncsam._errors import need
from ncsam.data.readers.arrays import from_arrays
from ncsam.data.registry import register
from ncsam.data.types import DataSet, stratified


@register(
    "digits",
    about="1,797 gray images of handwritten digits, 8 x 8, 10 classes; the default, inside scikit-learn",
    obtain="comes with scikit-learn",
    license="CC BY 4.0 (UCI, Optical Recognition of Handwritten Digits)",
)
def digits(
    root: Path | None = None,
    *,
    download: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    as_features: bool = False,
) -> DataSet:
    """Gray levels 0 to 16 as uint8 images (N, 8, 8, 1), a level v being round(255 v / 16); or float32 features.

    Of every class, a fifth (rounded) goes to the test split, chosen by numpy's generator under `seed`: 1,438 images
    for training and 359 for the test, the same everywhere. Within a split they keep scikit-learn's order.

    Args:
        root, download: Not needed; there for the common way of calling.
        test_fraction: Share of every class for the test split, above 0 and below 1.
        seed: Of that choice.
        as_features: Give vectors of 64 floats, v / 16, instead of images.
    """
    bunch = need("sklearn.datasets", "data", "the digits dataset").load_digits()
    labels = bunch.target.astype(np.int64)
    levels = bunch.images
    if as_features:
        x = (levels.reshape(len(levels), -1) / 16).astype(np.float32)
    else:
        x = np.rint(levels * (255 / 16)).astype(np.uint8)
    train, test = stratified(labels, test_fraction, seed)
    dataset = from_arrays(
        x[train],
        labels[train],
        x_test=x[test],
        y_test=labels[test],
        classes=[str(name) for name in bunch.target_names],
        name="digits",
    )
    return replace(dataset, source="scikit-learn")
