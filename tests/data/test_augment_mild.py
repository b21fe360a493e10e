"""The strong view of DISC's and NCSAM's authors, operation by operation against Pillow's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from ncsam.data.augment import mild as views
from ncsam.data.augment.views import VIEWS, View

SIZE = 32
PLACE = (0.3, 0.98)  # of the square: row, column


def images() -> np.ndarray[Any, Any]:
    """Smooth, narrow, of few values, noise: (4, 3, 32, 32)."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:SIZE, 0:SIZE]
    planes = [
        np.stack([4 * y + 3 * x, 255 - 7 * y, 6 * x]),
        rng.integers(90, 140, (3, SIZE, SIZE)),
        rng.integers(0, 3, (3, SIZE, SIZE)) * 100,
        rng.integers(0, 256, (3, SIZE, SIZE)),
    ]
    return np.stack(planes).astype(np.uint8)


def sheared(image: Image.Image, *coefficients: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, coefficients)


def cut(image: Image.Image, side: int) -> Image.Image:
    row, column = (max(0, int(p * SIZE - side / 2)) for p in PLACE)
    ImageDraw.Draw(image).rectangle((column, row, column + side, row + side), (127, 127, 127))
    return image


def solarized_sum(image: Image.Image, added: int) -> Image.Image:
    total = (np.asarray(image).astype(int) + added).clip(0, 255).astype(np.uint8)
    return ImageOps.solarize(Image.fromarray(total), 128)


#: Each operation at magnitude m = 1..9 of 10 with sign s.
PILLOW = {
    "autocontrast": lambda p, m, s: ImageOps.autocontrast(p),
    "brightness": lambda p, m, s: ImageEnhance.Brightness(p).enhance(0.1 + 0.18 * m),
    "color": lambda p, m, s: ImageEnhance.Color(p).enhance(0.1 + 0.18 * m),
    "contrast": lambda p, m, s: ImageEnhance.Contrast(p).enhance(0.1 + 0.18 * m),
    "cutout": lambda p, m, s: cut(p, int(0.01 * m * SIZE)),
    "equalize": lambda p, m, s: ImageOps.equalize(p),
    "invert": lambda p, m, s: ImageOps.invert(p),
    "posterize": lambda p, m, s: ImageOps.posterize(p, 4 + int(0.4 * m)),
    "rotate": lambda p, m, s: p.rotate(s * 3 * m),
    "sharpness": lambda p, m, s: ImageEnhance.Sharpness(p).enhance(0.1 + 0.18 * m),
    "shear_x": lambda p, m, s: sheared(p, 1, s * 0.01 * m, 0, 0, 1, 0),
    "shear_y": lambda p, m, s: sheared(p, 1, 0, 0, s * 0.01 * m, 1, 0),
    "solarize": lambda p, m, s: ImageOps.solarize(p, 256 - int(25.6 * m)),
    "solarize_add": lambda p, m, s: solarized_sum(p, s * 11 * m),
    "translate_x": lambda p, m, s: sheared(p, 1, 0, int(s * 0.005 * m * SIZE), 0, 1, 0),
    "translate_y": lambda p, m, s: sheared(p, 1, 0, 0, 0, 1, int(s * 0.005 * m * SIZE)),
}


@pytest.mark.parametrize("name", views.OPERATIONS)
def test_operations_agree_with_pillow(name: str) -> None:
    source = images()
    geometry = name.startswith(("rotate", "shear", "translate"))
    changed = False
    for magnitude in range(1, 10):
        for sign in (-1, 1):
            signed = np.full(len(source), sign * magnitude)
            place = np.tile(PLACE, (len(source), 1))
            found = views.operated(torch.from_numpy(source.copy()), name, signed, place).numpy()
            for image, result in zip(source, found, strict=True):
                pillow = PILLOW[name](Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))), magnitude, sign)
                wrong = np.abs(np.asarray(pillow).transpose(2, 0, 1).astype(int) - result.astype(int)) > 1
                # a source exactly between two pixels is rounded to either
                assert wrong.any(axis=0).mean() <= (0.02 if geometry else 0)
                changed |= bool((result != image).any())
    assert changed


