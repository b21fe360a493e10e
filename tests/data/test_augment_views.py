"""Recipes: which windows, mirrorings and rectangles they make of uniform numbers, and how often."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from ncsam.data.augment.views import VIEWS, View, corners, lengths, resolve_views, to_int
from ncsam.data.loading.sampling import uniforms


def draws(view: View, rows: int, seed: int = 0) -> Any:
    return uniforms(rows, view.draws, seed, 0, 0, 0)


def test_windows_are_uniform_over_all_places() -> None:
    view = View(crop="window", padding=4)
    top, left = corners(draws(view, 81 * 400), (40, 40), (32, 32))
    counts = np.bincount(top * 9 + left, minlength=81)
    assert len(counts) == 81
    assert stats.chisquare(counts).pvalue > 1e-3


def test_half_of_the_images_are_mirrored() -> None:
    view = VIEWS["weak"]
    flips = view._flips(draws(view, 40_000))
    assert abs(flips.mean() - 0.5) < 4 * 0.5 / 200


def test_shifted_images_are_moved_by_an_eighth_at_most_and_never_mirrored() -> None:
    view = VIEWS["shifted"]
    image = torch.arange(1, 65, dtype=torch.uint8).reshape(1, 1, 8, 8)
    padded = torch.zeros(10, 10, dtype=torch.uint8)
    padded[1:9, 1:9] = image
    windows = [padded[top : top + 8, left : left + 8] for top in range(3) for left in range(3)]
    result = view.cropped(image.expand(200, -1, -1, -1), draws(view, 200), (8, 8))[:, 0]
    found = {next(n for n, window in enumerate(windows) if torch.equal(row, window)) for row in result}
    assert found == set(range(9))


def test_cutout_hits_its_share_with_uniform_centers() -> None:
    view = View(cutout=3, cutout_probability=0.25)
    rows = 20_000
    ones = torch.ones(1), torch.zeros(1)
    blank = torch.ones(rows, 1, 8, 8, dtype=torch.uint8)
    result = view.finished(blank, draws(view, rows), *ones)[:, 0]
    hit = (result == 0).flatten(1).any(1)
    assert abs(float(hit.float().mean()) - 0.25) < 4 * np.sqrt(0.25 * 0.75 / rows)
    # A pixel in the middle is covered by 9 of 64 centers, one in the corner by 4.
    covered = (result[hit] == 0).float().mean(0)
    assert float(covered[4, 4]) == pytest.approx(9 / 64, abs=0.02)
    assert float(covered[0, 0]) == pytest.approx(4 / 64, abs=0.015)


def test_resized_boxes_have_the_area_and_ratio_asked_for() -> None:
    view = View(crop="resized", scale=(0.25, 0.5), ratio=(0.5, 2.0))
    boxes = view.boxes(draws(view, 5_000)[:, :4], (100, 100))
    area, ratio = boxes[:, 2] * boxes[:, 3] / 1e4, boxes[:, 3] / boxes[:, 2]
    assert 0.25 <= area.min() < 0.252
    assert 0.498 < area.max() <= 0.5
    assert stats.kstest(area, stats.uniform(0.25, 0.25).cdf).pvalue > 1e-3
    assert stats.kstest(np.log(ratio), stats.uniform(-np.log(2), 2 * np.log(2)).cdf).pvalue > 1e-3
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= 100 + 1e-9).all()


def test_a_box_is_never_larger_than_the_image() -> None:
    view = View(crop="resized", scale=(0.9, 1.0))
    boxes = view.boxes(draws(view, 1_000)[:, :4], (20, 80))
    assert boxes[:, 2].max() <= 20
    assert boxes[:, 3].max() <= 80


def test_lengths_are_pixels_or_shares() -> None:
    assert lengths(4, (32, 64)) == (4, 4)
    assert lengths(1 / 8, (32, 64)) == (4, 8)
    assert lengths(0, (32, 64)) == (0, 0)


def test_default_padding_only_where_the_image_has_no_margin() -> None:
    weak = VIEWS["weak"]
    assert weak.pad_by((32, 32), (32, 32)) == (4, 4)
    assert weak.pad_by((64, 64), (56, 56)) == (0, 0)
    assert View(crop="window", padding=2).pad_by((64, 64), (56, 56)) == (2, 2)
    assert VIEWS["plain"].pad_by((32, 32), (32, 32)) == (0, 0)


def test_the_named_cutout_is_16_of_32_with_probability_one_half() -> None:
    view = VIEWS["weak_cutout"]
    assert lengths(view.cutout, (32, 32)) == (16, 16)
    assert view.cutout_probability == 0.5


def test_whole_numbers_stay_below_their_count() -> None:
    largest = np.array([np.nextafter(np.float32(1), np.float32(0))], dtype=np.float32)
    assert [int(to_int(largest, count)[0]) for count in (1, 9, 32, 1000)] == [0, 8, 31, 999]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "windows"}, "unknown crop 'windows'. Did you mean 'window'"),
        ({"padding_mode": "reflekt"}, "Did you mean 'reflect'"),
        ({"flip": 1.5}, "flip=1.5"),
        ({"cutout_probability": -0.1}, "cutout_probability=-0.1"),
        ({"padding": -1}, "padding=-1"),
        ({"cutout": 1.5}, "cutout=1.5"),
        ({"scale": (0.5, 0.1)}, "scale="),
        ({"ratio": (0.0, 1.0)}, "ratio="),
        ({"operations": -1}, "operations=-1"),
        ({"magnitude": 31}, "magnitude=31"),
        ({"choices": ()}, "choices="),
        ({"choices": ("equalise",)}, "unknown operation 'equalise'. Did you mean 'equalize'"),
    ],
)
def test_bad_recipes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        View(**options)


def test_views_by_name() -> None:
    own = View(flip=0.1)
    assert resolve_views("weak") == (VIEWS["weak"],)
    assert resolve_views(["strong", own, "plain"]) == (VIEWS["strong"], own, VIEWS["plain"])
    with pytest.raises(ValueError, match=r"'strnog'\..*'strong'"):
        resolve_views(["strnog"])
    with pytest.raises(ValueError, match="at least one view"):
        resolve_views([])


def test_a_reflection_longer_than_the_image_is_refused() -> None:
    with pytest.raises(ValueError, match="padding=8"):
        View(crop="window", padding=8, padding_mode="reflect").pad_by((8, 8), (8, 8))
