"""Augmentation of whole batches: each function takes the parameters of every image and draws nothing itself.

Images are (B, C, H, W). Up to `normalize` they are uint8. Parameters are small integer or float arrays on the CPU,
one entry per image; they are sent to the images' device, which never has to answer back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

Padding = Literal["zeros", "reflect"]
Ints = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


def crop_windows(
    images: Tensor,
    top: Ints,
    left: Ints,
    flip: npt.NDArray[np.bool_],
    size: tuple[int, int],
    *,
    padding: tuple[int, int] = (0, 0),
    mode: Padding = "zeros",
) -> Tensor:
    """Pad each image, cut the window of `size` whose corner is (top, left) in the padded frame, and mirror some.

    A window is a set of rows, and a row is a run of bytes that may begin anywhere. So the padded batch is seen as all
    its overlapping runs of the window's width, of which one `index_select` copies those that are wanted. Images to
    be mirrored are first appended, mirrored, to the batch and take their rows from there. That is several times faster
    than a gather of single pixels.

    Args:
        images: (B, C, H, W).
        top, left: (B,) corners of the windows in the padded images.
        flip: (B,) whether to mirror each window left to right.
        size: (height, width) of the windows.
        padding: (rows, columns) added on each side.
        mode: "zeros" pads with black, "reflect" with the mirrored image.
    """
    count, channels, height, width = *images.shape[:2], *size
    mirrored = np.flatnonzero(flip)
    padded = _padded(images, mirrored, padding, mode)
    full_height, full_width = padded.shape[2:]
    plane = full_height * full_width
    source, column = np.arange(count), left.copy()
    source[mirrored] = np.arange(count, count + len(mirrored))
    column[mirrored] = full_width - width - left[mirrored]
    first = source * (channels * plane) + top * full_width + column
    below = np.arange(channels)[:, None] * plane + np.arange(height) * full_width
    rows = torch.from_numpy(np.add.outer(first, below.ravel()).ravel()).to(images.device)
    runs = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    return runs.index_select(0, rows).view(count, channels, height, width)


def _padded(images: Tensor, mirrored: Ints, padding: tuple[int, int], mode: Padding) -> Tensor:
    """The padded images, followed by the `mirrored` ones among them, mirrored."""
    count, channels, height, width = images.shape
    rows, columns = padding
    shape = (count + len(mirrored), channels, height + 2 * rows, width + 2 * columns)
    padded = images.new_zeros(shape)
    inner = padded[:, :, rows : rows + height, columns : columns + width]
    inner[:count] = images
    inner[count:] = images.index_select(0, torch.from_numpy(mirrored).to(images.device)).flip(-1)
    if mode == "reflect":
        for axis, by in ((2, rows), (3, columns)):
            have = images.shape[axis]
            for edge in range(by):
                padded.select(axis, edge).copy_(padded.select(axis, 2 * by - edge))
                padded.select(axis, by + have + edge).copy_(padded.select(axis, by + have - 2 - edge))
    return padded


def center_crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The window of `size` in the middle; the image itself if it has that size.

    Args:
        images: (B, C, H, W).
        size: (height, width), at most (H, W).
    """
    top, left = ((have - want) // 2 for have, want in zip(images.shape[2:], size, strict=True))
    return images[:, :, top : top + size[0], left : left + size[1]]


def resize_boxes(images: Tensor, boxes: Real, flip: npt.NDArray[np.bool_], size: tuple[int, int]) -> Tensor:
    """Resample each image's box (top, left, height, width; in pixels, fractions allowed) to `size`, bilinearly.

    Args:
        images: uint8 (B, C, H, W).
        boxes: (B, 4).
        flip: (B,) whether to mirror each result left to right.
        size: (height, width) of the result.
    """
    extent = np.array(images.shape[2:], dtype=np.float64)
    scale = boxes[:, 2:] / extent
    shift = (2 * boxes[:, :2] + boxes[:, 2:]) / extent - 1
    theta = np.zeros((len(boxes), 2, 3), dtype=np.float32)  # affine_grid's coordinates: x first, edges at -1 and 1
    theta[:, 0, 0], theta[:, 0, 2] = np.where(flip, -scale[:, 1], scale[:, 1]), shift[:, 1]
    theta[:, 1, 1], theta[:, 1, 2] = scale[:, 0], shift[:, 0]
    shape = [len(boxes), images.shape[1], *size]
    grid = F.affine_grid(torch.from_numpy(theta).to(images.device), shape, align_corners=False)
    resampled = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return resampled.round_().clamp_(0, 255).to(torch.uint8)


def normalize(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`images * scale + shift` in float32; with scale = 1/(255 std) and shift = -mean/std, the usual normalizing.

    Args:
        images: uint8 (B, C, H, W).
        scale, shift: Per channel, (C, 1, 1), or one number for all.
    """
    return images.float().mul_(scale).add_(shift)


def cutout(images: Tensor, row: Ints, column: Ints, side: tuple[int, int], on: npt.NDArray[np.bool_]) -> Tensor:
    """Set a rectangle of `side` to zero, in place, in the images that are `on`; return the images.

    (row, column) is the center: the rectangle covers rows `row - side[0] // 2` and the `side[0] - 1` after it, and so
    for the columns; what lies outside the image is cut off (DeVries and Taylor, 2017, arXiv:1708.04552).

    Args:
        images: (B, C, H, W); changed in place.
        row, column: (B,) pixel at the center of each rectangle.
        side: (height, width) of the rectangles.
        on: (B,) which images get one.
    """
    height, width = images.shape[2:]
    line = np.arange(height) - (row - side[0] // 2)[:, None]
    hit = (line >= 0) & (line < side[0]) & on[:, None]
    choice = torch.from_numpy(np.where(hit, column[:, None], width).ravel()).to(images.device)
    keep = torch.from_numpy(_kept(width, side[1])).to(images.device, images.dtype)
    return images.mul_(keep.index_select(0, choice).view(-1, 1, height, width))


@lru_cache
def _kept(width: int, side: int) -> npt.NDArray[np.float32]:
    """One row per center column: 0 under the rectangle, 1 elsewhere; and a last row that keeps all."""
    offset = np.arange(width) - (np.arange(width + 1)[:, None] - side // 2)
    kept = (offset < 0) | (offset >= side)
    kept[width] = True
    return kept.astype(np.float32)
