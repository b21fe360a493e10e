"""What a reviewer sees of a sample: a small image, the values of a vector, or text, generated on request."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import need
from ncsam.data.images.exif import exif_transpose
from ncsam.data.types import Split

SMALL, LARGE = 192, 768  # longest sides of images in the grid and alone, in pixels
_EXACT = 64  # up to this side images are kept exactly, and shown as squares
_MOST_VALUES = 256
_MOST_TEXT = 4000
_SIDE = 8  # of the tiny image by which images are compared


class Samples:
    """The samples of a training split as the page shows them.

    Args:
        split: the training split.
        columns: names of a vector's numbers. Empty: they have none.
    """

    def __init__(self, split: Split, columns: Sequence[str] = ()) -> None:
        self.split = split
        self._original = split.of_original().inputs  # of embedded samples; their features tell which are alike
        self.columns = list(columns)
        self.image = lru_cache(maxsize=4000)(self._image)
        self._descriptor = lru_cache(maxsize=20_000)(self._described)

    def shown(self, index: int) -> dict[str, Any]:
        """Return what to show of a sample.

        Args:
            index: position in the training split.

        Returns:
            `kind` is "image", "text" (with `text`), "vector" (with `values` and `length`), or "row": a vector with
            `names`.
        """
        item: Any = self._original[index]
        if isinstance(item, Path):
            return {"kind": "image"}
        if isinstance(item, str):
            return {"kind": "text", "text": item[:_MOST_TEXT]}
        if self._file(index) is not None:
            return {"kind": "image"}
        if isinstance(item, Mapping):  # a row of a mixed table
            cells = "\n".join(f"{name}: {value}" for name, value in item.items() if value not in (None, ""))
            return {"kind": "text", "text": cells[:_MOST_TEXT]}
        if not isinstance(item, np.ndarray):
            return {"kind": "text", "text": repr(item)[:_MOST_TEXT]}
        if item.dtype == np.uint8 and item.ndim == 3:
            return {"kind": "image"}
        flat = item.reshape(-1)
        values = [float(f"{v:.4g}") for v in flat[:_MOST_VALUES]]
        if len(self.columns) == len(flat):
            return {"kind": "row", "values": values, "names": self.columns[:_MOST_VALUES], "length": len(flat)}
        return {"kind": "vector", "values": values, "length": len(flat)}

    def _file(self, index: int) -> Path | None:
        """The image of a sample: its own file, or the one that its features were computed from."""
        name = self.split.path(index)
        path = None if name is None else Path(name)
        return path if path is not None and path.is_file() else None

    def _image(self, index: int, longest: int) -> tuple[bytes, str] | None:
        """A PNG or JPEG and its media type; `None` if the sample is not an image or cannot be read."""
        image = self._opened(index, longest)
        if image is None:
            return None
        exact = max(image.size) <= _EXACT
        image.thumbnail((longest, longest))
        buffer = io.BytesIO()
        image.save(buffer, format="png" if exact else "jpeg", **({} if exact else {"quality": 85}))
        return buffer.getvalue(), "image/png" if exact else "image/jpeg"

    def _opened(self, index: int, longest: int) -> Any:
        pil: Any = need("PIL.Image", "data", "showing images")
        item: Any = self._original[index]
        path = self._file(index)
        if path is not None:
            try:
                with pil.open(path) as file:
                    file.draft("RGB", (longest, longest))
                    return exif_transpose(file, "RGB")
            except (OSError, SyntaxError, ValueError, pil.DecompressionBombError):
                return None
        if not isinstance(item, np.ndarray) or item.dtype != np.uint8 or item.ndim != 3:
            return None
        pixels = item
        return pil.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

    def nearest(self, index: int, candidates: npt.NDArray[np.int64], count: int) -> list[int]:
        """Return the candidates that look most like a sample, comparing tiny images or the vectors themselves.

        Args:
            index: position of the sample in the training split.
            candidates: positions to choose from; the sample itself is ignored.
            count: maximum number.

        Returns:
            Positions, most similar first. Texts are not compared: the first candidates are returned.
        """
        own = self._descriptor(index)
        others = [(int(c), self._descriptor(int(c))) for c in candidates if c != index]
        if own is None:
            return [c for c, _ in others[:count]]
        far = [(float(((d - own) ** 2).sum()), c) for c, d in others if d is not None and d.shape == own.shape]
        return [c for _, c in sorted(far)[:count]]

    def _described(self, index: int) -> npt.NDArray[np.float32] | None:
        item: Any = self.split.inputs[index]
        if isinstance(item, str):
            return None
        if isinstance(item, np.ndarray) and item.dtype != np.uint8:
            return item.reshape(-1).astype(np.float32)
        image = self._opened(index, SMALL)
        if image is None:
            return None
        tiny = np.asarray(image.convert("RGB").resize((_SIDE, _SIDE)), dtype=np.float32).reshape(-1)
        centerd: npt.NDArray[np.float32] = tiny - tiny.mean()
        return centerd
