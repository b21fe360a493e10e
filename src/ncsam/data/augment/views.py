"""Views: named recipes that turn a stored image into what the network sees, given uniform random numbers.

A `View` holds no state. The loader draws one row of uniform numbers per image and view; the recipe turns them into
windows, mirrorings, operations and rectangles. The same row gives the same image, on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ncsam._arguments import LARGEST, count, flag, number
from ncsam._errors import bad_value, known_name, unknown_name
from ncsam.data.augment import autoaugment as policy
from ncsam.data.augment import color_jitter as jitter
from ncsam.data.augment import mild as gentle
from ncsam.data.augment.basic import Ints, Padding, Real, center_crop, crop_windows, cutout, normalize, resize_boxes
from ncsam.data.augment.randaugment import OPERATIONS, randaugment
from ncsam.data.loading.sampling import Draws

Crop = Literal["center", "window", "resized"]

# Columns of a row of uniform numbers. The operations of a strong view follow, two numbers each, then those of the
# policy and of the colors.
CROP = slice(0, 4)
_FLIP = 4
_CUTOUT = slice(5, 8)
_OPERATIONS = 8
_LONGEST = 100_000  # pixels
_MOST_OPERATIONS = 1000


def _is_length(length: float) -> bool:
    return 0 <= length <= _LONGEST if isinstance(length, Integral) else 0 <= length < 1


@dataclass(frozen=True)
class View:
    """A recipe: crop, mirror, random operations, colors, normalize, Cutout, in this order. The default does nothing.

    Lengths are pixels if they are whole numbers and shares of the image's side if they are fractions, so that one
    recipe serves 32 and 224 pixels alike.

    Attributes:
        crop: `"center"`; `"window"`, a random window of the model's input size, after padding; or `"resized"`, a random
            part of the image, resampled.
        padding: On every side before a window is cut. `None`: 1/8 of the side where the image is no larger than the
            window (4 for 32), none where it is.
        padding_mode: `"zeros"` (black) or `"reflect"`.
        scale: Smallest and largest area of a resized crop, as shares of the image's, in (0, 1].
        ratio: Smallest and largest width / height of a resized crop.
        flip: Probability of mirroring left to right.
        operations: Number of RandAugment operations applied in a row.
        magnitude: Of the operations, 0 to 30.
        choices: Names of the operations to draw from.
        mild: Apply the operations of DISC's and NCSAM's authors (`ncsam.data.augment.mild`), with magnitudes below this
            one of 10; 0 for none.
        policy: Whether to apply AutoAugment's 25 pairs of operations for CIFAR-10 (`ncsam.data.augment.autoaugment`).
        jitter: Strength of SimCLR's color distortions, in [0, 1] (`ncsam.data.augment.color_jitter`).
        jitter_probability: With which they are applied.
        gray: Probability of losing all color.
        cutout: Side of a square set to zero after normalizing.
        cutout_probability: With which Cutout is applied.
    """

    crop: Crop = "center"
    padding: int | float | None = None
    padding_mode: Padding = "zeros"
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    operations: int = 0
    magnitude: float = 10.0
    choices: tuple[str, ...] = OPERATIONS
    mild: int = 0
    policy: bool = False
    jitter: float = 0.0
    jitter_probability: float = 0.8
    gray: float = 0.0
    cutout: int | float = 0
    cutout_probability: float = 1.0

    def __post_init__(self) -> None:
        known_name("crop", self.crop, get_args(Crop))
        known_name("padding_mode", self.padding_mode, get_args(Padding))
        flag("policy", self.policy)
        for name in ("flip", "cutout_probability", "jitter_probability", "gray"):
            number(name, getattr(self, name), "a probability in [0, 1]", lambda share: 0 <= share <= 1)
        for name in ("padding", "cutout"):
            length = getattr(self, name)
            if length is not None or name == "cutout":
                number(name, length, "a whole number of pixels from 0, or a share of the side in [0, 1)", _is_length)
        for name, most, allowed in (
            ("scale", 1.0, "two shares of the area, 0 < smallest <= largest <= 1"),
            ("ratio", LARGEST, "two width/height ratios, 0 < smallest <= largest"),
        ):
            ends = getattr(self, name)
            if not isinstance(ends, tuple | list) or len(ends) != 2:
                raise bad_value(name, ends, allowed)
            least, largest = (number(name, end, allowed) for end in ends)
            if not 0 < least <= largest <= most:
                raise bad_value(name, ends, allowed)
        count("operations", self.operations, most=_MOST_OPERATIONS)
        number("mild", self.mild, "0, or a whole number from 2 to 10", lambda most: most in (0, *range(2, 11)))
        number("magnitude", self.magnitude, "a magnitude in [0, 30]", lambda size: 0 <= size <= 30)
        number("jitter", self.jitter, "a strength in [0, 1]", lambda strength: 0 <= strength <= 1)
        if not isinstance(self.choices, tuple | list) or not self.choices:
            raise bad_value("choices", self.choices, f"at least one of {', '.join(OPERATIONS)}")
        for choice in self.choices:
            known_name("operation", choice, OPERATIONS)

    @property
    def draws(self) -> int:
        """How many uniform numbers one image needs."""
        return int(self._colors.stop)

    @property
    def _mild(self) -> slice:
        start = _OPERATIONS + 2 * self.operations
        return slice(start, start + gentle.DRAWS * (self.mild > 0))

    @property
    def _policy(self) -> slice:
        start = self._mild.stop
        return slice(start, start + policy.DRAWS * self.policy)

    @property
    def _colors(self) -> slice:
        start = self._policy.stop
        return slice(start, start + jitter.DRAWS * (self.jitter > 0 or self.gray > 0))

    def pad_by(self, canvas: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of padding for an image of size `canvas` and windows of `size`.

        Args:
            canvas: (height, width) of the stored image.
            size: (height, width) of the windows.

        Raises:
            UsageError: The image is too small to be reflected that far.
        """
        if self.crop != "window":
            return 0, 0
        if self.padding is None:
            padding = (0, 0) if canvas[0] > size[0] or canvas[1] > size[1] else lengths(1 / 8, size)
        else:
            padding = lengths(self.padding, size)
        if self.padding_mode == "reflect" and (padding[0] >= canvas[0] or padding[1] >= canvas[1]):
            raise bad_value("padding", self.padding, f"less than the image, which is {canvas}, for a reflection")
        return padding

    def boxes(self, draws: Draws, canvas: tuple[int, int]) -> Real:
        """A box (top, left, height, width) per row: area uniform in `scale`, log of the ratio uniform, place uniform.

        A side that would be longer than the image is cut to the image's (others draw again in that case).

        Args:
            draws: Uniform numbers (B, 4): area, ratio, top, left.
            canvas: (height, width) of the image.
        """
        u = draws.astype(np.float64)
        area = (self.scale[0] + (self.scale[1] - self.scale[0]) * u[:, 0]) * canvas[0] * canvas[1]
        low, high = map(math.log, self.ratio)
        ratio = np.exp(low + (high - low) * u[:, 1])
        sides = np.stack((np.sqrt(area / ratio), np.sqrt(area * ratio)), axis=1)
        sides = np.minimum(sides, canvas)
        corner = u[:, 2:4] * (np.array(canvas) - sides)
        return np.concatenate((corner, sides), axis=1)

    def cropped(self, images: Tensor, draws: Draws, size: tuple[int, int]) -> Tensor:
        """Crop and mirror stored uint8 images.

        Args:
            images: uint8 (B, C, H, W).
            draws: Uniform numbers (B, `self.draws`).
            size: (height, width) of the result.
        """
        canvas = (images.shape[2], images.shape[3])
        if self.crop == "resized":
            return resize_boxes(images, self.boxes(draws[:, CROP], canvas), self._flips(draws), size)
        if self.crop == "center":
            return self.mirrored(center_crop(images, size), draws)
        padding = self.pad_by(canvas, size)
        top, left = corners(draws, (canvas[0] + 2 * padding[0], canvas[1] + 2 * padding[1]), size)
        return crop_windows(images, top, left, self._flips(draws), size, padding=padding, mode=self.padding_mode)

    def mirrored(self, images: Tensor, draws: Draws) -> Tensor:
        """Mirror images that are cropped already.

        Args:
            images: uint8 (B, C, height, width).
            draws: Uniform numbers (B, `self.draws`).
        """
        if not self.flip:
            return images
        zero = np.zeros(len(draws), dtype=np.int64)
        size = (images.shape[2], images.shape[3])
        return crop_windows(images, zero, zero, self._flips(draws), size)

    def finished(self, images: Tensor, draws: Draws, scale: Tensor, shift: Tensor) -> Tensor:
        """Random operations, normalizing and Cutout; float32.

        Args:
            images: uint8 (B, C, height, width), cropped and mirrored.
            draws: Uniform numbers (B, `self.draws`).
            scale, shift: As in `ncsam.data.augment.basic.normalize`.
        """
        if self.operations:
            steps = draws[:, _OPERATIONS : self._mild.start].reshape(len(draws), self.operations, 2)
            images = randaugment(images, steps, self.magnitude, self.choices)
        if self.mild:
            images = gentle.mild(images, draws[:, self._mild], self.mild)
        if self.policy:
            images = policy.autoaugment(images, draws[:, self._policy])
        if self.jitter > 0 or self.gray > 0:
            colors = draws[:, self._colors]
            images = jitter.jitter(images, colors, self.jitter, self.jitter_probability, self.gray)
        result = normalize(images, scale, shift)
        height, width = result.shape[2:]
        side = lengths(self.cutout, (height, width))
        if self.cutout_probability and side[0] and side[1]:
            chance, row, column = draws[:, _CUTOUT].T
            on = chance < self.cutout_probability
            cutout(result, to_int(row, height), to_int(column, width), side, on)
        return result

    def _flips(self, draws: Draws) -> npt.NDArray[np.bool_]:
        flips: npt.NDArray[np.bool_] = draws[:, _FLIP] < self.flip
        return flips


