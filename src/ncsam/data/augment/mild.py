"""The strong view of DISC's authors (Li et al., 2023, CVPR), which NCSAM's authors use for instance-dependent noise.

Two of sixteen operations in a row, each applied with probability 1/2 at a magnitude drawn from 1 to `most` - 1 of 10
(`most` is 5 for CIFAR-10 and 10 otherwise), then a gray square of 15 % of the side. The ranges are not RandAugment's:
up to magnitude 5, brightness, color, contrast and sharpness are only lowered, and shears and shifts are a third and a
ninth as far. Pixels are those of Pillow's operations, which they use: rotations turn about the center, shears leave the
upper left corner where it is, and rectangles include both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ncsam.data.augment import randaugment as full
from ncsam.data.augment.basic import Ints, Real
from ncsam.data.loading.sampling import Draws

_GRAY = 127
_SQUARE = 0.15  # of the side
_BLENDS = {f.__name__: f for f in (full.brightness, full.color, full.contrast, full.sharpness)}
_GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
#: The operations, all equally likely.
OPERATIONS = (
    *("autocontrast", "brightness", "color", "contrast", "cutout", "equalize", "invert", "posterize", "rotate"),
    *("sharpness", "shear_x", "shear_y", "solarize", "solarize_add", "translate_x", "translate_y"),
)
_STEPS = 2
_PER_STEP = 6

#: Uniform numbers for one image: for each step which operation, its magnitude, whether it is applied, its sign and the
#: place of a square (row, column); then the place of the last square.
DRAWS = _STEPS * _PER_STEP + 2


def mild(images: Tensor, draws: Draws, most: int) -> Tensor:
    """Two operations and a gray square.

    Args:
        images: uint8 (B, C, H, W); not changed.
        draws: Uniform numbers (B, 14), as `DRAWS` counts them.
        most: Magnitudes are below this one, in tenths; 2 to 10.
    """
    images = images.clone()
    u = draws.astype(np.float64)
    for step in range(_STEPS):
        which, level, applied, sign, row, column = u[:, step * _PER_STEP :][:, :_PER_STEP].T
        choice = np.where(applied < 0.5, (which * len(OPERATIONS)).astype(np.int64), -1)
        magnitude = 1 + (level * (most - 1)).astype(np.int64)
        signed = np.where(sign < 0.5, -magnitude, magnitude)
        for number in np.unique(choice[choice >= 0]):
            rows = np.flatnonzero(choice == number)
            index = torch.from_numpy(rows).to(images.device)
            place = np.stack((row[rows], column[rows]), axis=1)
            images[index] = operated(images[index], OPERATIONS[number], signed[rows], place)
    side = np.full(len(images), int(_SQUARE * images.shape[3]))
    return square(images, u[:, -2:], side)


def operated(images: Tensor, name: str, signed: Ints, place: Real) -> Tensor:
    """One operation on all images.

    Args:
        images: uint8 (B, C, H, W).
        name: One of `OPERATIONS`.
        signed: (B,) magnitudes, 1 to 9 of 10 with the sign of geometry and of "solarize_add"; others have none.
        place: (B, 2) uniform numbers, the place of the square of "cutout".
    """
    magnitude = np.abs(signed)
    if name in _BLENDS:
        return _BLENDS[name](images, full.blend_factor(0.18 * magnitude + 0.1))
    if name in _GEOMETRY:
        return full.affine(images, _maps(name, signed, images.shape))
    if name == "cutout":
        return square(images.clone(), place, (magnitude * min(images.shape[2:]) // 100).astype(np.int64))
    if name == "solarize_add":
        added = torch.from_numpy(11 * signed).to(images.device).view(-1, 1, 1, 1)
        images = (images.long() + added).clamp_(0, 255).to(torch.uint8)
        return torch.where(images >= 128, 255 - images, images)
    levels = {"posterize": 1 - magnitude * 4 // 10 / 4, "solarize": magnitude * 256 // 10 / 256}
    return _OTHERS[name](images, levels.get(name, np.zeros(len(images))))


_OTHERS: dict[str, Callable[[Tensor, Real], Tensor]] = {
    f.__name__: f for f in (full.autocontrast, full.equalize, full.invert, full.posterize, full.solarize)
}


def _maps(name: str, signed: Ints, shape: torch.Size) -> Real:
    """For each image the 2 x 3 map from a place (x, y) in the result to one in the source, from the center."""
    height, width = shape[2:]
    maps = np.tile(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), (len(signed), 1, 1))
    if name == "rotate":  # 3 degrees for each magnitude
        angle = signed * math.radians(3)
        maps[:, 0, 0] = maps[:, 1, 1] = np.cos(angle)
        maps[:, 0, 1], maps[:, 1, 0] = -np.sin(angle), np.sin(angle)
    elif name == "shear_x":  # from the upper edge, which is half the height above the center
        maps[:, 0, 1], maps[:, 0, 2] = 0.01 * signed, 0.01 * signed * height / 2
    elif name == "shear_y":
        maps[:, 1, 0], maps[:, 1, 2] = 0.01 * signed, 0.01 * signed * width / 2
    elif name == "translate_x":
        maps[:, 0, 2] = np.trunc(0.005 * signed * width)
    else:
        maps[:, 1, 2] = np.trunc(0.005 * signed * height)
    return maps


def square(images: Tensor, place: Real, side: Ints) -> Tensor:
    """Paint a gray square into each image, in place, from `side / 2` before the place drawn; return the images.

    As Pillow draws it, both ends included, it covers `side + 1` pixels; less at the margin.

    Args:
        images: uint8 (B, C, H, W); changed in place.
        place: (B, 2) uniform numbers (row, column).
        side: (B,) pixels.
    """
    height, width = images.shape[2:]
    first = np.maximum(place * (height, width) - side[:, None] / 2, 0).astype(np.int64)
    last = first + side[:, None]
    inside = [
        (np.arange(length) >= first[:, axis, None]) & (np.arange(length) <= last[:, axis, None])
        for axis, length in enumerate((height, width))
    ]
    hit = torch.from_numpy(inside[0][:, :, None] & inside[1][:, None, :]).to(images.device)
    return images.masked_fill_(hit[:, None], _GRAY)