def test_every_operation_is_drawn_and_half_of_them_are_applied() -> None:
    rng = np.random.default_rng(0)
    source = torch.from_numpy(np.repeat(images()[3:], 4000, axis=0))
    draws = rng.random((4000, views.DRAWS), dtype=np.float32)
    draws[:, [2]] = 0.9  # not applied
    found = views.mild(source, draws, 5)
    assert found.dtype == torch.uint8
    same = ((found == source) | (found == 127)).flatten(1).all(1)
    # untouched but for gray: half, and shifts below a pixel, small squares, and the contrast of noise, which is full
    assert same.float().mean().item() == pytest.approx(0.5 + 0.5 * 4 / 16, abs=0.03)
    draws[:, [2, 8]] = 0.9
    squares = (views.mild(source, draws, 5) != source).any(1).flatten(1).sum(1)
    assert int(squares.max()) <= 25  # 15 % of 32 is 4, and both ends count
    assert squares.float().mean().item() > 20
    assert torch.equal(source, torch.from_numpy(np.repeat(images()[3:], 4000, axis=0)))


@pytest.mark.parametrize("most", [2, 5, 10])
def test_magnitudes_are_drawn_below_the_largest(most: int) -> None:
    source = torch.full((2000, 1, 8, 8), 100, dtype=torch.uint8)
    draws = np.random.default_rng(1).random((2000, views.DRAWS), dtype=np.float32)
    draws[:, 0], draws[:, 2], draws[:, 8] = 1.5 / 16, 0.0, 0.9  # brightness, applied; then nothing
    draws[:, -2:] = 0.0  # the square is in the other corner
    corner = views.mild(source, draws, most)[:, 0, 7, 7]
    assert sorted(set(corner.tolist())) == pytest.approx([10 + 18 * m for m in range(1, most)], abs=1)


def test_signs_are_drawn() -> None:
    source = torch.full((2000, 1, 8, 8), 100, dtype=torch.uint8)
    draws = np.random.default_rng(1).random((2000, views.DRAWS), dtype=np.float32)
    draws[:, 0], draws[:, 2], draws[:, 8] = (views.OPERATIONS.index("solarize_add") + 0.5) / 16, 0.0, 0.9
    draws[:, -2:] = 0.0
    found = views.mild(source, draws, 2)[:, 0]
    assert (found[:, 0, 0] == 127).all()  # the square, where the last two draws put it
    corner = found[:, 7, 7]  # 100 - 11 or 100 + 11
    assert set(corner.tolist()) == {89, 111}
    assert (corner == 89).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_the_views_of_the_authors() -> None:
    for name, most in (("ncsam", 5), ("ncsam_stronger", 10)):
        assert VIEWS[name] == View(crop="window", padding_mode="reflect", flip=0.5, mild=most)
    for wrong in (1, 11, 2.5, True, "5"):
        with pytest.raises(ValueError, match=r"mild=.*expected 0, or a whole number from 2 to 10"):
            View(mild=wrong)


def test_a_batch_equals_its_images_one_by_one() -> None:
    source = torch.from_numpy(np.repeat(images(), 10, axis=0))
    view = VIEWS["ncsam_stronger"]
    draws = np.random.default_rng(2).random((40, view.draws), dtype=np.float32)
    scale, shift = torch.ones(3, 1, 1), torch.zeros(3, 1, 1)
    together = view.finished(source, draws, scale, shift)
    alone = [view.finished(source[i : i + 1], draws[i : i + 1], scale, shift) for i in range(40)]
    assert torch.equal(together, torch.cat(alone))
    assert int((together != source).flatten(1).any(1).sum()) == 40
