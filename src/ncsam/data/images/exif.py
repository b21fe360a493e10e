"""One image file, the way up that its EXIF note says: its pixels in 8 bits, and its size from the header alone."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np

from ncsam._errors import need
from ncsam.data.types import Inputs

if TYPE_CHECKING:
    from PIL import Image

LARGEST = 224  # pixels; what photographs are usually cut to
_LOOKED_AT = 64  # files; their headers take milliseconds
_ORIENTATION = 0x0112  # EXIF: 1 upright; 2, 4 mirrored; 3 upside down; 5 to 8 height and width change places


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """An image file, its header read. A pipe or a device, which would be read for ever, is refused.

    Args:
        path: A file in a format that Pillow reads.

    Raises:
        OSError: It is not a regular file, or no image.
    """
    pil: Any = need("PIL.Image", "data", "reading image files")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{os.fspath(path)} is not a regular file")
    opened: Image.Image = pil.open(path)
    return opened


def is_upright(file: Image.Image) -> bool:
    """Whether the pixels can be taken as they lie.

    Args:
        file: An opened image; one without an EXIF note is upright.
    """
    return bool(file.getexif().get(_ORIENTATION, 1) == 1)


def exif_transpose(file: Image.Image, mode: str) -> Image.Image:
    """The image turned as its EXIF note says, in mode "RGB" or "L".

    Sixteen-bit gray is scaled down; Pillow alone would cut everything above 255 to white.

    Args:
        file: An opened image.
        mode: "RGB" or "L".
    """
    from PIL import Image, ImageOps

    image = file if is_upright(file) else ImageOps.exif_transpose(file)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8))
    return image.convert(mode)


def infer_image_size(paths: Inputs) -> tuple[int, int]:
    """The (height, width) to show a network of image files, from the headers of 64 of them, evenly spread.

    Images of one size up to 224 x 224 stay as they are. Otherwise it is a square with the median of their shorter
    sides, at most 224. Files whose header cannot be read do not count.

    Args:
        paths: Image files.

    Returns:
        (height, width); 224 x 224 if no header can be read.
    """
    pil = need("PIL.Image", "data", "reading image files")
    sizes: list[tuple[int, int]] = []
    for i in np.unique(np.linspace(0, len(paths) - 1, min(len(paths), _LOOKED_AT)).round().astype(int)):
        try:
            with open_image(paths[int(i)]) as file:
                sizes.append(_upright_size(file))
        except (OSError, SyntaxError, ValueError, pil.DecompressionBombError):
            continue
    if not sizes:
        return LARGEST, LARGEST
    if len(set(sizes)) == 1 and max(sizes[0]) <= LARGEST:
        return sizes[0]
    side = min(LARGEST, int(np.median([min(size) for size in sizes])))
    return side, side


def _upright_size(file: Any) -> tuple[int, int]:
    """(height, width) without reading pixels, which Pillow would do to find a note at the end of a PNG file."""
    at_the_end = file.format == "PNG" and "exif" not in file.info
    turned = not at_the_end and file.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    return (file.width, file.height) if turned else (file.height, file.width)
