"""`ncsam reproduce`: the paper's tables, ours beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ncsam.cli.executor_options import CLUSTER, executor_options
from ncsam.cli.main import FAILED, BriefCommand, Failure, WholeGroup
from ncsam.cli.options import Listed, Seeds, Written, settings_option
from ncsam.cli.output import say, show_table
from ncsam.jobs import ExecutorConfig, check_size, split_finished
from ncsam.reproduce.results import METRICS, Filled
from ncsam.reproduce.run import Plan
from ncsam.reproduce.run import reproduce as run_tables
from ncsam.reproduce.run import show as show_tables
from ncsam.reproduce.scales import SCALES, Setting
from ncsam.reproduce.sheet import to_markdown
from ncsam.reproduce.tables import GROUPS, TABLES, choose
from ncsam.reproduce.words import sheet

EPILOG = """\b
Examples:
  ncsam reproduce list
  ncsam reproduce table2 --scale small --rows sgd,sam --columns cifar10-40
  ncsam reproduce table1 --scale paper --data-root data --dry-run
  ncsam reproduce curves --scale small --data cifar10=cifar10_part.npz
  ncsam reproduce show runs/reproduce-small

Tables of one scale share a folder and runs. Finished cells are not run again.
"""
_scale = click.option(
    "--scale", type=click.Choice(SCALES), default="small", help="the paper's setting, or less [small]"
)
_out = click.option("--out", type=Written(folder=True), help="folder of runs and tables [runs/reproduce-SCALE]")
_metric = click.option("--metric", type=click.Choice(METRICS), help="metric to compare [last5]")
#: The options of the tables that `--help` leaves to `--help-all`.
_RARE = CLUSTER | {"stand_in", "images", "augment", "width", "epochs", "metric", "jobs"}


@click.group(cls=WholeGroup, epilog=EPILOG)
def reproduce() -> None:
    """Run a table of the paper, its ablations or curves, next to the published numbers."""


@reproduce.command("list", epilog="\b\nExample:\n  ncsam reproduce list")
def list_tables() -> None:
    """List the tables with their columns and rows."""
    rows = [[t.name, t.title, ",".join(c.name for c in t.columns), str(len(t.cells))] for t in TABLES.values()]
    show_table(["name", "what", "columns", "cells"], rows, left=3)
    for name, table in TABLES.items():
        say(f"rows of {name}: {','.join(row.name for row in table.rows)}")
    for name, members in GROUPS.items():
        say(f"{name}: {', '.join(members)}")


def _tables(name: str) -> Callable[..., None]:
    """What the command of this name does."""

    def command(
        scale: str,
        rows: list[str] | None,
        columns: list[str] | None,
        seeds: int | list[int],
        data: dict[str, Any],
        stand_in: str | None,
        data_root: str | None,
        images: int | None,
        augment: str | None,
        width: int | None,
        epochs: int | None,
        metric: str | None,
        where: ExecutorConfig,
        out: Path | None,
        dry_run: bool,
    ) -> None:
        tables = choose(name, rows, columns)
        named = {key: str(value) for key, value in data.items()}
        setting = Setting(scale, named, stand_in, data_root, images, augment, width, epochs)
        check_size(seeds, sum(len(table.cells) for table in tables))
        listed = list(range(1, seeds + 1)) if isinstance(seeds, int) else seeds
        plan = Plan(tables, setting, listed, out or Path("runs") / f"reproduce-{scale}")
        done, waiting = split_finished(plan.jobs)
        say(f"{len(plan.jobs)} runs in {plan.out}, {len(done.summaries)} of them finished")
        for dataset in dict.fromkeys(column.dataset for table in tables for column in table.columns):
            source = setting.source(dataset)
            say(f"{dataset}: {source.label}{' (stands in for it)' if source.stand_in else ''}")
        if not dry_run:
            plan.check(where)
        say(str(plan.estimate(where)))
        if dry_run:
            for job in waiting:
                say(f"# {job.out}")
            return
        filled, done = run_tables(plan, where, metric=metric, say=say)
        _print(filled, plan.out)
        if done.errors:
            failed = [f"{run}: {error}" for run, error in done.errors.items()]
            raise Failure("\n  ".join([f"{len(failed)} runs failed", *failed]), FAILED)

    return command


def _print(tables: list[Filled], folder: Path) -> None:
    for each in tables:
        if each.columns:
            say(f"\n{to_markdown(sheet(each))}")
            say(f"files: {folder / each.table.name}.md, .tex, .html, .csv")


def _add(name: str, about: str) -> None:
    command: Callable[..., Any] = _tables(name)
    command.__doc__ = about
    options: list[Callable[..., Any]] = [
        _scale,
        click.option("--rows", type=Listed(), help="only these rows, comma-separated; see `ncsam reproduce list`"),
        click.option("--columns", type=Listed(), help="only these columns, comma-separated"),
        click.option("--seeds", type=Seeds(), default=1, help="how many, or a comma-separated list [1]"),
        settings_option("--data", help="a file or folder for a dataset: cifar10=part.npz"),
        click.option("--stand-in", metavar="DATA", help="for datasets that are not there, below paper scale [digits]"),
        click.option("--data-root", metavar="FOLDER", help="folder of the named datasets"),
        click.option("--images", type=click.IntRange(min=1), help="training images of a cell [the scale's]"),
        click.option("--augment", metavar="NAME", help="augmentation: none, paper, ... [the scale's]"),
        click.option("--width", type=int, metavar="N", help="width of the network of the medium scale [32]"),
        click.option("--epochs", type=int, metavar="N", help="epochs of a run [the scale's]"),
        _metric,
        executor_options,
        _out,
        click.option("--dry-run", is_flag=True, help="only print the plan, with time and disk space"),
    ]
    for option in reversed(options):
        command = option(command)
    example = f"\b\nExample:\n  ncsam reproduce {name} --scale small --seeds 3 --dry-run"
    reproduce.command(name, cls=BriefCommand, epilog=example, rare=_RARE)(command)


for _name, _table in TABLES.items():
    _add(_name, f"{_table.title}.")
for _name, _members in GROUPS.items():
    _add(_name, f"The tables {', '.join(_members)}.")


@reproduce.command(epilog="\b\nExample:\n  ncsam reproduce show runs/reproduce-small table2 kappa")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("tables", nargs=-1, type=click.Choice([*TABLES, *GROUPS]), metavar="[TABLE]...")
@_metric
def show(folder: Path, tables: tuple[str, ...], metric: str | None) -> None:
    """Write tables from the finished runs in FOLDER, without running anything."""
    found = show_tables(folder, tables, metric=metric)
    if not found:
        raise click.UsageError(f"{folder} holds no finished run of {', '.join(tables) or 'a table'}")
    _print(found, folder)
