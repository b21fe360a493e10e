"""Small folders are decoded once: the same images and the same training as from files, and no second reading."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from ncsam import data
from ncsam.cli.main import main
from ncsam.data.augment.views import View
from ncsam.data.images import decode
from ncsam.data.images import decode_cache as kept
from ncsam.data.loading.loader import Batch, Loader
from ncsam.data.types import PathList
from ncsam.engine import RunConfig, train
from ncsam.engine.checkpoint import load_checkpoint

SHAPES = {
    "one size": [(12, 10)],
    "several sizes": [(12, 12), (12, 18), (20, 12), (7, 30)],
    "photographs": [(160, 200), (200, 160)],
}


def make_folder(root: Path, shapes: list[tuple[int, int]], count: int = 11, suffix: str = "png") -> Path:
    """Images of two classes with test/ and val/ beside train/; every third one lies on its side, as EXIF says."""
    rng = np.random.default_rng(4)
    for part, number in (("train", count), ("test", 5), ("val", 3)):
        for i in range(number):
            pixels = rng.integers(0, 256, (*shapes[i % len(shapes)], 3), dtype=np.uint8)
            path = root / part / f"class {i % 2}" / f"{i:03d}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            turned = Image.Exif()
            turned[0x0112] = 6  # to be shown turned by a quarter to the right
            image = Image.fromarray(np.rot90(pixels).copy() if i % 3 == 0 else pixels)
            image.save(path, **({"exif": turned} if i % 3 == 0 else {}))
    return root


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was decoded, by the name of its split and its own."""
    counted: Counter[str] = Counter()
    upright = decode.exif_transpose

    def counting(file: Any, mode: str) -> Any:
        path = Path(file.filename)
        counted[f"{path.parts[-3]}/{path.name}"] += 1
        return upright(file, mode)

    monkeypatch.setattr(decode, "exif_transpose", counting)
    return counted


def loader(path: Path, in_memory: bool | None = None, **options: Any) -> Loader:
    dataset = data.load(path, in_memory=in_memory)
    shown: dict[str, Any] = {"size": dataset.size, "mean": dataset.mean, "std": dataset.std, "seed": 3}
    return Loader(dataset.train, **{"batch_size": 4, **shown, **options})


def assert_same(ours: list[Batch], others: list[Batch]) -> None:
    assert len(ours) > 0
    for one, two in zip(ours, others, strict=True):
        assert torch.equal(one.index, two.index)
        assert torch.equal(one.labels, two.labels)
        for a, b in zip(one.views, two.views, strict=True):
            assert torch.equal(a, b)
            assert a.stride() == b.stride()  # a network's kernels, and with them its bits, depend on it


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize(
    "options",
    [
        {"views": ("weak", "plain")},
        {"views": ("strong", View(crop="window", padding=3, padding_mode="reflect")), "size": (10, 10), "resize": 13},
        {"views": "weak_cutout", "mean": (0.4,), "std": (0.2,)},  # gray
    ],
    ids=["two views", "resized to 13", "gray"],
)
def test_kept_images_are_those_of_the_files(
    tmp_path: Path, decodings: Counter[str], suffix: str, shapes: str, options: dict[str, Any]
) -> None:
    path = make_folder(tmp_path, SHAPES[shapes], suffix=suffix)
    fresh = loader(path, False, **options)
    expected = [[*fresh.iterate(epoch)] for epoch in range(3)]
    evaluated = [*fresh.evaluation().iterate(0)]
    assert set(decodings.values()) == {4}
    decodings.clear()
    keeping = loader(path, None, **options)
    assert not decodings  # nothing is decoded before it is wanted
    for epoch in range(3):
        assert_same([*keeping.iterate(epoch)], expected[epoch])
    assert_same([*keeping.evaluation().iterate(0)], evaluated)
    assert_same([*keeping.iterate(1, 2)], expected[1][2:])
    assert len(decodings) == 11
    assert set(decodings.values()) == {1}


