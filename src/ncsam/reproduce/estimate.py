"""Estimate how long the runs of a table will take on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ncsam._text import format_duration
from ncsam.engine import RunConfig
from ncsam.engine.forecast import random_batch, step_seconds, training_seconds
from ncsam.jobs import ExecutorConfig, Job
from ncsam.jobs.local import threads_each

_TIMED = 32 * 32**2  # pixels of the timed batch, at least 8 images, unless images are small; time grows with pixels
_SMALL_SIDE = 16


@dataclass(frozen=True)
class Shape:
    """The shape of a dataset as a model sees it.

    Attributes:
        train: number of training images.
        test: number of test images.
        side: height and width of the images, in pixels.
        classes: number of classes.
        channels: color channels.
    """

    train: int
    test: int
    side: int
    classes: int
    channels: int = 3


_SHAPES = {
    "cifar10": Shape(50_000, 10_000, 32, 10),
    "cifar10n": Shape(50_000, 10_000, 32, 10),
    "cifar100": Shape(50_000, 10_000, 32, 100),
    "tiny_imagenet": Shape(100_000, 10_000, 64, 200),
    "animal10n": Shape(50_000, 5_000, 64, 10),
    "food101n": Shape(310_009, 25_250, 224, 101),
}


@dataclass(frozen=True)
class Estimate:
    """The expected time of some runs.

    Attributes:
        runs: number of runs.
        seconds: time of all runs, one after the other.
        at_a_time: number of runs in parallel.
    """

    runs: int
    seconds: float
    at_a_time: int

    def __str__(self) -> str:
        if not self.runs:
            return "nothing is left to run"
        wall = self.seconds / min(self.at_a_time, self.runs)
        return f"{self.runs} runs to do: roughly {format_duration(wall)} on this machine, {self.at_a_time} at a time"


def estimate(waiting: Sequence[Job], finished: Mapping[str, Mapping[str, Any]], where: ExecutorConfig) -> Estimate:
    """Estimate the time of unfinished runs: that of a finished run of the same kind, else from a few timed steps.

    Args:
        waiting: the unfinished runs.
        finished: summaries of the finished runs, by name.
        where: where the runs are executed, and how many in parallel.
    """
    known = {_kind(name): float(summary["seconds"]) for name, summary in finished.items()}
    steps: dict[Any, float] = {}
    seconds = 0.0
    # more threads than a run has would wait for each other on a busy machine, for hundreds of times as long
    with _threads(threads_each(where.at_a_time)):
        for job in waiting:
            if _kind(job.name) not in known:
                known[_kind(job.name)] = _expected(job.config, steps)
            seconds += known[_kind(job.name)]
    return Estimate(len(waiting), seconds, where.at_a_time)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _kind(name: str) -> str:
    """The name of a run without its column and its seed."""
    return name.rpartition("/")[2].rpartition("-s")[0]


def _expected(config: RunConfig, steps: dict[Any, float]) -> float:
    shape = shape_of(config)
    assert isinstance(config.batch_size, int)
    key = (config.model, repr(config.model_options), config.batch_size, shape)
    if key not in steps:
        large = shape.side > _SMALL_SIDE
        count = min(max(8, _TIMED // shape.side**2), config.batch_size) if large else config.batch_size
        steps[key] = _step(config, shape, count) * config.batch_size / count
    on_train = shape.train / config.evaluate_train_every if config.evaluate_train_every else 0.0
    return training_seconds(config, steps[key], shape.train, shape.test + on_train)


def _step(config: RunConfig, shape: Shape, count: int) -> float:
    inputs, labels = random_batch((count, shape.channels, shape.side, shape.side), shape.classes)
    if config.model == "mlp":
        options = {"in_features": shape.channels * shape.side**2, **config.model_options}
        config = config.replace(model_options=options)
    return step_seconds(config, inputs, labels, shape.classes, shape.channels)


def shape_of(config: RunConfig) -> Shape:
    """Return the shape of a cell's data without reading it.

    Args:
        config: the configuration of the cell's run.
    """
    if config.data in _SHAPES:
        return _SHAPES[config.data]
    part = config.data_options
    channels = 1 if part.get("of") == "digits" else 3
    return Shape(
        part.get("train", 50_000), part.get("test", 10_000), part.get("side", 32), part.get("classes", 10), channels
    )
