"""Dark, blurred, truncated and oddly sized images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ncsam.auditing.findings import CHECKS, Finding, finding

Floats = npt.NDArray[np.float64]
_SIDE = 512  # longest side at which blur is measured
_FILTER = 9  # pixels of the filter that blurs again, as published
_WEIGHTS = np.array([0.299, 0.587, 0.114])  # of red, green and blue (ITU-R BT.601)


class Measured(NamedTuple):
    """Measurements of an image, or why it cannot be decoded.

    Attributes:
        height: height of the file's image, in pixels.
        width: width of the file's image, in pixels.
        dark: score of `darkness`.
        blur: score of `blur_effect`.
        error: why it cannot be decoded; "" if it can.
    """

    height: int = 0
    width: int = 0
    dark: float = 0.0
    blur: float = 0.0
    error: str = ""


def luminance(pixels: npt.NDArray[np.uint8]) -> Floats:
    """Return the luminance of an image (ITU-R BT.601).

    Args:
        pixels: uint8 (H, W), (H, W, 1) or (H, W, 3).

    Returns:
        Luminance (H, W) in [0, 1].
    """
    given = np.asarray(pixels, dtype=np.float64) / 255
    if given.ndim == 3:
        given = given[..., 0] if given.shape[-1] == 1 else given[..., :3] @ _WEIGHTS
    return given


def darkness(gray: Floats) -> float:
    """Return 1 - 95th percentile of luminance: 1 for black images, 0 if a twentieth of the image is white.

    Args:
        gray: luminance (H, W) in [0, 1].
    """
    return float(1 - np.quantile(gray, 0.95))


def blur_effect(gray: Floats) -> float:
    """Return how little an image changes when it is blurred again: 0 for sharp images, near 1 for blurred ones.

    Differences between neighboring pixels are summed before and after a mean filter, along rows and along columns. The
    score is the share that remains, in the direction in which more remains.

    Args:
        gray: luminance (H, W) in [0, 1].

    Returns:
        The score; 0 if it cannot be determined: for images of one color, or smaller than 18 pixels on a side.

    References:
        Crete, Dolmiere, Ladret and Nicolas 2007, The blur effect: perception and estimation with a new no-reference
        perceptual blur metric.
    """
    if min(gray.shape) < 2 * _FILTER:
        return 0.0
    return max(_blur_along(gray), _blur_along(gray.T))


def _blur_along(gray: Floats) -> float:
    sums = np.cumsum(np.pad(gray, ((_FILTER, 0), (0, 0))), axis=0)
    sums[:_FILTER] = 0
    smooth = (sums[_FILTER:] - sums[:-_FILTER])[_FILTER - 1 :] / _FILTER
    middle = gray[_FILTER // 2 : _FILTER // 2 + len(smooth)]
    before, after = np.abs(np.diff(middle, axis=0)), np.abs(np.diff(smooth, axis=0))
    total = before.sum()
    return float(1 - np.maximum(0, before - after).sum() / total) if total > 1e-9 else 0.0


def measure(pixels: npt.NDArray[np.uint8], size: tuple[int, int] | None = None) -> Measured:
    """Measure a decoded image.

    Args:
        pixels: uint8 (H, W), (H, W, 1) or (H, W, 3).
        size: (height, width) of the file's image, if `pixels` is a reduced version. `None`: the shape of `pixels`.
    """
    gray = luminance(pixels)
    height, width = size or gray.shape
    step = max(1, -(-max(gray.shape) // _SIDE))
    trimmed = gray[: gray.shape[0] // step * step, : gray.shape[1] // step * step]
    small = trimmed.reshape(trimmed.shape[0] // step, step, trimmed.shape[1] // step, step).mean(axis=(1, 3))
    return Measured(height, width, darkness(gray), blur_effect(small))


def size_ratios(sizes: npt.ArrayLike) -> Floats:
    """Return the factor by which side length or aspect ratio differs from the median.

    Args:
        sizes: (height, width) of each image, in pixels.

    Returns:
        The larger of the two factors, at least 1, per image.

    Examples:
        >>> size_ratios([[10, 10], [10, 10], [10, 160]]).tolist()
        [1.0, 1.0, 16.0]
    """
    given = np.log2(np.maximum(np.asarray(sizes, dtype=np.float64), 1))
    if not len(given):
        return np.zeros(0)
    found = np.stack([given.mean(axis=1), given[:, 1] - given[:, 0]])  # log of side length, of aspect ratio
    return np.asarray(2 ** np.abs(found - np.median(found, axis=1, keepdims=True)).max(axis=0))


def find_images(measured: Iterable[Measured]) -> list[Finding]:
    """Find dark, blurred, truncated and oddly sized images.

    Args:
        measured: measurements of the training images, in order.

    Returns:
        A finding per image and check, largest score first.
    """
    every = list(measured)
    readable = [i for i, each in enumerate(every) if not each.error]
    ratios = np.ones(len(every))
    ratios[readable] = size_ratios([(every[i].height, every[i].width) for i in readable])
    found = []
    for i, each in enumerate(every):
        scores = {
            "truncated_image": (float(bool(each.error)), each.error),
            "dark_image": (each.dark, f"95 % of pixels have a luminance below {1 - each.dark:.2f}"),
            "blurred_image": (each.blur, f"blur effect {each.blur:.2f}"),
            "odd_size": (ratios[i], f"{each.width} x {each.height} pixels"),
        }
        for check, (score, evidence) in scores.items():
            if score >= CHECKS[check].threshold:
                found.append(finding(check, score, split="train", index=i, evidence=evidence))
    return sorted(found, key=lambda each: -each.score)
