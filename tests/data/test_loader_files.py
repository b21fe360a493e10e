"""Image files through the loader: decoded values, crops, workers, ranks, and files that are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ncsam.data.augment.views import View
from ncsam.data.loading.loader import Loader
from ncsam.data.loading.sampling import uniforms
from ncsam.data.types import LazyImages, Split


def smooth(height: int, width: int, turn: int = 0) -> np.ndarray[Any, Any]:
    """An image of slow waves, so that resampling and JPEG change it little."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    planes = [128 + 100 * np.sin(3 * (a * y + b * x) + turn) for a, b in ((1, 0), (0, 1), (1, 1))]
    return np.stack(planes, axis=-1).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Split:
    """Eleven PNG files of 12 x 12 and of 12 x 18 pixels."""
    paths = []
    for i in range(11):
        paths.append(tmp_path / f"{i:02d}.png")
        Image.fromarray(smooth(12, 12 if i % 2 else 18, i)).save(paths[-1])
    return Split(paths, np.arange(11))


def batches(split: Split, epoch: int = 0, **options: Any) -> list[Any]:
    return list(Loader(split, **{"batch_size": 4, "size": (12, 12), **options}).iterate(epoch))


def test_plain_files_are_their_center(folder: Split) -> None:
    for batch in batches(folder, views="plain", mean=(0.5,) * 3, std=(0.25,) * 3):
        for view, index in zip(batch.views[0], batch.index.tolist(), strict=True):
            pixels = np.asarray(Image.open(folder.inputs[index]))
            pixels = pixels if index % 2 else pixels[:, 3:15]
            np.testing.assert_allclose(view.permute(1, 2, 0).numpy(), (pixels / 255 - 0.5) / 0.25, atol=1e-5)
            assert int(batch.labels[batch.index == index]) == index


@pytest.mark.parametrize(("mode", "padding"), [("zeros", 3), ("reflect", 3), ("zeros", None)])
def test_windows_of_files_are_those_the_draws_name(folder: Split, mode: Any, padding: int | None) -> None:
    view = View(crop="window", padding=padding, padding_mode=mode, flip=0.5)
    (batch,) = batches(folder, batch_size=11, views=view, seed=2)
    by = 2 if padding is None else padding  # by default an eighth of 12, rounded
    draws = uniforms(11, view.draws, 2, 0, 0, 0)
    for row, index in zip(range(11), batch.index.tolist(), strict=True):
        pixels = np.asarray(Image.open(folder.inputs[index]))
        padded = np.pad(pixels, ((by, by), (by, by), (0, 0)), mode="reflect" if mode == "reflect" else "constant")
        top, left = int(draws[row, 0] * (2 * by + 1)), int(draws[row, 1] * (padded.shape[1] - 11))
        window = padded[top : top + 12, left : left + 12]
        window = window[:, ::-1] if draws[row, 4] < 0.5 else window
        np.testing.assert_allclose(batch.views[0][row].permute(1, 2, 0).numpy(), window / 255, atol=1e-6)


def test_the_shorter_side_is_resized_before_the_crop(tmp_path: Path) -> None:
    Image.fromarray(smooth(40, 60)).save(tmp_path / "one.png")
    one = Split([tmp_path / "one.png"], np.array([0]))
    (batch,) = batches(one, views="plain", size=(16, 16), resize=20)
    resized = np.asarray(Image.open(tmp_path / "one.png").resize((30, 20), Image.Resampling.BILINEAR))
    np.testing.assert_allclose(batch.views[0][0].permute(1, 2, 0).numpy(), resized[2:18, 7:23] / 255, atol=1e-6)


def test_a_large_jpeg_decoded_small_looks_the_same(tmp_path: Path) -> None:
    Image.fromarray(smooth(400, 600)).save(tmp_path / "large.jpg", quality=95)
    one = Split([tmp_path / "large.jpg"], np.array([0]))
    (batch,) = batches(one, views=("plain", View(crop="resized", scale=(0.2, 0.2), ratio=(1, 1))), size=(32, 32))
    source = Image.fromarray(smooth(400, 600))
    center = np.asarray(source.resize((32, 32), Image.Resampling.BILINEAR, box=(100, 0, 500, 400)))
    assert np.abs(batch.views[0][0].permute(1, 2, 0).numpy() - center / 255).max() < 0.03
    draws = uniforms(1, 8, 0, 0, 0, 1)[0]
    side = np.sqrt(0.2 * 400 * 600)
    left, top = float(draws[3]) * (600 - side), float(draws[2]) * (400 - side)
    box = (left, top, left + side, top + side)
    part = np.asarray(source.resize((32, 32), Image.Resampling.BILINEAR, box=box))
    assert np.abs(batch.views[1][0].permute(1, 2, 0).numpy() - part / 255).max() < 0.03


