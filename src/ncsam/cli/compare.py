"""`ncsam compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from ncsam.api import compare as run_comparison
from ncsam.cli.executor_options import CLUSTER, executor_options
from ncsam.cli.main import FAILED, Failure, known
from ncsam.cli.options import (
    ConfigCommand,
    Listed,
    Seeds,
    Written,
    config_options,
    default_out,
    echo_config,
    resolve,
    resolved_by_data,
)
from ncsam.cli.output import say, show_comparison
from ncsam.cli.train import what_would_be_done
from ncsam.comparison.grid import planned
from ncsam.comparison.specs import names_code
from ncsam.jobs.executor import ExecutorConfig
from ncsam.report.content import noise_text
from ncsam.runs import layout

EPILOG = """\b
Examples:
  ncsam compare digits --noise symmetric --rate 0.4 --optimizers sgd,sam
  ncsam compare digits --optimizers sam:rho=0.1,sam:rho=0.2,ncsam:kappa=0
  ncsam compare photos/ --preset recommended --dry-run

Finished combinations are not run again; interrupted ones resume.
"""


@click.command(cls=ConfigCommand, epilog=EPILOG, rare=CLUSTER | {"jobs"})
@config_options(leave_out=("method", "optimizer", "seed"))
@click.option(
    "--methods",
    type=Listed(),
    default="ce",
    shell_complete=known("methods"),
    help="learning methods, comma-separated, or all [ce]",
)
@click.option(
    "--optimizers",
    type=Listed(),
    default="sgd,sam,ncsam",
    shell_complete=known("optimizers"),
    help="optimizers, comma-separated, or all [sgd,sam,ncsam]",
)
@click.option("--seeds", type=Seeds(), default=3, help="how many, or a comma-separated list [3]")
@executor_options
@click.option("--out", type=Written(folder=True), help="folder of the runs [runs/compare-...]")
@click.option("--dry-run", is_flag=True, help="only print the resolved configuration and the runs")
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    methods: list[str],
    optimizers: list[str],
    seeds: int | list[int],
    where: ExecutorConfig,
    out: Path | None,
    dry_run: bool,
    **_: Any,
) -> None:
    """Train all combinations of methods, optimizers and seeds on DATA, and compare.

    Options of one of them follow after colons: sam:rho=0.1:warmup=0.25, mixup:alpha=8, or mine:MyMethod:alpha=8 for
    your own class.

    Prints a table of means and standard deviations and writes curves, a report and comparison.json.
    """
    config = resolve(ctx, names_code=any(map(names_code, [*methods, *optimizers])))
    folder = out or default_out(config, comparison=True)
    wanted = planned(config, methods, optimizers, seeds)  # reports a mistake in any of them now
    one_seed = list({(run.method, run.optimizer): run.config for run in wanted}.values())
    if dry_run:
        echo_config(config, one_seed)
        for run in wanted:
            say(f"# {what_would_be_done(folder / run.name)}")
        return
    if where.on == "local":  # the nodes of a cluster may have what this machine has not
        resolved_by_data(config, one_seed)
    found = run_comparison(
        config=config,
        out=folder,
        methods=methods,
        optimizers=optimizers,
        seeds=seeds,
        workers=where.workers,
        on=where.on,
        resources=where.resources,
        mirror=where.mirror,
        console=True,
        command=shlex.join(ctx.meta["ncsam.command"]),
    )
    if found.runs:
        show_comparison(found.rows, found.metric_names)
        title = ", ".join(filter(None, [config.data, noise_text(config.to_dict())]))
        say(f"numbers: {folder / layout.COMPARISON}")
        say(f"curves: {found.plot(folder / 'curves.png', title=title)}")
        say(f"report: {found.report()}  (open it in a browser)")
    failed = [f"{each['method']}, {each['optimizer']}, seed {each['seed']}: {each['error']}" for each in found.failed]
    if failed:
        raise Failure("\n  ".join([f"{len(failed)} runs failed", *failed]), FAILED)
