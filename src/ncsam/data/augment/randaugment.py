"""RandAugment for whole batches of uint8 images (Cubuk et al., 2020, arXiv:1909.13719), in torch alone.

Each image gets n operations in a row, each drawn uniformly from the same list, all of one magnitude. In every step
the images are grouped by their operation, and a group is treated at once. Where this departs from the paper:

- `magnitude` runs from 0 to 30, the strongest. On a scale whose strongest is 10, multiply by 3.
- Signed operations (the five geometric ones and the four blends) draw their sign for each image.
- Geometry takes the nearest pixel and fills with black. All five kinds share one pass.
- `color` leaves images alone that do not have three channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ncsam.data.augment.basic import Ints, Real
from ncsam.data.loading.sampling import Draws

_GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")

# At the largest magnitude: degrees, shear, share of the side, and the blends' distance from 1.
_DEGREES, _SHEAR, _SHIFT, _BLEND = 30.0, 0.3, 150 / 331, 0.9


def randaugment(images: Tensor, draws: Draws, magnitude: float, choices: tuple[str, ...]) -> Tensor:
    """Apply one operation per step to every image.

    Args:
        images: uint8 (B, C, H, W).
        draws: (B, steps, 2). The first number of a step chooses the operation; the second u its sign, by u < 1/2.
        magnitude: 0 to 30.
        choices: Names of operations.
    """
    level = magnitude / 30
    for step in range(draws.shape[1]):
        choice = (draws[:, step, 0].astype(np.float64) * len(choices)).astype(np.int64)
        signed = np.where(draws[:, step, 1] < 0.5, -level, level)
        images = operated(images, choice, signed, choices)
    return images


def operated(images: Tensor, choice: Ints, signed: Real, choices: tuple[str, ...]) -> Tensor:
    """One operation on each image: `choice` numbers it among `choices`, `signed` in [-1, 1] is its level.

    Args:
        images: uint8 (B, C, H, W).
        choice: (B,) positions in `choices`.
        signed: (B,) levels; 1 is the largest magnitude.
        choices: Names of operations.
    """
    groups = {choices[number]: np.flatnonzero(choice == number) for number in np.unique(choice)}
    moved = {name: groups.pop(name) for name in _GEOMETRY if name in groups}
    done: list[tuple[Ints, Tensor]] = []
    if moved:
        rows = np.concatenate(list(moved.values()))
        maps = np.concatenate([_maps(name, signed[group], images.shape) for name, group in moved.items()])
        done.append((rows, affine(_some(images, rows), maps)))
    for name, group in groups.items():
        done.append((group, _OPERATIONS[name](_some(images, group), signed[group])))
    back = np.argsort(np.concatenate([rows for rows, _ in done]))
    return _some(torch.cat([part for _, part in done]), back)


def _some(images: Tensor, rows: Ints) -> Tensor:
    return images.index_select(0, torch.from_numpy(rows).to(images.device))


# --- geometry


def _maps(name: str, signed: Real, shape: torch.Size) -> Real:
    """For each image the 2 x 3 map from a place (x, y) in the result to one in the source, from the center."""
    height, width = shape[2:]
    maps = np.tile(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), (len(signed), 1, 1))
    if name == "rotate":
        angle = signed * math.radians(_DEGREES)
        maps[:, 0, 0] = maps[:, 1, 1] = np.cos(angle)
        maps[:, 0, 1], maps[:, 1, 0] = np.sin(angle), -np.sin(angle)
    elif name == "shear_x":
        maps[:, 0, 1] = signed * _SHEAR
    elif name == "shear_y":
        maps[:, 1, 0] = signed * _SHEAR
    elif name == "translate_x":
        maps[:, 0, 2] = np.round(signed * _SHIFT * width)
    else:
        maps[:, 1, 2] = np.round(signed * _SHIFT * height)
    return maps


def affine(images: Tensor, maps: Real) -> Tensor:
    """Fetch every pixel from the nearest place its map names, from the image's center; black outside.

    Args:
        images: uint8 (B, C, H, W).
        maps: (B, 2, 3), from a place (x, y, 1) in the result to one in the source, in pixels from the center.
    """
    count, channels, height, width = images.shape
    device = images.device
    x = torch.arange(width, device=device, dtype=torch.float32) - (width - 1) / 2
    y = (torch.arange(height, device=device, dtype=torch.float32) - (height - 1) / 2)[:, None]
    m = torch.from_numpy(maps.astype(np.float32)).to(device)[..., None, None]
    column = (m[:, 0, 0] * x + m[:, 0, 1] * y + (m[:, 0, 2] + (width - 1) / 2)).round_().long()
    row = (m[:, 1, 0] * x + m[:, 1, 1] * y + (m[:, 1, 2] + (height - 1) / 2)).round_().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row * width + column).masked_fill_(~inside, 0).view(count, 1, -1).expand(-1, channels, -1)
    fetched = images.view(count, channels, -1).gather(2, source).view_as(images)
    return fetched.mul_(inside[:, None])


# --- color


def _blend(other: Tensor, images: Tensor, signed: Real) -> Tensor:
    """`other + factor * (images - other)`, cut to 0..255, with factor 1 + 0.9 * signed level."""
    factor = torch.from_numpy((1 + _BLEND * signed).astype(np.float32)).to(images.device).view(-1, 1, 1, 1)
    return torch.lerp(other.float(), images.float(), factor).clamp_(0, 255).to(torch.uint8)


def blend_factor(factor: Real) -> Real:
    """The signed level whose blend has this factor.

    Args:
        factor: 1 keeps the image, 0 replaces it by what it is blended with, above 1 moves away from that.
    """
    return (factor - 1) / _BLEND


def gray(images: Tensor) -> Tensor:
    """Luma of ITU-R 601, rounded; an image without three channels is its own.

    Args:
        images: uint8 (B, C, H, W).

    Returns:
        uint8 (B, 1, H, W), or the images themselves unless C is 3.
    """
    if images.shape[1] != 3:
        return images
    weights = torch.tensor([19595, 38470, 7471], device=images.device, dtype=torch.int32).view(3, 1, 1)
    luma: Tensor = (images.int() * weights).sum(1, keepdim=True)
    return (luma + 0x8000 >> 16).to(torch.uint8)


def brightness(images: Tensor, signed: Real) -> Tensor:
    """Blend with black.

    Args:
        images: uint8 (B, C, H, W).
        signed: (B,) levels in [-1, 1]; negative ones darken.
    """
    return _blend(torch.zeros_like(images), images, signed)


def color(images: Tensor, signed: Real) -> Tensor:
    """Blend with the gray image.

    Args:
        images: uint8 (B, C, H, W); returned as they are unless C is 3.
        signed: (B,) levels in [-1, 1]; negative ones lower the saturation.
    """
    return _blend(gray(images), images, signed)


def contrast(images: Tensor, signed: Real) -> Tensor:
    """Blend with the mean gray value of each image.

    Args:
        images: uint8 (B, C, H, W).
        signed: (B,) levels in [-1, 1]; negative ones lower the contrast.
    """
    return _blend(gray(images).float().mean((1, 2, 3), keepdim=True).add_(0.5).floor_(), images, signed)


def sharpness(images: Tensor, signed: Real) -> Tensor:
    """Blend with the image smoothed by (1 1 1; 1 5 1; 1 1 1) / 13; the border stays as it is.

    Args:
        images: uint8 (B, C, H, W).
        signed: (B,) levels in [-1, 1]; negative ones blur.
    """
    smooth = images.float()
    if min(images.shape[2:]) >= 3:
        three = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
        nine = three[..., :-2] + three[..., 1:-1] + three[..., 2:]
        inner = smooth[:, :, 1:-1, 1:-1]
        inner.copy_(nine.add_(inner, alpha=4).div_(13).add_(0.5).floor_())
    return _blend(smooth, images, signed)


def posterize(images: Tensor, signed: Real) -> Tensor:
    """Keep the upper 8 bits, at the largest magnitude only 4.

    Args:
        images: uint8 (B, C, H, W).
        signed: (B,) levels in [-1, 1]; the sign does not matter.
    """
    masks = (0xFF << np.round(4 * np.abs(signed)).astype(np.int64)) & 0xFF
    return images & torch.from_numpy(masks.astype(np.uint8)).to(images.device).view(-1, 1, 1, 1)


def solarize(images: Tensor, signed: Real) -> Tensor:
    """Invert what is at or above a threshold, 256 at magnitude zero (nothing) and 0 at the largest (everything).

    Args:
        images: uint8 (B, C, H, W).
        signed: (B,) levels in [-1, 1]; the sign does not matter.
    """
    threshold = torch.from_numpy((256 * (1 - np.abs(signed))).astype(np.float32)).to(images.device)
    return torch.where(images >= threshold.view(-1, 1, 1, 1), 255 - images, images)


def autocontrast(images: Tensor, signed: Real) -> Tensor:
    """Stretch each channel so that its darkest value becomes 0 and its brightest 255.

    Args:
        images: uint8 (B, C, H, W).
        signed: Not used: the operation has no magnitude.
    """
    low = images.amin((2, 3), keepdim=True).int()
    span = images.amax((2, 3), keepdim=True).int() - low
    stretched = (images - low) * 255 // span.clamp(min=1)
    return torch.where(span > 0, stretched, images.int()).to(torch.uint8)


def equalize(images: Tensor, signed: Real) -> Tensor:
    """Spread each channel's histogram evenly: value v becomes (step // 2 + pixels below v) // step, with
    step = (pixels - pixels of the brightest value) // 255; a channel with step 0 stays.

    Args:
        images: uint8 (B, C, H, W).
        signed: Not used: the operation has no magnitude.
    """
    count, channels, height, width = images.shape
    flat = images.view(count * channels, -1).long()
    histogram = torch.zeros(len(flat), 256, dtype=torch.int64, device=images.device)
    histogram.scatter_add_(1, flat, torch.ones_like(flat))
    brightest = histogram.gather(1, flat.amax(1, keepdim=True))
    step = (height * width - brightest) // 255
    below = histogram.cumsum(1) - histogram
    table = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, table.gather(1, flat), flat).to(torch.uint8).view_as(images)


def invert(images: Tensor, signed: Real) -> Tensor:
    """Replace every value v by 255 - v.

    Args:
        images: uint8 (B, C, H, W).
        signed: Not used: the operation has no magnitude.
    """
    return 255 - images


def identity(images: Tensor, signed: Real) -> Tensor:
    """Leave the images as they are.

    Args:
        images: uint8 (B, C, H, W).
        signed: Not used: the operation has no magnitude.
    """
    return images


_OPERATIONS: dict[str, Callable[[Tensor, Real], Tensor]] = {
    operation.__name__: operation
    for operation in (
        identity,
        autocontrast,
        equalize,
        solarize,
        posterize,
        color,
        contrast,
        brightness,
        sharpness,
        invert,  # not of RandAugment
    )
}

#: Operations of RandAugment that leave every pixel in its place.
COLOR_OPERATIONS: tuple[str, ...] = tuple(name for name in _OPERATIONS if name != "invert")
#: All fourteen operations of RandAugment.
OPERATIONS: tuple[str, ...] = (*COLOR_OPERATIONS, *_GEOMETRY)
