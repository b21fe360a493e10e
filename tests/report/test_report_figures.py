"""Curves: what is drawn, under which label, and SVG that follows the page's colors."""

import re
import xml.etree.ElementTree as ElementTree
from importlib import resources

import numpy as np
import pytest
from PIL import Image

from made_runs import make_run
from ncsam.report import figures
from ncsam.report.figures import (
    COLORS,
    CURVES,
    TELEMETRY,
    Look,
    Point,
    curves_png,
    draw,
    group_runs,
    looks,
    new_figure,
    panel_svg,
    thinned,
)
from ncsam.runs.reader import find_runs

ACCURACY = CURVES[0]


@pytest.fixture
def groups(tmp_path):
    make_run(tmp_path / "a", seed=1)
    make_run(tmp_path / "b", seed=3)
    make_run(tmp_path / "c", optimizer="ncsam")
    return group_runs(find_runs([tmp_path]))


def test_lines_are_means_and_bands_one_deviation(groups):
    _, (ax,) = new_figure(width=4, height=3)
    assert draw(ax, groups, ACCURACY)
    mean, single, warmup = ax.lines
    assert mean.get_label() == "sgd"
    np.testing.assert_allclose(mean.get_xydata(), [[1, 12], [2, 22], [3, 32], [4, 42]])
    np.testing.assert_allclose(single.get_ydata(), [11, 21, 31, 41])
    band = ax.collections[0].get_paths()[0].vertices
    at_two = band[band[:, 0] == 2][:, 1]
    np.testing.assert_allclose([at_two.min(), at_two.max()], [22 - 2**0.5, 22 + 2**0.5])
    assert list(warmup.get_xdata()) == [1, 1]  # a quarter of four epochs
    assert [text.get_text() for text in ax.texts] == ["end of warm-up"]
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("Test accuracy", "epoch", "correct, %")


def test_a_band_of_shares_ends_where_shares_end(tmp_path):
    for seed in (1, 60):
        make_run(tmp_path / str(seed), seed=seed)
    _, (ax,) = new_figure(width=4, height=3)
    draw(ax, group_runs(find_runs([tmp_path])), ACCURACY)
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0  # at epoch 1 the mean is 40.5 and the deviation 41.7
    assert heights.max() == 100  # at epoch 4, 70.5 and 41.7


def test_a_metric_that_nobody_recorded_is_not_drawn(groups):
    _, (ax,) = new_figure(width=4, height=3)
    assert not draw(ax, groups, CURVES[4])
    assert not ax.lines
    assert panel_svg(groups, CURVES[4], width=4, height=3) is None
    assert panel_svg(groups, TELEMETRY[0], width=4, height=3) is not None


def test_no_warmup_no_mark(tmp_path):
    make_run(tmp_path / "a")
    _, (ax,) = new_figure(width=4, height=3)
    draw(ax, group_runs(find_runs([tmp_path])), ACCURACY)
    assert len(ax.lines) == 1
    assert not ax.texts


def test_color_tells_the_optimizer_and_style_the_method(tmp_path):
    for method in ("ce", "mixup"):
        for optimizer in ("sgd", "sam"):
            make_run(tmp_path / f"{method}-{optimizer}", method=method, optimizer=optimizer)
    crossed = group_runs(find_runs([tmp_path]))
    assert [group.label for group in crossed] == ["ce, sam", "ce, sgd", "mixup, sam", "mixup, sgd"]
    assert looks(crossed) == [Look(0, 0), Look(1, 0), Look(0, 1), Look(1, 1)]
    assert looks(crossed[:2]) == [Look(0, 0), Look(1, 1)]
    assert looks([]) == []


def test_svg_leaves_its_colors_to_the_page(groups):
    svg = panel_svg(groups, ACCURACY, width=4, height=3)
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == "Test accuracy"
    assert "width" not in root.attrib
    assert not re.search(r"#[0-9a-fA-F]{6}", re.sub(r"url\(#\w+\)", "", svg))
    for variable in ("--series-0", "--series-1", "--grid", "--muted", "--ink", "--sans"):
        assert f"var({variable})" in svg
    assert "<style" not in svg
    assert set(re.findall(r' id="([^"]*)"', svg)) == set(re.findall(r"(?:url\(|href=\")#(\w+)", svg))  # none to spare
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Test accuracy", "epoch", "correct, %", "end of warm-up"} <= set(texts)


def test_every_color_has_a_variable():
    STYLE = (resources.files("ncsam.report") / "templates" / "style.css").read_text()

    for variable in figures.VARIABLES.values():
        assert STYLE.count(f"{variable}:") == 2, f"{variable} is for light and for dark"
    assert len(set(COLORS)) == len(COLORS)


def test_png_has_both_panels(groups, tmp_path):
    path = curves_png(groups, tmp_path / "out" / "curves.png", "a title")
    with Image.open(path) as image:
        assert image.size == (1664, 624)
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for color in COLORS[:2]:
        wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == wanted).all(axis=1).sum() > 100


def test_long_curves_are_thinned_and_keep_their_ends_and_peaks():
    points = [Point(e, float(e % 7), None) for e in range(1, 10_001)]
    points[4321] = Point(4322, 99.0, 1.0)
    points[8000] = Point(8001, -5.0, 1.0)
    kept = thinned(points)
    assert 400 < len(kept) <= 800
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)
    assert {points[0], points[-1], points[4321], points[8000]} <= set(kept)
    assert thinned(points[:800]) == points[:800]