def test_workers_change_nothing_and_epochs_resume(folder: Split) -> None:
    options = {"views": ("weak", "resized", "strong"), "seed": 3}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    alone = batches(folder, 1, **options)
    helped = batches(folder, 1, workers=2, **options)
    rest = list(Loader(folder, 4, size=(12, 12), workers=1, **options).iterate(1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for one, two in (*zip(alone, helped, strict=True), *zip(alone[2:], rest, strict=True)):
        assert torch.equal(one.index, two.index)
        assert all(torch.equal(a, b) for a, b in zip(one.views, two.views, strict=True))


def test_ranks_join_to_one_process(folder: Split) -> None:
    options = {"views": ("weak", "resized")}
    whole = batches(folder, batch_size=4, **options)
    parts = [batches(folder, batch_size=2, rank=rank, world_size=2, **options) for rank in (0, 1)]
    for one, *several in zip(whole, *parts, strict=True):
        for view in (0, 1):
            together = torch.cat([part.views[view] for part in several])
            assert torch.equal(together[: len(one)], one.views[view])


def test_files_and_memory_agree(folder: Split) -> None:
    square = Split(folder.inputs[1::2], np.arange(5))
    stored = Split(np.stack([np.asarray(Image.open(path)) for path in square.inputs]), np.arange(5))
    view = View(crop="window", padding=2, flip=0.5, operations=1, cutout=4)
    for one, two in zip(batches(square, views=view), batches(stored, views=view), strict=True):
        assert torch.equal(one.views[0], two.views[0])
        assert torch.equal(one.index, two.index)


def test_arrays_made_on_demand_are_cropped_like_files(folder: Split) -> None:
    arrays = [np.asarray(Image.open(path)) for path in folder.inputs]
    lazy = Split(LazyImages(lambda i: arrays[i], np.arange(11)), np.arange(11))
    for one, two in zip(batches(folder, views="weak"), batches(lazy, views="weak"), strict=True):
        assert torch.equal(one.views[0], two.views[0])


def test_modes_other_than_rgb(tmp_path: Path) -> None:
    rgb = smooth(12, 12)
    gray = Image.fromarray(rgb).convert("L")
    gray.save(tmp_path / "gray.png")
    Image.fromarray(np.asarray(gray).astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(np.dstack([rgb, np.full((12, 12), 9, np.uint8)])).save(tmp_path / "alpha.png")
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned by a quarter to the right
    Image.fromarray(np.rot90(rgb).copy()).save(tmp_path / "turned.png", exif=turned)
    names = ("gray", "deep", "alpha", "turned")
    split = Split([tmp_path / f"{name}.png" for name in names], np.arange(4))
    (batch,) = batches(split, views="plain", shuffle=False)
    images = batch.views[0].permute(0, 2, 3, 1).numpy() * 255
    luma = np.asarray(gray)[..., None].repeat(3, -1)
    for image, expected in zip(images, (luma, luma, rgb, rgb), strict=True):
        np.testing.assert_allclose(image, expected, atol=1e-3)
    (single,) = batches(split, views="plain", shuffle=False, mean=(0.0,), std=(1.0,))
    assert single.views[0].shape == (4, 1, 12, 12)
    np.testing.assert_allclose(single.views[0][0, 0].numpy() * 255, np.asarray(gray), atol=1e-3)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_named(folder: Split, workers: int) -> None:
    path = Path(folder.inputs[5])
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"05\.png \(sample 5\) cannot be decoded") as error:
        batches(folder, workers=workers)
    assert "Traceback" not in str(error.value)
    path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"05\.png \(sample 5\) cannot be decoded"):
        batches(folder, workers=workers)
    path.unlink()
    with pytest.raises(ValueError, match=r"05\.png \(sample 5\) is not there"):
        batches(folder, workers=workers)


def test_files_need_a_size_that_fits(folder: Split) -> None:
    with pytest.raises(ValueError, match="size=None"):
        batches(folder, size=None)
    with pytest.raises(ValueError, match="resize=11"):
        batches(folder, resize=11)