def test_workers_fill_what_is_kept(tmp_path: Path) -> None:
    path = make_folder(tmp_path, SHAPES["several sizes"])
    expected = [[*loader(path, False).iterate(epoch)] for epoch in range(3)]
    keeping = loader(path, workers=2)
    assert_same([*keeping.iterate(0, 2)], expected[0][2:])  # begins with a part of the files
    assert_same([*keeping.iterate(1)], expected[1])
    shutil.rmtree(path)
    assert_same([*keeping.iterate(2)], expected[2])
    assert_same([*keeping.iterate(0)], expected[0])


def test_ranks_with_kept_images_join_to_one_process(tmp_path: Path, decodings: Counter[str]) -> None:
    path = make_folder(tmp_path, SHAPES["one size"])
    ranks = [loader(path, batch_size=2, rank=rank, world_size=2) for rank in (0, 1)]
    for epoch in range(4):
        for one, *parts in zip(loader(path, False).iterate(epoch), *(r.iterate(epoch) for r in ranks), strict=True):
            assert torch.equal(torch.cat([part.views[0] for part in parts])[: len(one)], one.views[0])
    decodings.clear()
    for rank in ranks:
        assert len([*rank.with_options(rank=0, world_size=1).iterate(0)]) > 0
    # after some epochs either rank has seen nearly every file, and reads only those that it has not
    assert sum(decodings.values()) <= 4


def test_a_damaged_file_is_named_and_not_kept(tmp_path: Path) -> None:
    path = make_folder(tmp_path, SHAPES["one size"])
    damaged = path / "train" / "class 1" / "005.png"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:60])
    keeping = loader(path, shuffle=False)
    with pytest.raises(ValueError, match=r"005.png \(sample 8\)"):
        [*keeping.iterate(0)]
    damaged.write_bytes(whole)
    assert_same([*keeping.iterate(0)], [*loader(path, False, shuffle=False).iterate(0)])


def test_windows_at_any_scale_are_read_from_the_files(tmp_path: Path, decodings: Counter[str]) -> None:
    path = make_folder(tmp_path, SHAPES["photographs"], suffix="jpg")
    options: dict[str, Any] = {"views": ("weak", "resized"), "size": (16, 16)}
    expected = [*loader(path, False, **options).iterate(0)]
    keeping = loader(path, **options)
    assert_same([*keeping.iterate(0)], expected)
    assert_same([*keeping.iterate(0)], expected)
    assert set(decodings.values()) == {3}


def test_each_size_and_color_is_kept_apart(tmp_path: Path, decodings: Counter[str]) -> None:
    path = make_folder(tmp_path, SHAPES["photographs"])
    keeping = loader(path, views="plain", size=(16, 16))
    for options in ({}, {"size": (20, 20)}, {"mean": (0.0,), "std": (1.0,)}, {"resize": 18}, {}, {"size": (20, 20)}):
        fresh = loader(path, False, views="plain", **{"size": (16, 16), **options})
        assert_same([*keeping.with_options(**options).iterate(0)], [*fresh.iterate(0)])
    assert set(decodings.values()) == {6 + 4}


# --- the budget -----------------------------------------------------------------------------------------------------


