"""All combinations of methods, optimizers and seeds, each in a run folder of its own; for their names see `specs`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam._statistics import Spread
from ncsam.compare.batch import Where, do_all
from ncsam.compare.specs import folder_name, with_spec
from ncsam.compare.workers import Job
from ncsam.engine import RunConfig
from ncsam.engine.metrics import SUMMARY


def compare(
    config: RunConfig,
    out: str | os.PathLike[str],
    *,
    methods: Sequence[str] = ("ce",),
    optimizers: Sequence[str] = ("sgd", "sam", "ncsam"),
    seeds: int | Sequence[int] = 3,
    workers: int | None = None,
    on: Literal["local", "ray"] = "local",
    resources: str = "",
    mirror: str = "",
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run what is not finished yet, write `comparison.json`, and return its rows.

    Args:
        config: what all runs share; each spec changes its copy.
        methods, optimizers: specs, as above.
        seeds: how many, counted from `config.seed`, or which.
        workers, on, resources, mirror: see `ncsam.compare.batch.Where`.
        say: takes a line for each run that ends.

    A row holds `method`, `optimizer`, `seeds` (those that finished), for each metric of `engine.metrics.SUMMARY` the
    `mean` and the sample standard deviation `std` over them, `runs` (their folders) and `failed` (seed and error of the
    others).
    """
    folder = Path(out)
    runs = list(_combinations(config, methods, optimizers, seeds))
    jobs = [Job(run.name, run.config, folder / run.name) for run in runs]
    where = Where(workers, on, resources, mirror)
    done = do_all(jobs, where, say, lambda done: _write(folder, _rows(runs, done.summaries, done.errors)))
    rows = _rows(runs, done.summaries, done.errors)
    _write(folder, rows)
    return rows


@dataclass(frozen=True)
class _Run:
    name: str
    method: str
    optimizer: str
    config: RunConfig


def _combinations(
    config: RunConfig, methods: Sequence[str], optimizers: Sequence[str], seeds: int | Sequence[int]
) -> Iterator[_Run]:
    if isinstance(seeds, int):
        if seeds < 1:
            raise bad_value("seeds", seeds, "how many, from 1, or a list of seeds")
        seeds = range(config.seed, config.seed + seeds)
    for argument, specs in (("methods", methods), ("optimizers", optimizers), ("seeds", seeds)):
        if isinstance(specs, str) or not len(specs) or len(set(specs)) != len(specs):
            raise bad_value(argument, specs, "a list of at least one, none of them twice")
    for method in methods:
        for optimizer in optimizers:
            changed = with_spec(with_spec(config, "method", method), "optimizer", optimizer)
            for seed in seeds:
                yield _Run(folder_name(method, optimizer, seed), method, optimizer, changed.replace(seed=seed))


def _rows(runs: list[_Run], summaries: dict[str, dict[str, Any]], errors: dict[str, str]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[_Run]] = {}
    for run in runs:
        groups.setdefault((run.method, run.optimizer), []).append(run)
    return [_row(group, summaries, errors) for group in groups.values()]


def _row(group: list[_Run], summaries: dict[str, dict[str, Any]], errors: dict[str, str]) -> dict[str, Any]:
    finished = [run for run in group if run.name in summaries]
    first = group[0]
    row: dict[str, Any] = {
        "method": first.method,
        "optimizer": first.optimizer,
        "seeds": [run.config.seed for run in finished],
        "data": first.config.data,
        "noise": first.config.noise,
        "rate": first.config.rate,
        "epochs": first.config.epochs,
        "model": summaries[finished[0].name]["model"] if finished else first.config.model,
    }
    for metric in SUMMARY:
        row[metric] = _mean_and_deviation([summaries[run.name].get(metric) for run in finished])
    row["runs"] = [run.name for run in group]
    row["failed"] = [{"seed": run.config.seed, "error": errors[run.name]} for run in group if run.name in errors]
    return row


def _mean_and_deviation(values: list[float | None]) -> dict[str, float | None]:
    """Not known unless every seed knows it: rows would not be comparable."""
    spread = None if None in values else Spread.of(values)
    return {"mean": None, "std": None} if spread is None else {"mean": spread.mean, "std": spread.std}


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    with atomic_path(folder / "comparison.json") as temporary:
        temporary.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
