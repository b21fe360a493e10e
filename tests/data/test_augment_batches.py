"""Batched crop, mirroring, Cutout and normalizing against a slow reference that treats one image at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncsam.data.augment.basic import center_crop, crop_windows, cutout, normalize, resize_boxes


def images(count: int, channels: int, height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (count, channels, height, width), dtype=np.uint8)


def reference_crop(
    image: np.ndarray[Any, Any],
    top: int,
    left: int,
    flip: bool,
    size: tuple[int, int],
    padding: tuple[int, int],
    mode: str,
) -> np.ndarray[Any, Any]:
    edges = ((0, 0), (padding[0], padding[0]), (padding[1], padding[1]))
    padded = np.pad(image, edges, mode="reflect" if mode == "reflect" else "constant")
    window = padded[:, top : top + size[0], left : left + size[1]]
    return window[:, :, ::-1] if flip else window


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 6),
    channels=st.sampled_from([1, 3, 4]),
    height=st.integers(3, 9),
    width=st.integers(3, 9),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    cut=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    mode=st.sampled_from(["zeros", "reflect"]),
    seed=st.integers(0, 1000),
)
def test_windows_equal_the_reference(
    count: int,
    channels: int,
    height: int,
    width: int,
    padding: tuple[int, int],
    cut: tuple[int, int],
    mode: Any,
    seed: int,
) -> None:
    source = images(count, channels, height, width, seed)
    size = (height - cut[0], width - cut[1])
    rng = np.random.default_rng(seed)
    top = rng.integers(0, cut[0] + 2 * padding[0] + 1, count)
    left = rng.integers(0, cut[1] + 2 * padding[1] + 1, count)
    flip = rng.random(count) < 0.5
    expected = np.stack(
        [reference_crop(source[i], top[i], left[i], bool(flip[i]), size, padding, mode) for i in range(count)]
    )
    result = crop_windows(torch.from_numpy(source), top, left, flip, size, padding=padding, mode=mode)
    np.testing.assert_array_equal(result.numpy(), expected)


def test_windows_of_images_that_are_not_contiguous() -> None:
    source = images(4, 3, 6, 6)
    turned = torch.from_numpy(source.transpose(0, 2, 3, 1).copy()).permute(0, 3, 1, 2)
    top = left = np.array([0, 1, 2, 0])
    flip = np.array([True, False, True, False])
    expected = crop_windows(torch.from_numpy(source), top, left, flip, (4, 4))
    assert torch.equal(crop_windows(turned, top, left, flip, (4, 4)), expected)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 9), width=st.integers(1, 9), rows=st.integers(1, 12), columns=st.integers(1, 12))
def test_cutout_covers_the_clipped_rectangle(height: int, width: int, rows: int, columns: int) -> None:
    rng = np.random.default_rng(rows * 13 + columns)
    count = 8
    row, column = rng.integers(0, height, count), rng.integers(0, width, count)
    on = rng.random(count) < 0.7
    source = torch.from_numpy(rng.uniform(1, 2, (count, 3, height, width)).astype(np.float32))
    expected = source.clone()
    for i in np.flatnonzero(on):
        top, left = int(row[i]) - rows // 2, int(column[i]) - columns // 2
        for y in range(height):
            for x in range(width):
                if top <= y < top + rows and left <= x < left + columns:
                    expected[i, :, y, x] = 0
    assert torch.equal(cutout(source, row, column, (rows, columns), on), expected)


def test_cutout_of_side_16_at_a_corner_leaves_an_eight_by_eight_hole() -> None:
    result = cutout(torch.ones(1, 3, 32, 32), np.array([0]), np.array([0]), (16, 16), np.array([True]))
    assert int((result == 0).sum()) == 3 * 8 * 8
    assert not result[0, :, :8, :8].any()


def test_normalize_gives_the_exact_numbers() -> None:
    mean, std = np.array([0.5, 0.25]), np.array([0.5, 0.125])
    scale = torch.tensor(1 / (255 * std), dtype=torch.float32).view(-1, 1, 1)
    shift = torch.tensor(-mean / std, dtype=torch.float32).view(-1, 1, 1)
    source = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 2, 1, 3)
    # (0 - .5)/.5 = -1, (.2 - .5)/.5 = -.6, (1 - .5)/.5 = 1; (0 - .25)/.125 = -2, -.4, 6
    expected = torch.tensor([[-1.0, -0.6, 1.0], [-2.0, -0.4, 6.0]]).view(1, 2, 1, 3)
    torch.testing.assert_close(normalize(source, scale, shift), expected, rtol=0, atol=1e-6)


def test_center_crop_takes_the_middle() -> None:
    source = torch.arange(36).view(1, 1, 6, 6)
    assert center_crop(source, (2, 2)).flatten().tolist() == [14, 15, 20, 21]
    assert torch.equal(center_crop(source, (6, 6)), source)


def bilinear(image: np.ndarray[Any, Any], y: float, x: float) -> float:
    y, x = min(max(y, 0), image.shape[0] - 1), min(max(x, 0), image.shape[1] - 1)
    y0, x0 = int(np.floor(y)), int(np.floor(x))
    y1, x1 = min(y0 + 1, image.shape[0] - 1), min(x0 + 1, image.shape[1] - 1)
    fy, fx = y - y0, x - x0
    upper = image[y0, x0] * (1 - fx) + image[y0, x1] * fx
    lower = image[y1, x0] * (1 - fx) + image[y1, x1] * fx
    return float(upper * (1 - fy) + lower * fy)


@pytest.mark.parametrize("flip", [False, True])
def test_resized_boxes_are_sampled_bilinearly(flip: bool) -> None:
    source = images(2, 1, 7, 9).astype(np.uint8)
    boxes = np.array([[0.5, 1.25, 5.0, 6.0], [0.0, 0.0, 7.0, 9.0]])
    result = resize_boxes(torch.from_numpy(source), boxes, np.array([flip, flip]), (4, 5))
    for i, (top, left, height, width) in enumerate(boxes):
        for r in range(4):
            for c in range(5):
                place = 4 - c if flip else c
                exact = bilinear(
                    source[i, 0].astype(float),
                    top + (r + 0.5) * height / 4 - 0.5,
                    left + (place + 0.5) * width / 5 - 0.5,
                )
                assert abs(int(result[i, 0, r, c]) - exact) <= 0.51


def test_a_box_that_is_the_image_gives_the_image() -> None:
    source = torch.from_numpy(images(3, 3, 8, 8))
    boxes = np.tile([0.0, 0.0, 8.0, 8.0], (3, 1))
    assert torch.equal(resize_boxes(source, boxes, np.zeros(3, dtype=bool), (8, 8)), source)
