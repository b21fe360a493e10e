"""Time and memory of a training step as ratios to SGD's, on the model and batch that table 2 of the paper trains.

    python benchmarks/paper_cost.py --scale small

Candidates take turns; a ratio is the median over rounds of the ratio within a round. Memory is what torch held at most.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam import optim
from ncsam.engine import RunConfig
from ncsam.models import create
from ncsam.reproduce.estimate import Shape, shape_of
from ncsam.reproduce.scales import SCALES, Setting
from ncsam.reproduce.tables import TABLES

_ROUNDS = {"paper": 3, "small": 15, "smoke": 5}
_WARMUP = 2  # steps in which kernels are chosen and buffers made


@dataclass(frozen=True)
class Candidate:
    """An optimizer (none: the base alone), NCSAM's estimator, and after how many steps its work repeats itself."""

    title: str
    optimizer: str | None = None
    estimator: str | None = None
    period: int = 1


CANDIDATES = (
    Candidate("SGD"),
    Candidate("SAM", "sam"),
    Candidate("BSAM", "bsam"),
    Candidate("NCSAM", "ncsam", "exact"),
    Candidate("NCSAM, fused", "ncsam", "fused", period=20),
    Candidate("NCSAM, looksam", "ncsam", "looksam", period=5),
)


@dataclass(frozen=True)
class Cost:
    """Of a candidate: seconds of a step in each round, and the most bytes it held."""

    title: str
    seconds: list[float]
    bytes: int

    def time(self, base: Cost) -> float:
        """Median over rounds of the ratio within a round: what disturbs a whole round cancels."""
        return statistics.median(a / b for a, b in zip(self.seconds, base.seconds, strict=True))


def measure(setting: Setting) -> tuple[list[Cost], RunConfig]:
    """The candidates in turns, on the network and batch that table 2 trains on CIFAR-10 at this scale."""
    table = TABLES["table2"]
    config = setting.config(table.rows[-1], table.columns[0], 1)
    shape = shape_of(config)
    steps, costs = [], []
    for candidate in CANDIDATES:
        step, held = _watched(config, shape, candidate)
        steps.append(step)
        costs.append(Cost(candidate.title, [], held))
    clock = time.process_time if _alone() else time.perf_counter
    for _ in range(_ROUNDS[setting.scale]):
        for candidate, step, found in zip(CANDIDATES, steps, costs, strict=True):
            began = clock()
            for _ in range(candidate.period):
                step()
            found.seconds.append((clock() - began) / candidate.period)
    return costs, config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=SCALES, default="small")
    setting = Setting(parser.parse_args().scale)
    costs, config = measure(setting)
    shape = shape_of(config)
    print(
        f"{config.model}, batches of {config.batch_size}, {shape.side} x {shape.side} pixels, {_device()}, "
        f"{torch.get_num_threads()} thread(s), {_ROUNDS[setting.scale]} rounds"
    )
    print("| | time | memory |\n|---|---:|---:|")
    for each in costs:
        print(f"| {each.title} | {each.time(costs[0]):.2f} | {each.bytes / costs[0].bytes:.2f} |")


def _alone() -> bool:
    """Whether one thread of this process does all the work, whose own time then tells it whatever else goes on."""
    return _device() == "cpu" and torch.get_num_threads() == 1


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _watched(config: RunConfig, shape: Shape, candidate: Candidate) -> tuple[Callable[[], object], int]:
    """A candidate's step after two of them, and the most bytes that torch held for it until then."""
    gc.collect()  # what earlier candidates left must not be freed while this one is watched
    if _device() == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step = _begun(config, shape, candidate)
        return step, torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else its beginning and end are told on the terminal
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        step = _begun(config, shape, candidate)
    events: Any = watched.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return step, max(itertools.accumulate(change for _, change in changes))


def _begun(config: RunConfig, shape: Shape, candidate: Candidate) -> Callable[[], object]:
    """A new network that is trained on one batch: its step, made ready by some."""
    torch.manual_seed(0)
    size = (shape.channels, shape.side, shape.side)
    fitting: dict[str, Any] = {"in_features": shape.channels * shape.side**2} if config.model == "mlp" else {}
    network = create(config.model, shape.classes, shape.channels, **fitting, **config.model_options).to(_device())
    x = torch.randn(config.batch_size or 1, *size, device=_device())
    y = torch.randint(0, shape.classes, (len(x),), device=_device())
    base = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=config.momentum, weight_decay=config.weight_decay)

    def plain() -> None:
        base.zero_grad()
        F.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]
        base.step()

    def forward() -> Tensor:
        out: Tensor = network(x)
        return out

    step: Callable[[], object] = plain
    if candidate.optimizer is not None:
        own: dict[str, Any] = (
            {} if candidate.estimator is None else {"estimator": candidate.estimator, "ramp": "constant"}
        )
        optimizer = optim.get(candidate.optimizer)(base, rho=0.05, model=network, total_steps=1, **own)
        step = lambda: float(optimizer.step(forward, y))  # noqa: E731 - the number waits for an accelerator
    for _ in range(_WARMUP):
        step()
    return step


if __name__ == "__main__":
    main()