def test_the_splits_share_the_budget_by_their_samples(tmp_path: Path) -> None:
    dataset = data.load(make_folder(tmp_path, SHAPES["one size"]))
    rooms = [split.inputs.keep for split in (dataset.train, dataset.test, dataset.val)]
    assert rooms == [2**30 * n // 19 for n in (11, 5, 3)]
    assert dataset.train.inputs[2:4].keep == dataset.train.take(np.array([1, 5])).inputs.keep == rooms[0]
    assert PathList(tmp_path, ["a.png"]).keep == 0  # named datasets, and images to predict, are read when wanted


@pytest.mark.parametrize(("spare", "times"), [(0, 1), (-1, 2)])
def test_a_folder_that_does_not_fit_is_not_kept(
    tmp_path: Path, decodings: Counter[str], monkeypatch: pytest.MonkeyPatch, spare: int, times: int
) -> None:
    path = make_folder(tmp_path, SHAPES["one size"])
    monkeypatch.setattr(kept, "BUDGET", 19 * 12 * 10 * 3 + spare)
    reading = loader(path)
    assert_same([*reading.iterate(0), *reading.iterate(1)], [*reading.iterate(0), *reading.iterate(1)])
    assert set(decodings.values()) == {1 if times == 1 else 4}


def test_long_images_are_kept_as_far_as_there_is_room(
    tmp_path: Path, decodings: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_folder(tmp_path, [(10, 40)], count=12)
    monkeypatch.setattr(kept, "BUDGET", 20 * 2 * 10 * 10 * 3)  # 12 of 20 samples: room for 24 squares, 6 long ones
    fresh, keeping = loader(path, False, size=(10, 10)), loader(path, size=(10, 10))
    expected = [[*fresh.iterate(epoch)] for epoch in range(3)]
    decodings.clear()
    for epoch in range(3):
        assert_same([*keeping.iterate(epoch)], expected[epoch])
    assert sorted(decodings.values()) == [1] * 6 + [3] * 6


def test_what_is_said_of_in_memory_wins(tmp_path: Path, decodings: Counter[str]) -> None:
    path = make_folder(tmp_path, SHAPES["one size"])
    assert data.load(path, in_memory=True).train.inputs.shape == (11, 12, 10, 3)
    with pytest.raises(ValueError, match="in_memory='auto'"):
        data.load(path, in_memory="auto")
    lazy = data.load(path, in_memory=False)
    assert all(split.inputs.keep == 0 for split in lazy.splits.values())
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        rows = [(f"train/class {i % 2}/{i:03d}.png", str(i % 2)) for i in range(11)]
        csv.writer(file).writerows([("path", "label"), *rows])
    assert data.load(table).train.inputs.keep == 2**30
    assert data.load(table, in_memory=False).train.inputs.keep == 0
    assert data.load(table, in_memory=True).train.inputs.shape == (11, 12, 10, 3)


# --- runs -----------------------------------------------------------------------------------------------------------


def run(path: Path, folder: Path, in_memory: bool | None) -> tuple[Any, ...]:
    """Train for three epochs; the metrics without the times, the last weights, and the label issues."""
    options = {} if in_memory is None else {"in_memory": in_memory}
    config = RunConfig.from_dict(
        {
            "data": str(path),
            "data_options": options,
            "epochs": 3,
            "batch_size": 8,
            "model": "resnet8",
            "augment": "paper",
            "warmup": 0,
            "flip_ratio": 0.2,
        }
    )
    train(config, folder, console=False)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [{name: value for name, value in line.items() if "second" not in name} for line in lines]
    checkpoint = load_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    return metrics, checkpoint["learners"][0]["network"], (folder / "label_issues.csv").read_text()


def test_a_run_reads_each_file_once_and_ends_with_the_same_bits(tmp_path: Path, decodings: Counter[str]) -> None:
    path = make_folder(tmp_path / "mine", SHAPES["several sizes"], count=24)
    expected = run(path, tmp_path / "fresh", False)
    assert min(decodings.values()) >= 3
    decodings.clear()
    metrics, weights, label_issues = run(path, tmp_path / "kept", None)
    assert len(decodings) == 24 + 5 + 3
    assert set(decodings.values()) == {1}
    assert metrics == expected[0]
    assert weights.keys() == expected[1].keys()
    assert all(torch.equal(weights[name], expected[1][name]) for name in weights)
    assert label_issues == expected[2]
    assert str(path / "train" / "class 0" / "000.png") in label_issues


def test_a_dry_run_decodes_nothing(tmp_path: Path, decodings: Counter[str]) -> None:
    path = make_folder(tmp_path, SHAPES["one size"])
    result = CliRunner().invoke(main, ["train", str(path), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert not decodings
