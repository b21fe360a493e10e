"""Side-by-side timing: candidates take turns within one run, so that a noisy machine disturbs all of them alike."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ncsam._files import atomic_path


def nothing() -> None:
    """No preparation."""


@dataclass(frozen=True)
class Candidate:
    """What to time, and what to put in place before each turn, untimed."""

    run: Callable[[], object]
    prepare: Callable[[], object] = nothing


def take_turns(
    candidates: Mapping[str, Candidate],
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each candidate in each of `rounds` rounds, after `warmup` untimed ones.

    By default of the processor: other processes disturb them less. With several threads they are the sum over threads.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(warmup + rounds):
        for name, candidate in candidates.items():
            candidate.prepare()
            start = clock()
            candidate.run()
            if turn >= warmup:
                seconds[name].append(clock() - start)
    return seconds


def ratio(times: list[float], others: list[float]) -> float:
    """Median over the rounds of the ratio within a round: what disturbs a whole round cancels."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def parser(description: str) -> argparse.ArgumentParser:
    """The two options that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--quick", action="store_true", help="fewer rounds, under 40 seconds")
    options.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    return options


def arguments(description: str) -> argparse.Namespace:
    """What was asked of a benchmark that has no other options."""
    return parser(description).parse_args()


def table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print rows of figures under one title, three digits each."""
    columns = list(next(iter(rows.values())))
    width = max(len(name) for name in rows)
    print(f"\n{title}\n" + " " * width + "".join(f"  {c:>14}" for c in columns))
    for name, figures in rows.items():
        print(f"{name:<{width}}" + "".join(f"  {figures[c]:>14.3f}" for c in columns))


def write_json(path: str | None, figures: Mapping[str, object]) -> None:
    """Write the figures, if a file was asked for."""
    if path:
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps(figures, indent=2) + "\n")
