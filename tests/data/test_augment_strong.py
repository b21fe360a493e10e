"""The operations of strong views against Pillow's, image by image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from ncsam.data.augment import randaugment as strong
from ncsam.data.augment.randaugment import COLOR_OPERATIONS, OPERATIONS, randaugment

SIGNED = np.array([-1.0, -0.4, 0.0, 0.3, 0.7, 1.0])


def soft_images() -> np.ndarray[Any, Any]:
    """Six images with smooth parts, a narrow range, few values, one value, noise: (6, 3, 32, 40)."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:32, 0:40]
    planes = [
        np.stack([4 * y + 3 * x, 255 - 8 * y, 6 * x]),
        rng.integers(90, 140, (3, 32, 40)),
        rng.integers(0, 3, (3, 32, 40)) * 100,
        np.full((3, 32, 40), 77),
        rng.integers(0, 256, (3, 32, 40)),
        rng.normal(128, 30, (3, 32, 40)).clip(0, 255),
    ]
    return np.stack(planes).astype(np.uint8)


def as_image(planes: np.ndarray[Any, Any]) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))


PILLOW = {
    "autocontrast": lambda p, s: ImageOps.autocontrast(p),
    "equalize": lambda p, s: ImageOps.equalize(p),
    "solarize": lambda p, s: ImageOps.solarize(p, int(np.ceil(256 * (1 - abs(s))))),
    "posterize": lambda p, s: ImageOps.posterize(p, 8 - int(np.round(4 * abs(s)))),
    "color": lambda p, s: ImageEnhance.Color(p).enhance(1 + 0.9 * s),
    "contrast": lambda p, s: ImageEnhance.Contrast(p).enhance(1 + 0.9 * s),
    "brightness": lambda p, s: ImageEnhance.Brightness(p).enhance(1 + 0.9 * s),
    "sharpness": lambda p, s: ImageEnhance.Sharpness(p).enhance(1 + 0.9 * s),
    "identity": lambda p, s: p,
}


@pytest.mark.parametrize("name", COLOR_OPERATIONS)
def test_color_operations_agree_with_pillow(name: str) -> None:
    source = soft_images()
    result = getattr(strong, name)(torch.from_numpy(source), SIGNED).numpy()
    expected = np.stack(
        [np.asarray(PILLOW[name](as_image(p), s)).transpose(2, 0, 1) for p, s in zip(source, SIGNED, strict=True)]
    )
    # Pillow rounds blends and stretches in single precision of its own order: one gray level at most.
    allowed = 0 if name in ("equalize", "solarize", "posterize", "identity") else 1
    assert int(np.abs(result.astype(int) - expected.astype(int)).max()) <= allowed
    assert result.dtype == np.uint8


def test_every_color_operation_changes_a_image_at_full_strength() -> None:
    source = torch.from_numpy(soft_images()[1:2])
    for name in COLOR_OPERATIONS[1:]:
        assert not torch.equal(getattr(strong, name)(source, np.array([1.0])), source), name


def test_translation_moves_whole_pixels_and_fills_with_black() -> None:
    source = torch.arange(1, 31, dtype=torch.uint8).view(1, 1, 5, 6)
    maps = np.array([[[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]]])
    result = strong.affine(source, maps)
    expected = torch.zeros_like(source)
    expected[:, :, 1:, :4] = source[:, :, :4, 2:]
    assert torch.equal(result, expected)


def test_a_quarter_turn_is_exact() -> None:
    source = torch.from_numpy(soft_images()[4:5, :, :16, :16].copy())
    maps = np.array([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]])  # result (x, y) fetches (y, -x)
    assert torch.equal(strong.affine(source, maps), torch.rot90(source, -1, (2, 3)))


def test_shear_slides_rows_by_their_distance_from_the_center() -> None:
    source = torch.zeros(1, 1, 5, 9, dtype=torch.uint8)
    source[..., 4] = 200
    result = strong.affine(source, np.array([[[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]]))
    assert result[0, 0].argmax(1).tolist() == [6, 5, 4, 3, 2]


@pytest.mark.parametrize(
    ("name", "level", "entry", "value"),
    [
        ("rotate", 1.0, (0, 0, 1), np.sin(np.pi / 6)),
        ("rotate", -1.0, (0, 0, 0), np.cos(np.pi / 6)),
        ("shear_x", 0.5, (0, 0, 1), 0.15),
        ("shear_y", -1.0, (0, 1, 0), -0.3),
        ("translate_x", 1.0, (0, 0, 2), 15.0),  # 150/331 of 32 is 14.5 -> 15 (14.502 rounds up)
        ("translate_y", -1.0, (0, 1, 2), -7.0),  # 150/331 of 16 is 7.25
    ],
)
def test_geometry_at_its_magnitudes(name: str, level: float, entry: tuple[int, ...], value: float) -> None:
    maps = strong._maps(name, np.array([level]), torch.Size((1, 3, 16, 32)))
    assert maps[entry] == pytest.approx(value)


def test_a_batch_equals_its_images_one_by_one() -> None:
    rng = np.random.default_rng(1)
    source = torch.from_numpy(rng.integers(0, 256, (60, 3, 12, 12), dtype=np.uint8))
    draws = rng.random((60, 3, 2), dtype=np.float32)
    before = source.clone()
    together = randaugment(source, draws, 20.0, OPERATIONS)
    alone = torch.cat([randaugment(source[i : i + 1], draws[i : i + 1], 20.0, OPERATIONS) for i in range(60)])
    assert torch.equal(together, alone)
    assert torch.equal(source, before)
    assert int((together != source).flatten(1).any(1).sum()) > 50


def test_the_first_number_chooses_and_the_second_gives_the_sign() -> None:
    source = torch.full((4, 3, 4, 4), 100, dtype=torch.uint8)
    draws = np.array([[[0.1, 0.4]], [[0.1, 0.6]], [[0.9, 0.4]], [[0.9, 0.6]]], dtype=np.float32)
    result = randaugment(source, draws, 30.0, ("brightness", "solarize"))
    assert result[:, 0, 0, 0].tolist() == [10, 190, 155, 155]


def test_gray_images_pass_through_every_operation() -> None:
    rng = np.random.default_rng(2)
    source = torch.from_numpy(rng.integers(0, 256, (80, 1, 9, 9), dtype=np.uint8))
    draws = rng.random((80, 2, 2), dtype=np.float32)
    assert randaugment(source, draws, 30.0, OPERATIONS).shape == source.shape
    assert torch.equal(strong.color(source, np.ones(80)), source)
