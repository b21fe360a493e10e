"""`ncsam train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from ncsam.api import train as run_training
from ncsam.cli.main import can_skip_damaged
from ncsam.cli.options import ConfigCommand, Written, config_options, default_out, echo_config, resolve
from ncsam.cli.output import approval, say, show_summary, yes_option
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder

EPILOG = """\b
Examples:
  ncsam train digits --noise symmetric --rate 0.4 --out runs/first
  ncsam train photos/ --out runs/photos
  ncsam train texts.csv --label-column topic --folds 5

Rerun the command to resume after an interruption.
"""


@click.command(cls=ConfigCommand, epilog=EPILOG, rare=frozenset({"yes"}))
@config_options()
@click.option("--out", type=Written(folder=True), help="run folder [runs/DATA-...-sSEED]")
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    metavar="K",
    help="cross-validate; train K more times, so that every label is judged by a model that never saw it",
)
@click.option("--dry-run", is_flag=True, help="only print the resolved configuration")
@yes_option
@click.option("--quiet", is_flag=True, help="no progress, only the result")
@click.pass_context
def train(
    ctx: click.Context, /, out: Path | None, folds: int | None, dry_run: bool, yes: bool, quiet: bool, **_: Any
) -> None:
    """Train a model on DATA, whose labels may be wrong.

    DATA is a known name (`ncsam data list`), a folder with one subfolder of images per class, a table of paths, texts
    or numbers with a label (.csv, .tsv, .parquet), .tar shards, or an .npz file of arrays.
    """
    config = resolve(ctx)
    if folds is not None and config.fold is not None:
        raise click.UsageError(f"--folds {folds} needs a run on all samples, but --fold {config.fold} holds some out.")
    folder = out or default_out(config)
    if dry_run:
        echo_config(config, [config])
        say(f"# {what_would_be_done(folder)}")
        if folds is not None:
            say(f"# then {folds} runs in {folder / 'folds'}, each with a part held out; finished ones stay")
        return
    shorter = "choose a smaller model or fewer epochs, or leave the model to `ncsam train`, which takes frozen features"
    approve = approval(yes, quiet=quiet, runs=1 + (folds or 0), shorter=shorter)
    with can_skip_damaged():
        command = shlex.join(ctx.meta["ncsam.command"])
        run_training(config=config, out=folder, folds=folds, console=not quiet, command=command, approve=approve)
    fabric = sys.modules.get("lightning_fabric.utilities")  # imported where there may be several processes
    if fabric is not None and getattr(fabric.rank_zero_only, "rank", None):  # of which one speaks
        return
    show_summary(RunFolder.read(folder))
    here = shlex.quote(str(folder))
    say(f"run folder: {folder}\nnext: ncsam issues {here}; ncsam report {here}")


def what_would_be_done(folder: Path) -> str:
    """What training would do with a folder, in a sentence."""
    if not (folder / layout.CONFIG).is_file():
        return f"{folder}: a new run would start"
    run = RunFolder.read(folder)
    if run.finished:
        return f"{folder}: finished; nothing would be done"
    return f"{folder}: would resume after {len(run.metrics)} of {run.epochs} epochs"
