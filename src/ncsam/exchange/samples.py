"""Describe a sample in plain values: an image, a text, or a row."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np

from ncsam._errors import need
from ncsam.data.types import DataSet, PathList

_MOST_VALUES = 50  # of a sample without named columns


def describe(dataset: DataSet, index: int) -> dict[str, Any]:
    """Describe a training sample.

    Args:
        dataset: the data. For embedded samples, the original is described.
        index: position in the training split.

    Returns:
        `{"image": path or data URI}`, `{"text": ...}` or `{"row": {column: value}}`, with at most 50 numbers.
    """
    split = dataset.train.of_original()
    if isinstance(split.inputs, PathList):
        return {"image": str(split.inputs[index])}
    item: Any = split.inputs[index]
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, dict):
        return {"row": {str(name): _plain(value) for name, value in item.items()}}
    if isinstance(item, np.ndarray) and item.dtype == np.uint8 and item.ndim == 3:
        return {"image": _data_uri(item)}
    values = np.asarray(item).reshape(-1)
    names = dataset.columns if len(dataset.columns) == len(values) else [str(i) for i in range(len(values))]
    return {"row": {name: _number(value) for name, value in zip(names, values[:_MOST_VALUES], strict=False)}}


def _number(value: Any) -> float:
    """14.23 where float32 holds 14.229999542236328."""
    return float(str(value)) if isinstance(value, np.floating) else float(value)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _data_uri(pixels: np.ndarray[Any, Any]) -> str:
    image = need("PIL.Image", "data", "sending images")
    buffer = io.BytesIO()
    image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, format="png")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
