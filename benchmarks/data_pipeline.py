"""Images per second: our batched CIFAR pipeline against the usual one that treats image after image.

Both shuffle synthetic 32 x 32 color images, pad by 4 and crop, mirror half of them, normalize, apply Cutout (side
16, probability 1/2), and deliver float32 batches with labels. The usual one is a `Dataset` of Pillow and torch
operations behind a torch `DataLoader` with two workers, one thread each. Ours runs in the calling process with one
thread. Both sides take turns, epoch by epoch; the ratio is the median of those of neighboring epochs.

With `--folder` it is a folder of 1,438 PNG files of 32 x 32 pixels instead: an epoch that reads every file anew
(`in_memory=False`) against one of a loader that has kept what it read before, which is the default for small folders.

    python benchmarks/data_pipeline.py [--folder] [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ncsam.data import load
from ncsam.data.augment.views import View
from ncsam.data.loading.loader import Loader
from ncsam.data.types import Split

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
PADDING, CUTOUT, CUTOUT_PROBABILITY = 4, 16, 0.5
WORKERS = 2


class PerSample(Dataset[tuple[Tensor, int]]):
    """One image at a time: pad and crop, mirror, to tensor, normalize, Cutout."""

    def __init__(self, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
        self.images = images
        self.labels = labels.tolist()
        self.mean = torch.tensor(MEAN).view(3, 1, 1)
        self.std = torch.tensor(STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.images[index]), border=PADDING)
        left, top = random.randint(0, 2 * PADDING), random.randint(0, 2 * PADDING)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
        tensor = tensor.sub_(self.mean).div_(self.std)
        if random.random() < CUTOUT_PROBABILITY:
            row, column = random.randrange(32), random.randrange(32)
            half = CUTOUT // 2
            tensor[:, max(0, row - half) : row + half, max(0, column - half) : column + half] = 0
        return tensor, self.labels[index]


def seconds(epoch: Callable[[], int], images: int) -> float:
    """Time one epoch, and see that it delivered every image."""
    start = time.perf_counter()
    seen = epoch()
    taken = time.perf_counter() - start
    if seen != images:
        raise RuntimeError(f"an epoch delivered {seen} of {images} images")
    return taken


def measure(images: int, batch_size: int, repeats: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (images, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, images)
    view = View(crop="window", padding=PADDING, flip=0.5, cutout=CUTOUT, cutout_probability=CUTOUT_PROBABILITY)
    ours = Loader(Split(images, labels), batch_size, views=view, mean=MEAN, std=STD)
    usual = DataLoader(
        PerSample(images, labels), batch_size, shuffle=True, num_workers=WORKERS, persistent_workers=True
    )
    sides: dict[str, Callable[[], int]] = {
        "ours": lambda: sum(len(batch) for batch in ours),
        "per_sample": lambda: sum(len(y) for _, y in usual),
    }
    for epoch in sides.values():
        epoch()  # warm caches; the workers of the DataLoader start here and stay
    times = in_turns(sides, images, repeats)
    speed = {name: images / statistics.median(taken) for name, taken in times.items()}
    return {
        "pipeline_vs_per_sample": statistics.median(b / a for a, b in zip(*times.values(), strict=True)),
        "images_per_second": speed,
        "seconds": times,
        "workers_per_sample": WORKERS,
    }


def measure_folder(images: int, batch_size: int, repeats: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(images):
            path = Path(folder, f"class {i % 10}", f"{i:05d}.png")
            path.parent.mkdir(exist_ok=True)
            small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            small.resize((32, 32), Image.Resampling.BICUBIC).save(path)  # smooth, as photographs are
        sides: dict[str, Callable[[], int]] = {}
        for name, in_memory in (("kept", None), ("read_anew", False)):
            split = load(folder, in_memory=in_memory).train
            loader = Loader(split, batch_size, views="weak", mean=MEAN, std=STD, size=(32, 32))
            sides[name] = lambda loader=loader: sum(len(batch) for batch in loader)  # type: ignore[misc]
        first = seconds(sides["kept"], images)
        times = in_turns(sides, images, repeats)
    return {
        "read_anew_vs_kept": statistics.median(b / a for a, b in zip(*times.values(), strict=True)),
        "seconds_per_epoch": {"first": first} | {name: statistics.median(taken) for name, taken in times.items()},
        "seconds": times,
    }


def in_turns(sides: dict[str, Callable[[], int]], images: int, repeats: int) -> dict[str, list[float]]:
    """The seconds of each epoch of each side, one after the other."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, epoch in sides.items():
            times[name].append(seconds(epoch, images))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer images and repeats; under 40 seconds")
    parser.add_argument("--folder", action="store_true", help="a small folder, read anew in each epoch or kept")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--batch-size", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = 1438 if options.folder else 20_000 if options.quick else 50_000
    repeats = 5 if options.quick else 7
    figures = (measure_folder if options.folder else measure)(images, options.batch_size, repeats)
    if options.folder:
        for name, taken in figures["seconds_per_epoch"].items():
            print(f"{name:>12}: {taken:>10.4f} seconds per epoch")
        print(f"       ratio: {figures['read_anew_vs_kept']:.1f}")
    else:
        for name, speed in figures["images_per_second"].items():
            print(f"{name:>12}: {speed:>10,.0f} images per second")
        print(f"       ratio: {figures['pipeline_vs_per_sample']:.1f}")
    figures |= {
        "images": images,
        "batch_size": options.batch_size,
        "repeats": repeats,
        "threads_ours": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
