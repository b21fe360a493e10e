"""How long runs will take on this machine and what they leave on its disk, from short runs of the same networks."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam.data import from_arrays
from ncsam.engine import RunConfig, train
from ncsam.engine.progress import duration
from ncsam.jobs.executor import ExecutorConfig
from ncsam.jobs.local import Job, threads_each
from ncsam.jobs.worker import is_small
from ncsam.methods import create as create_method

_BATCHES, _EPOCHS = 4, 2  # of a trial; its last epoch counts, the first has to warm up
_BYTES_OF_A_SAMPLE = 200  # in the checkpoint, label_issues.csv and noise.npz
_SMALL_SIDE, _FEW = 16, 8  # above so many pixels, whose networks take a time that grows with the batch, so few samples


@dataclass(frozen=True)
class Shape:
    """Of a dataset as a network sees it."""

    train: int
    test: int
    side: int
    classes: int
    channels: int = 3


_SHAPES = {
    "cifar10": Shape(50_000, 10_000, 32, 10),
    "cifar100": Shape(50_000, 10_000, 32, 100),
    "tiny_imagenet": Shape(100_000, 10_000, 64, 200),
    "animal10n": Shape(50_000, 5_000, 64, 10),
    "food101n": Shape(310_009, 25_250, 224, 101),
}


@dataclass(frozen=True)
class Estimate:
    """Of some runs: their number, seconds of one after the other, how many go at a time, and bytes."""

    runs: int
    seconds: float
    at_a_time: int
    bytes: float

    def __str__(self) -> str:
        if not self.runs:
            return "nothing is left to run"
        wall = self.seconds / min(self.at_a_time, self.runs)
        return (
            f"{self.runs} runs to do: about {duration(wall)} on this machine with {self.at_a_time} at a time, "
            f"and {self.bytes / 1e9:.2g} GB of disk; decoding of image files is not counted"
        )


@dataclass(frozen=True)
class Trial:
    """What a short run measured: seconds per sample trained on and evaluated, per run beside that, and bytes."""

    training: float
    evaluating: float
    beside: float
    bytes: float


def estimate(waiting: Sequence[Job], finished: Mapping[str, Mapping[str, Any]], where: ExecutorConfig) -> Estimate:
    """Of the runs that wait. A finished run of another column, of the same kind and length, tells better than a trial.

    Methods count as networks x views times cross-entropy, which is too little for those with phases of their own.
    """
    trials: dict[Any, Trial] = {}
    known = {_kind(name): float(summary["seconds"]) for name, summary in finished.items()}
    seconds = size = 0.0
    for job in waiting:
        expected, taken = _expected(job.config, trials, where)
        seconds += known.get(_kind(job.name), expected)
        size += taken
    return Estimate(len(waiting), seconds, where.at_a_time, size)


def _kind(name: str) -> str:
    """The name of a run without its column and its seed."""
    return name.rpartition("/")[2].rpartition("-s")[0]


def _expected(config: RunConfig, trials: dict[Any, Trial], where: ExecutorConfig) -> tuple[float, float]:
    shape = shape_of(config)
    own = _trial(config, shape, trials, where)
    plain = _trial(config.replace(optimizer="sgd", optimizer_options={}), shape, trials, where)
    warmup = config.warmup_epochs / config.epochs if config.sharpness_aware else 0.0
    method = create_method(config.method, **config.method_options)
    work = method.networks * max(1, len(method.views))
    per_sample = work * (warmup * plain.training + (1 - warmup) * own.training)
    looked_at = shape.test + shape.train / config.evaluate_train_every
    seconds = config.epochs * (shape.train * per_sample + looked_at * method.networks * own.evaluating) + own.beside
    return seconds, method.networks * own.bytes + _BYTES_OF_A_SAMPLE * shape.train


def shape_of(config: RunConfig) -> Shape:
    """Of the data of a cell, without reading it."""
    if config.data in _SHAPES:
        return _SHAPES[config.data]
    part = config.data_options
    channels = 1 if part.get("of") == "digits" else 3
    return Shape(
        part.get("train", 50_000), part.get("test", 10_000), part.get("side", 32), part.get("classes", 10), channels
    )


def _trial(config: RunConfig, shape: Shape, trials: dict[Any, Trial], where: ExecutorConfig) -> Trial:
    key = (config.model, repr(config.model_options), config.batch_size, config.optimizer, shape.side, shape.classes)
    if key not in trials:
        trials[key] = _measure(config, shape, threads_each(where.at_a_time))
    return trials[key]


def _measure(config: RunConfig, shape: Shape, threads: int) -> Trial:
    assert config.batch_size is not None
    batch = config.batch_size if shape.side <= _SMALL_SIDE else _FEW
    random = np.random.default_rng(0)
    count = _BATCHES * batch

    def images(number: int) -> Any:
        return random.integers(256, size=(number, shape.side, shape.side, shape.channels), dtype=np.uint8)

    labels = np.arange(count) % shape.classes
    dataset = from_arrays(
        images(count),
        labels,
        x_test=images(count),
        y_test=labels,
        classes=[str(number) for number in range(shape.classes)],
        allow_empty=True,
    )
    short = config.replace(
        data="digits",
        data_options={},
        data_root=None,
        noise=None,
        rate=None,
        flip_ratio=0.4,
        method="ce",
        method_options={},
        pretrained=False,
        warmup=0.0,
        epochs=_EPOCHS,
        batch_size=batch,
        evaluate_train_every=1,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(1 if is_small(short) else threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            summary = train(short, Path(folder) / "trial", dataset=dataset, console=False)
            whole = time.perf_counter() - began
            lines = (Path(folder) / "trial" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    finally:
        torch.set_num_threads(before)
    last = json.loads(lines[-1])
    return Trial(
        training=last["train_seconds"] / count,
        evaluating=(last["seconds"] - last["train_seconds"]) / (2 * count),
        beside=whole - summary["seconds"],
        bytes=size,
    )
