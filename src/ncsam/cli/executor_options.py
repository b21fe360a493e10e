"""`--jobs`, `--on`, `--resources` and `--mirror`: where runs are done, for every command that does many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from ncsam.jobs.executor import ExecutorConfig

#: The options for clusters, which `--help` leaves to `--help-all`.
CLUSTER = frozenset({"on", "resources", "mirror"})


def on_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--on`, `--resources` and `--mirror` as they are."""
    command = click.option(
        "--mirror", default="", metavar="URL", help="keep copies of the runs at this URL: s3://bucket/runs, gs://..."
    )(command)
    command = click.option(
        "--resources",
        default="",
        metavar="NAME=AMOUNT,...",
        help="with --on ray: resources per run, such as gpu=1,cpu=4",
    )(command)
    return click.option("--on", type=click.Choice(["local", "ray"]), default="local", help="where to run [local]")(
        command
    )


def executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as one argument, `where`."""

    @click.option("--jobs", type=click.IntRange(min=1), help="runs at a time [as many as the cores allow]")
    @on_options
    @functools.wraps(command)
    def with_where(*args: Any, jobs: int | None, on: Any, resources: str, mirror: str, **options: Any) -> Any:
        return command(*args, where=ExecutorConfig(jobs, on, resources, mirror), **options)

    return with_where
