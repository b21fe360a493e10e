"""Run a table of the paper, from the plan to the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ncsam._errors import bad_value
from ncsam.jobs import Done, ExecutorConfig, Job, run_jobs, split_finished
from ncsam.report.figures import Group, curves_png
from ncsam.reproduce import words
from ncsam.reproduce.estimate import Estimate, estimate
from ncsam.reproduce.record import FILE, Record
from ncsam.reproduce.results import METRICS, Filled, fill, jobs, run_name
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.tables import TABLES, Table, find
from ncsam.runs import layout
from ncsam.runs.layout import refuse_other_work
from ncsam.runs.reader import find_runs

_CURVES = "curves"
_SEED = re.compile(r"-s(\d+)$")


@dataclass(frozen=True)
class Plan:
    """Tables to run.

    Args:
        tables: the tables, whole or in part.
        setting: the scale and the sources of the datasets.
        seeds: distinct seeds of each cell, 0 or larger.
        out: the folder of the runs.

    Raises:
        UsageError: if the seeds are empty, repeated or negative.
    """

    tables: Sequence[Table]
    setting: Setting
    seeds: Sequence[int]
    out: Path

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise bad_value(
                "seeds", list(self.seeds), "a number of seeds, 1 or larger, or a list of different seeds, 0 or larger"
            )

    @cached_property
    def jobs(self) -> list[Job]:
        """Every run once, in the order of the tables."""
        found = {job.name: job for table in self.tables for job in jobs(table, self.setting, self.seeds, self.out)}
        return list(found.values())

    @property
    def datasets(self) -> set[str]:
        return {column.dataset for table in self.tables for column in table.columns}

    def check(self, where: ExecutorConfig) -> None:
        """Raise an error for anything that would keep the runs from starting.

        Args:
            where: where the runs are executed.

        Raises:
            UsageError: if a dataset is missing, or the cluster or mirror cannot be reached.
            RunError: if the folder holds something else.
        """
        refuse_other_work(self.out, FILE)
        if where.on == "local":  # the nodes of a cluster may have what this machine has not
            self.setting.check(self.datasets)
        where.check()

    def estimate(self, where: ExecutorConfig) -> Estimate:
        """Estimate how long the unfinished runs will take on this machine.

        Args:
            where: where the runs are executed, and how many in parallel.
        """
        done, waiting = split_finished(self.jobs)
        return estimate(waiting, done.summaries, where)


def reproduce(
    plan: Plan, where: ExecutorConfig | None = None, *, metric: str | None = None, say: Callable[[str], None] = print
) -> tuple[list[Filled], Done]:
    """Train the unfinished runs and write the tables next to them.

    Call it again to resume after an interruption. A finished cell is not run again, even if another table contains it.
    If a cell failed, the table says why.

    Args:
        plan: the tables, scale, seeds and folder.
        where: where the runs are executed. `None`: the defaults of `ExecutorConfig`.
        metric: the metric to show, from `METRICS`. `None`: the default of each table.
        say: called with a line for each run that ends.

    Returns:
        The tables, and the summaries and errors of the runs.

    Raises:
        UsageError: if the metric is unknown, a dataset is missing, or the folder is of another scale or other data.
    """
    _check_metric(metric)
    where = where or ExecutorConfig()
    plan.check(where)
    for table in plan.tables:  # a damaged run must be reported before any file changes
        _curves(plan, table, split_finished(plan.jobs)[0])
    record = Record.claim(plan.out, plan.setting, plan.datasets)
    done = run_jobs(plan.jobs, where, say, lambda done: _write(plan, done, metric, record))
    return _finish(plan, done, metric, record), done


def show(folder: Path, names: Sequence[str] = (), *, metric: str | None = None) -> list[Filled]:
    """Write tables from the finished runs in a folder, with all rows and seeds, without training.

    Args:
        folder: a folder that `ncsam reproduce` wrote.
        names: names of tables or groups of tables. Empty: all.
        metric: the metric to show, from `METRICS`. `None`: the default of each table.

    Returns:
        The tables that have a cell in the folder.

    Raises:
        UsageError: if the metric or a table is unknown, or the folder has no record.
    """
    _check_metric(metric)
    record = Record.read(folder)
    wanted = {table.name: table for name in names or TABLES for table in find(name)}
    there = [table.part(None, record.columns(table)) for table in wanted.values()]
    seeds = sorted(
        {int(found[1]) for run in folder.glob(f"*/*/{layout.SUMMARY}") if (found := _SEED.search(run.parent.name))}
    )
    if not seeds:
        return []
    plan = Plan(
        [table for table in there if table.cells],
        Setting.of_sources(record.scale, record.sources, **record.changes),
        seeds,
        folder,
    )
    filled = _finish(plan, split_finished(plan.jobs)[0], metric, record)
    return [each for each in filled if each.columns]


def _check_metric(metric: str | None) -> None:
    if metric is not None and metric not in METRICS:
        raise bad_value("metric", metric, f"one of {', '.join(METRICS)}, or None for the default of the table")


def _finish(plan: Plan, done: Done, metric: str | None, record: Record) -> list[Filled]:
    """Write the figure, which reads every run, and then the tables, so that a damaged run leaves no new file behind."""
    for table in plan.tables:
        if groups := _curves(plan, table, done):
            curves_png(groups, plan.out / f"{_CURVES}.png", table.title)
    return _write(plan, done, metric, record)


def _write(plan: Plan, done: Done, metric: str | None, record: Record) -> list[Filled]:
    """Write the tables to their files, as far as they are filled."""
    filled = []
    for table in plan.tables:
        filled.append(fill(table, plan.setting, plan.seeds, done.summaries, metric, record.notes(), done.errors))
        if filled[-1].columns:
            image = plan.out / f"{_CURVES}.png"
            drawn = table.name == _CURVES and image.is_file()
            words.sheet(filled[-1], [image.name] if drawn else []).write(plan.out)
    return filled


def _curves(plan: Plan, table: Table, done: Done) -> list[Group]:
    """The finished runs of each row of the accuracy-curve figure; empty for other tables."""
    if table.name != _CURVES:
        return []
    groups = []
    for row, column in table.cells:
        names = [run_name(row, column, seed) for seed in plan.seeds]
        folders = [plan.out / name for name in names if name in done.summaries]
        runs = [run for run in find_runs(f for f in folders if (f / layout.CONFIG).is_file()) if run.metrics]
        groups += [Group(row.title, runs)] if runs else []
    return groups
