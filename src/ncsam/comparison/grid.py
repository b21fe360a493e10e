"""Train all combinations of methods, optimizers and seeds, each in its own run folder. `specs` defines their names."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam._statistics import Spread
from ncsam.comparison.specs import check_combination, folder_name, with_spec
from ncsam.data.stored import load_dataset, save_dataset
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, RunError
from ncsam.engine.config import NETWORK, optimizer_names
from ncsam.engine.device import check_accelerator
from ncsam.engine.metrics import SUMMARY
from ncsam.issues.calibration import labels_sha256
from ncsam.jobs import Done, ExecutorConfig, Job, check_size, run_jobs, split_finished
from ncsam.methods import names as method_names
from ncsam.runs import layout
from ncsam.runs.layout import refuse_other_work
from ncsam.runs.writer import locked

_FILE = layout.COMPARISON
_LIST = "a list of one or more, without duplicates"


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
    dataset: DataSet | None = None,
    say: Callable[[str], None] = print,
    command: str | None = None,
) -> list[dict[str, Any]]:
    """Train every combination of methods, optimizers and seeds that is not finished yet, and write `comparison.json`.

    Invalid combinations are refused before anything is trained or written. If a run fails, the others continue.

    Args:
        config: options shared by all runs; each spec changes a copy.
        out: the folder of the runs.
        methods: specs of methods, such as `"elr"` or `"mixup:alpha=8"` (see `ncsam.comparison.specs`), or "all".
        optimizers: specs of optimizers, such as `"sgd"` or `"sam:rho=0.1"`, or "all".
        seeds: number of seeds, counted from `config.seed`, or a list of seeds; at most 10,000 runs in total.
        workers: number of runs in parallel (see `ncsam.jobs.ExecutorConfig`). `None`: two, or one on a single core.
        on: "local" or "ray".
        resources: resources that each run needs on Ray, such as "gpu=1,cpu=4".
        mirror: URL to copy the run folders to. Empty: no copies.
        dataset: data in memory, used instead of `config.data`. It is written once to `out/data.npz` for worker
            processes and later commands.
        say: called with a line for each run that ends.
        command: the shell command to record in the folder, for its report.

    Returns:
        One row per combination: `method`, `optimizer`, `seeds` (the finished ones), `mean` and sample standard
        deviation `std` for each metric of `engine.metrics.SUMMARY`, `runs` (their folders) and `failed` (seed and error
        of the others).

    Raises:
        UsageError: if a spec, the number of seeds or another option is invalid.
        RunError: if the folder is in use or holds something else.
    """
    folder = Path(out)
    where = ExecutorConfig(workers, on, resources, mirror)
    if dataset is not None:
        config = config.replace(data=str((folder / layout.DATA).resolve()), data_root=None)
    runs = planned(config, methods, optimizers, seeds)
    jobs = [Job(run.name, run.config, folder / run.name) for run in runs]
    if where.on == "local":  # the nodes of a cluster may have what this machine has not
        for accelerator in {run.config.accelerator for run in runs}:
            check_accelerator(accelerator)
    refuse_other_work(folder, _FILE)
    problems = split_finished(jobs)[0].errors
    if problems:
        raise RunError(next(iter(problems.values())))
    with locked(folder) as held:
        where.check()
        if dataset is not None:
            _store(dataset, folder / layout.DATA)
        if command is not None:
            with atomic_path(folder / layout.COMMAND) as temporary:
                temporary.write_text(command + "\n", encoding="utf-8", errors="backslashreplace")

        def write(done: Done) -> list[dict[str, Any]]:
            rows = _rows(runs, done.summaries, done.errors)
            held.check()
            with atomic_path(folder / _FILE) as temporary:
                temporary.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
            return rows

        return write(run_jobs(jobs, where, say, write))


def _store(dataset: DataSet, path: Path) -> None:
    """Write the data once. If the file exists, it must have the same labels."""
    if path.is_file():
        if labels_sha256(load_dataset(path).train.labels) != labels_sha256(dataset.train.labels):
            raise RunError(f"{path} contains other data: choose another folder")
    elif not save_dataset(path, dataset, most_bytes=None):
        raise bad_value("dataset", dataset.name, "arrays, texts or image files, or the path of the data")


@dataclass(frozen=True)
class Planned:
    """A run of a comparison.

    Attributes:
        name: name of its folder.
        method: spec of the method.
        optimizer: spec of the optimizer.
        config: all options.
    """

    name: str
    method: str
    optimizer: str
    config: RunConfig


def planned(
    config: RunConfig, methods: Sequence[str], optimizers: Sequence[str], seeds: int | Sequence[int]
) -> list[Planned]:
    """List the runs of a comparison.

    Args:
        config: options shared by all runs.
        methods: specs of methods, without duplicates.
        optimizers: specs of optimizers, without duplicates.
        seeds: number of seeds, counted from `config.seed`, or a list of seeds.

    Returns:
        The runs, grouped by method and then by optimizer.

    Raises:
        UsageError: for an unknown spec, a repeated one, or an invalid number of seeds.
    """
    methods, optimizers = _all_of(methods, method_names), _all_of(optimizers, optimizer_names)
    lists: dict[str, Any] = {"methods": methods, "optimizers": optimizers}
    if not isinstance(seeds, int):
        lists["seeds"] = seeds
    elif seeds < 1:
        raise bad_value("seeds", seeds, "a number of seeds, 1 or larger, or a list of seeds")
    for argument, specs in lists.items():
        if not isinstance(specs, Sequence) or isinstance(specs, str) or not specs:
            raise bad_value(argument, specs, _LIST)
    check_size(seeds, len(methods) * len(optimizers))
    for argument, specs in lists.items():
        if len(set(specs)) != len(specs):
            raise bad_value(argument, specs, _LIST)
        odd = next((each for each in specs if argument != "seeds" and not isinstance(each, str)), None)
        if odd is not None:
            raise bad_value(argument, odd, "names; a class of your own as 'module:Name', such as 'mine:BelowMean'")
    if config.model == "auto":  # methods and optimizers are for models that are trained by gradient steps
        config = config.replace(model=NETWORK)
    listed = range(config.seed, config.seed + seeds) if isinstance(seeds, int) else seeds
    runs = []
    for method, optimizer in itertools.product(methods, optimizers):
        changed = with_spec(with_spec(config, "method", method), "optimizer", optimizer)
        check_combination(changed)
        for seed in listed:
            runs.append(Planned(folder_name(method, optimizer, seed), method, optimizer, changed.replace(seed=seed)))
    return runs


def _all_of(specs: Sequence[str], names: Callable[[], Iterable[str]]) -> Sequence[str]:
    """The names of all, where that is what was asked for."""
    return list(names()) if specs == "all" or (isinstance(specs, list | tuple) and [*specs] == ["all"]) else specs


def _rows(runs: list[Planned], summaries: dict[str, dict[str, Any]], errors: dict[str, str]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[Planned]] = {}
    for run in runs:
        groups.setdefault((run.method, run.optimizer), []).append(run)
    return [_row(group, summaries, errors) for group in groups.values()]


def _row(group: list[Planned], summaries: dict[str, dict[str, Any]], errors: dict[str, str]) -> dict[str, Any]:
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
    """`None` unless every seed has a value: rows would not be comparable."""
    spread = None if None in values else Spread.of(values)
    return {"mean": None, "std": None} if spread is None else {"mean": spread.mean, "std": spread.std}
