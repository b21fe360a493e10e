"""`ncsam compare`."""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any

import click

from ncsam._files import atomic_path
from ncsam.cli.complete import known
from ncsam.cli.failures import FAILED, Failure
from ncsam.cli.kinds import Listed, Seeds
from ncsam.cli.options import ConfigCommand, config_options, default_out, echo_config, resolve
from ncsam.cli.output import say
from ncsam.cli.results import show_comparison
from ncsam.cli.train import what_would_be_done
from ncsam.cli.where import where_options
from ncsam.compare import compare as run_comparison
from ncsam.compare.batch import Where
from ncsam.compare.specs import folder_name, names_code, with_spec
from ncsam.engine.runs import COMMAND_FILE, find_runs
from ncsam.report.content import noise_text, write_report
from ncsam.report.figures import curves_png
from ncsam.report.groups import group_runs

EPILOG = """\b
Examples:
  ncsam compare digits --noise symmetric --rate 0.4 --optimizers sgd,sam,ncsam --seeds 3 --out runs/digits
  ncsam compare digits --noise symmetric --rate 0.4 --optimizers sam:rho=0.1,sam:rho=0.2,ncsam:kappa=0
  ncsam compare photos/ --methods ce,mixup --optimizers sgd,ncsam --seeds 1,2,3 --jobs 2
  ncsam compare photos/ --preset recommended --dry-run

Combinations that are finished are not run again; those that were stopped go on.
"""


@click.command(cls=ConfigCommand, epilog=EPILOG)
@config_options(leave_out=("method", "optimizer", "seed"))
@click.option(
    "--methods", type=Listed(), default="ce", shell_complete=known("methods"), help="learning methods, with commas [ce]"
)
@click.option(
    "--optimizers",
    type=Listed(),
    default="sgd,sam,ncsam",
    shell_complete=known("optimizers"),
    help="optimizers, with commas [sgd,sam,ncsam]",
)
@click.option("--seeds", type=Seeds(), default=3, help="how many, or which with commas [3]")
@where_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="folder of the runs [runs/compare-...]")
@click.option("--dry-run", is_flag=True, help="print the resolved configuration and what would be done")
@click.pass_context
def compare(
    ctx: click.Context,
    /,
    methods: list[str],
    optimizers: list[str],
    seeds: int | list[int],
    where: Where,
    out: Path | None,
    dry_run: bool,
    **_: Any,
) -> None:
    """Train all combinations of methods, optimizers and seeds on DATA, and compare them.

    A method or optimizer may carry options of its own, with colons: sam:rho=0.1:warmup=0.25, mixup:alpha=8. It may be
    a class of yours in a file of this folder: mine:MyMethod:alpha=8.

    Ends in a table of means and standard deviations, a picture of the curves, a report, and comparison.json.
    """
    config = resolve(ctx, names_code=any(map(names_code, [*methods, *optimizers])))
    folder = out or default_out(config, comparison=True)
    for method, optimizer in itertools.product(methods, optimizers):
        with_spec(with_spec(config, "method", method), "optimizer", optimizer)  # a mistake in it is said now
    if dry_run:
        echo_config(config)
        listed = range(config.seed, config.seed + seeds) if isinstance(seeds, int) else seeds
        for method, optimizer, seed in itertools.product(methods, optimizers, listed):
            say(f"# {what_would_be_done(folder / folder_name(method, optimizer, seed))}")
        return
    with atomic_path(folder / COMMAND_FILE) as temporary:
        temporary.write_text(shlex.join(ctx.meta["ncsam.command"]) + "\n", encoding="utf-8", errors="backslashreplace")
    rows = run_comparison(
        config,
        folder,
        methods=methods,
        optimizers=optimizers,
        seeds=seeds,
        workers=where.workers,
        on=where.on,
        resources=where.resources,
        mirror=where.mirror,
        say=say,
    )
    runs = [run for run in find_runs(folder / name for row in rows for name in row["runs"]) if run.metrics]
    if runs:
        show_comparison(rows, {name: text for run in runs for name, text in run.metric_names.items()})
        title = ", ".join(filter(None, [config.data, noise_text(config.to_dict())]))
        say(f"picture: {curves_png(group_runs(runs), folder / 'curves.png', title)}")
        page = write_report([run.folder for run in runs], folder / "report.html")[0]
        say(f"report: {page}\nnumbers: {folder / 'comparison.json'}")
    failed = [
        f"{row['method']}, {row['optimizer']}, seed {f['seed']}: {f['error']}" for row in rows for f in row["failed"]
    ]
    if failed:
        raise Failure("\n  ".join([f"{len(failed)} runs failed", *failed]), FAILED)
