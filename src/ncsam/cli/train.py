"""`ncsam train`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from ncsam.cli.failures import can_skip_damaged
from ncsam.cli.options import ConfigCommand, config_options, default_out, echo_config, resolve
from ncsam.cli.output import say
from ncsam.cli.paths import Written
from ncsam.cli.results import show_summary
from ncsam.engine import train as run_training
from ncsam.engine.out_of_fold import check_folds, find_label_issues_cv
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder

EPILOG = """\b
Examples:
  ncsam train digits --noise symmetric --rate 0.4 --out runs/first
  ncsam train photos/ --preset recommended --out runs/photos
  ncsam train photos/ --optimizer ncsam --flip-ratio auto --warmup auto --model resnet18
  ncsam train digits --noise pairflip --rate 0.4 --rho auto --optimizer-options compensation=relative,sign=-1
  ncsam train table.csv --method mixup --optimizer sam --rho 0.1
  ncsam train cifar10 --preset cifar10-symmetric --rate 0.4 --data-root data --download
  ncsam train --config runs/first/config.yaml --seed 2 --out runs/second

A run that was stopped goes on where it stopped: give the same command again.
"""


@click.command(cls=ConfigCommand, epilog=EPILOG)
@config_options()
@click.option("--out", type=Written(folder=True), help="run folder [runs/DATA-...-sSEED]")
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help="train this many times more, each time with a part of the samples held out, so that every label is judged "
    "by a network that never saw it",
)
@click.option("--dry-run", is_flag=True, help="print the resolved configuration and what would be done")
@click.option("--quiet", is_flag=True, help="no progress, only the result")
@click.pass_context
def train(ctx: click.Context, /, out: Path | None, folds: int | None, dry_run: bool, quiet: bool, **_: Any) -> None:
    """Train a network on DATA, whose labels may be wrong.

    DATA is a known name (`ncsam data list`), a folder with one sub-folder of images per class, a table of paths,
    texts or numbers with a label (.csv, .tsv, .parquet), .tar shards, or an .npz file of arrays. The run folder gets
    the configuration, metrics per epoch, a summary, the most suspicious labels, and checkpoints.
    """
    config = resolve(ctx)
    if folds is not None and config.fold is not None:
        raise click.UsageError(f"--folds {folds} wants a run on all samples, and --fold {config.fold} holds some out.")
    folder = out or default_out(config)
    if dry_run:
        echo_config(config, [config])
        say(f"# {what_would_be_done(folder)}")
        if folds is not None:
            say(f"# then {folds} runs in {folder / 'folds'}, each with a part held out; finished ones stay")
        return
    with can_skip_damaged():
        if folds is not None:
            check_folds(config, folds)
        run_training(config, folder, console=not quiet, command=shlex.join(ctx.meta["ncsam.command"]))
        if folds is not None:
            find_label_issues_cv(folder, folds, console=not quiet, named=config.to_dict())
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
    return f"{folder}: would go on after {len(run.metrics)} of {run.epochs} epochs"
