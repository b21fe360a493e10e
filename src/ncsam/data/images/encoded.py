"""Images that lie encoded in something other than a file of their own: bytes in memory, parts of a tar archive."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import need
from ncsam.data.images.exif import LARGEST, exif_transpose
from ncsam.data.types import LazyImages

_LOOKED_AT = 16  # images that are decoded to find the usual size


def decoded(content: bytes, name: str) -> npt.NDArray[np.uint8]:
    """The image (H, W, 3) of an encoded one, the way up that its EXIF note says.

    Args:
        content: An image file's bytes, in any format that Pillow reads.
        name: What an error message calls the image.

    Raises:
        ValueError: The bytes cannot be decoded.
    """
    pil: Any = need("PIL.Image", "data", "decoding images")
    try:
        with pil.open(io.BytesIO(content)) as file:
            return np.asarray(exif_transpose(file, "RGB"), dtype=np.uint8)
    except (OSError, SyntaxError, ValueError, pil.DecompressionBombError) as error:
        reason = str(error).split(" <_io", 1)[0]
        raise ValueError(f"{name} cannot be read as an image: {reason}") from error


class InMemory:
    """Encoded images as bytes; a class, not a closure, so that the workers of a loader can receive it.

    Args:
        contents: The bytes of each image file.
        where: What error messages call the collection.
    """

    def __init__(self, contents: Sequence[bytes], where: str) -> None:
        self.contents, self.where = contents, where

    def __call__(self, index: int) -> npt.NDArray[np.uint8]:
        return decoded(self.contents[index], f"{self.where}, row {index:,}")


class InArchives:
    """Encoded images by (archive, offset, bytes).

    Args:
        archives: Uncompressed tar files.
        places: (N, 3) number of the archive, offset and length in bytes of each image.
    """

    def __init__(self, archives: Sequence[Path], places: npt.NDArray[np.int64]) -> None:
        self.archives, self.places = list(archives), places

    def __call__(self, index: int) -> npt.NDArray[np.uint8]:
        archive, offset, size = self.places[index].tolist()
        path = self.archives[archive]
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(size)
        return decoded(content, f"{path}, sample {index:,}")


def infer_image_size_of(images: LazyImages) -> tuple[int, int]:
    """As `upright.infer_image_size` for files: their own size if they are alike and small, else a square.

    Args:
        images: Of these, up to 16 are decoded, evenly spread.
    """
    rows = np.unique(np.linspace(0, len(images) - 1, min(len(images), _LOOKED_AT)).round().astype(int))
    sizes: list[tuple[int, int]] = [images[int(row)].shape[:2] for row in rows]
    if len(set(sizes)) == 1 and max(sizes[0]) <= LARGEST:
        return sizes[0]
    side = min(LARGEST, int(np.median([min(size) for size in sizes])))
    return side, side
