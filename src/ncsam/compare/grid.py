"""All combinations of methods, optimizers and seeds, each in a run folder of its own; for their names see `specs`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ncsam._checks import choice
from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam._statistics import Spread
from ncsam.compare.on_ray import parse_resources
from ncsam.compare.on_ray import run_all as run_on_ray
from ncsam.compare.specs import folder_name, with_spec
from ncsam.compare.workers import Job, Result, available_cores, run_all, threads_each
from ncsam.engine import RunConfig, RunError
from ncsam.engine.folder import read_summary
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
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run what is not finished yet, write `comparison.json`, and return its rows.

    Args:
        config: what all runs share; each spec changes its copy.
        methods, optimizers: specs, as above.
        seeds: how many, counted from `config.seed`, or which.
        workers: how many runs at a time, each in a process with OMP_NUM_THREADS threads, or else an equal share of
            the cores; small networks have one. By default two where there are two cores or more.
        on: "local" processes, or tasks on a "ray" cluster (see `ncsam.compare.on_ray`).
        resources: what each run needs on Ray, such as "gpu=1,cpu=4".
        say: takes a line for each run that ends.

    A row holds `method`, `optimizer`, `seeds` (those that finished), for each metric of `engine.metrics.SUMMARY` the
    `mean` and the sample standard deviation `std` over them, `runs` (their folders) and `failed` (seed and error of the
    others).
    """
    folder = Path(out)
    runs = list(_combinations(config, methods, optimizers, seeds))
    workers = min(2, available_cores()) if workers is None else workers
    if workers < 1:
        raise bad_value("workers", workers, "a number of runs at a time from 1")
    choice("on", on, ("local", "ray"))
    if resources and on != "ray":
        raise bad_value("resources", resources, "only on ray")
    needed = parse_resources(resources)
    summaries: dict[str, dict[str, Any]] = {}
    errors: dict[str, str] = {}
    waiting = []
    for run in runs:
        try:
            finished = read_summary(folder / run.name, run.config)
        except RunError as error:
            errors[run.name] = str(error)
            continue
        if finished is None:
            waiting.append(Job(run.name, run.config, folder / run.name))
        else:
            summaries[run.name] = finished
    say(f"{len(runs)} runs, {len(summaries)} of them finished; {min(workers, max(1, len(waiting)))} at a time")
    began = time.monotonic()

    def ended(result: Result) -> None:
        if result.summary is None:
            errors[result.name] = result.error or "unknown"
        else:
            summaries[result.name] = result.summary
        done = len(summaries) + len(errors)
        say(f"[{done}/{len(runs)}] {result.name}: {_outcome(result)}  ({time.monotonic() - began:.0f} s)")
        _write(folder, _rows(runs, summaries, errors))

    if on == "ray":
        run_on_ray(waiting, workers, needed, ended)
    else:
        run_all(waiting, workers, threads_each(workers), ended)
    rows = _rows(runs, summaries, errors)
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


def _outcome(result: Result) -> str:
    if result.summary is None:
        return f"failed: {result.error}"
    name = next((name for name in ("last5", "last") if result.summary[name] is not None), None)
    return "finished" if name is None else f"{name} {result.summary[name]:.2f} %"


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    with atomic_path(folder / "comparison.json") as temporary:
        temporary.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
