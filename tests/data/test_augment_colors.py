"""AutoAugment's policy and SimCLR's colors against Pillow and the standard library, image by image."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from ncsam.data import from_arrays
from ncsam.data.augment.autoaugment import CIFAR_POLICY, autoaugment
from ncsam.data.augment.color_jitter import jitter, turned
from ncsam.data.augment.views import VIEWS, View
from ncsam.data.loading.loader import Loader


def noise(count: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, channels, 12, 10)).astype(np.uint8)


def pillow(planes: np.ndarray) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))


def planes(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1).astype(int)


def test_the_policy_has_the_papers_pairs() -> None:
    assert len(CIFAR_POLICY) == 25
    assert CIFAR_POLICY[1] == (("rotate", 7, 2), ("translate_x", 3, 9))
    assert CIFAR_POLICY[24] == (("translate_y", 7, 9), ("autocontrast", 9, 1))


def test_a_pair_is_applied_with_its_probabilities_levels_and_signs() -> None:
    source = noise(4)
    # pair 13: brightness with probability .9 at 6/9, then color with .2 at 8/9
    pair = (13 + 0.5) / 25
    draws = [
        [pair, 0.95, 0.0, 0.5, 0.0],  # neither
        [pair, 0.85, 0.9, 0.5, 0.0],  # brightness alone, with a plus
        [pair, 0.85, 0.1, 0.5, 0.0],  # with a minus
        [pair, 0.85, 0.9, 0.1, 0.1],  # then color with a minus
    ]
    found = autoaugment(torch.from_numpy(source), np.array(draws, dtype=np.float32)).numpy().astype(int)
    brighter = ImageEnhance.Brightness(pillow(source[1])).enhance(1 + 0.9 * 6 / 9)
    darker = ImageEnhance.Brightness(pillow(source[2])).enhance(1 - 0.9 * 6 / 9)
    both = ImageEnhance.Brightness(pillow(source[3])).enhance(1 + 0.9 * 6 / 9)
    both = ImageEnhance.Color(both).enhance(1 - 0.9 * 8 / 9)
    assert (found[0] == source[0]).all()
    for i, expected in enumerate((brighter, darker, both), start=1):
        assert np.abs(found[i] - planes(expected)).max() <= 1


def test_inversion_solarising_and_posterising_levels() -> None:
    source = noise(3)
    draws = np.array(
        [
            [0.5 / 25, 0.05, 0.0, 0.9, 0.0],  # invert
            [14.5 / 25, 0.4, 0.0, 0.5, 0.0],  # solarize at 2/9: from 256 (1 - 2/9) = 199.1 on
            [5.5 / 25, 0.9, 0.0, 0.2, 0.0],  # posterize at 7/9: 8 - round(28/9) = 5 bits
        ],
        dtype=np.float32,
    )
    found = autoaugment(torch.from_numpy(source), draws).numpy().astype(int)
    assert (found[0] == 255 - source[0].astype(int)).all()
    assert (found[1] == planes(ImageOps.solarize(pillow(source[1]), 200))).all()
    assert (found[2] == planes(ImageOps.posterize(pillow(source[2]), 5))).all()


def test_hue_turns_as_in_the_standard_library() -> None:
    source = noise(2)
    turn = np.array([0.1, -0.07])
    found = turned(torch.from_numpy(source), turn).numpy().astype(int)
    for image, by, result in zip(source, turn, found, strict=True):
        for y, x in np.ndindex(12, 10):
            h, s, v = colorsys.rgb_to_hsv(*(float(c) / 255 for c in image[:, y, x]))
            expected = 255 * np.array(colorsys.hsv_to_rgb((h + by) % 1, s, v))
            assert np.abs(result[:, y, x] - expected).max() <= 0.51


def test_jitter_amounts_order_and_gray() -> None:
    source = noise(4)
    draws = np.array(
        [
            [0.9, 1, 1, 1, 1, 0.5],  # not this one
            [0.1, 0.75, 0.5, 0.5, 0.5, 0.5],  # brightness by 1 + .4 * .5
            [0.1, 0.5, 0.25, 0.5, 0.5, 0.5],  # contrast by 1 - .4 * .5
            [0.9, 1, 1, 1, 1, 0.1],  # no color
        ],
        dtype=np.float32,
    )
    found = jitter(torch.from_numpy(source), draws, 0.5, 0.8, 0.2).numpy().astype(int)
    assert (found[0] == source[0]).all()
    assert np.abs(found[1] - planes(ImageEnhance.Brightness(pillow(source[1])).enhance(1.2))).max() <= 1
    assert np.abs(found[2] - planes(ImageEnhance.Contrast(pillow(source[2])).enhance(0.8))).max() <= 1
    gray = np.asarray(pillow(source[3]).convert("L")).astype(int)
    assert (found[3] == gray).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(VIEWS))
def test_views_do_not_depend_on_the_batch(name: str, channels: int) -> None:
    source = noise(24, channels).transpose(0, 2, 3, 1)
    split = from_arrays(source, np.arange(24) % 2).train
    whole = next(iter(Loader(split, 24, views=name, seed=5).iterate(2)))
    halves = [next(iter(Loader(split, 12, views=name, seed=5, rank=r, world_size=2).iterate(2))) for r in (0, 1)]
    assert torch.equal(whole.views[0], torch.cat([half.views[0] for half in halves]))


def test_a_wrong_strength_is_named() -> None:
    with pytest.raises(ValueError, match=r"jitter=1\.5"):
        View(jitter=1.5)
    with pytest.raises(ValueError, match=r"gray=-1"):
        View(gray=-1)