def corners(draws: Draws, padded: tuple[int, int], size: tuple[int, int]) -> tuple[Ints, Ints]:
    """Top and left of a window of `size` per row, uniform over all places where it fits into the padded image.

    Args:
        draws: Uniform numbers; the first two of each row are used.
        padded: (height, width) of the padded image.
        size: (height, width) of the window.
    """
    return to_int(draws[:, 0], padded[0] - size[0] + 1), to_int(draws[:, 1], padded[1] - size[1] + 1)


def lengths(length: int | float, size: tuple[int, int]) -> tuple[int, int]:
    """A length along both sides: pixels as they are, a share of the side rounded to pixels.

    Args:
        length: Pixels if it is an int, a share of the side if it is a float.
        size: (height, width).
    """
    if isinstance(length, int):
        return length, length
    return round(length * size[0]), round(length * size[1])


def to_int(uniform: npt.NDArray[np.float32], count: int) -> Ints:
    """Whole numbers 0 to count - 1 from uniform ones in [0, 1).

    Args:
        uniform: Numbers in [0, 1).
        count: How many different results there are.
    """
    return (uniform.astype(np.float64) * count).astype(np.int64)


#: Views by name:
#: - `shifted` is for images that mirrored would mean something else; `weak` is the common crop and mirroring;
#: - `weak_cutout` adds Cutout of half the side to half of the images;
#: - `strong` adds two random operations and Cutout, `light` one of magnitude 3;
#: - `ncsam` is the strong view of NCSAM's authors for instance-dependent noise, with their magnitudes for CIFAR-10, and
#:   `ncsam_stronger` with those for CIFAR-100;
#: - `autoaugment` adds AutoAugment's policy; `resized` is the usual one for large photographs;
#: - `simclr` is that of contrastive learning, a part of the image in distorted colors.
VIEWS: dict[str, View] = {
    "plain": View(),
    "shifted": View(crop="window"),
    "weak": View(crop="window", flip=0.5),
    "weak_cutout": View(crop="window", flip=0.5, cutout=1 / 2, cutout_probability=0.5),
    "strong": View(crop="window", flip=0.5, operations=2, cutout=1 / 2),
    "light": View(crop="window", flip=0.5, operations=1, magnitude=3.0, cutout=1 / 2),
    "ncsam": View(crop="window", padding_mode="reflect", flip=0.5, mild=5),
    "ncsam_stronger": View(crop="window", padding_mode="reflect", flip=0.5, mild=10),
    "autoaugment": View(crop="window", flip=0.5, policy=True),
    "resized": View(crop="resized", flip=0.5),
    "simclr": View(crop="resized", scale=(0.2, 1.0), flip=0.5, jitter=0.5, gray=0.2),
}


def resolve_views(views: str | View | Sequence[str | View]) -> tuple[View, ...]:
    """Views from names, recipes, or a mixture; a single one may stand alone.

    Args:
        views: Names from `VIEWS`, or recipes.

    Raises:
        UsageError: There is no view, or a name is not known.
    """
    several = [views] if isinstance(views, str | View) else list(views)
    if not several:
        raise bad_value("views", views, f"at least one view: a View, or one of {', '.join(VIEWS)}")
    for view in several:
        if not isinstance(view, View) and view not in VIEWS:
            raise unknown_name("view", view, VIEWS)
    return tuple(view if isinstance(view, View) else VIEWS[view] for view in several)
