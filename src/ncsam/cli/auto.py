"""`ncsam auto`."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any, Literal

import click

from ncsam.automl import auto as run_auto
from ncsam.automl.selection import METRICS, Metric
from ncsam.cli.executor_options import CLUSTER, on_options
from ncsam.cli.options import ConfigCommand, Written, config_options, default_out, resolve
from ncsam.cli.output import approval, say, show_table, yes_option
from ncsam.engine.config import RunConfig
from ncsam.issues.posterior import noise_rate_words
from ncsam.jobs.executor import ExecutorConfig

EPILOG = """\b
Examples:
  ncsam auto features.npz --out runs/auto
  ncsam auto features.npz --verified answers.csv
  ncsam auto features.npz --verified runs/auto --out runs/verified
  ncsam auto digits --noise symmetric --rate 0.4

Rerun the command to resume after an interruption.
"""
#: The options of a run that hold for every candidate. The rest are the candidates' own.
_SHARED = (
    *("data", "data_root", "data_options", "download", "noise", "rate", "noise_seed", "noise_options"),
    *("label_file", "label_column", "val_share", "model", "model_options", "pretrained", "seed"),
    *("precision", "accelerator", "workers"),
)
_THEIRS = [field.name for field in dataclasses.fields(RunConfig) if field.name not in _SHARED]
_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600}


def seconds_of(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A time such as 90s, 30m or 2h in seconds; a bare number is minutes."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if found is None or float(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a time such as 90s, 30m or 2h", ctx, param)
    return float(found[1]) * _UNITS[found[2] or "m"]


@click.command(cls=ConfigCommand, epilog=EPILOG, rare=CLUSTER | {"yes"})
@config_options(leave_out=_THEIRS)
@click.option("--out", type=Written(folder=True), help="run folder [runs/auto-DATA]")
@click.option(
    "--folds", type=click.IntRange(min=2), metavar="K", default=5, show_default=True, help="cross-validation folds"
)
@click.option(
    "--verified",
    metavar="FILE|RUN|COLUMN",
    help="verified labels; a CSV (index, label and, unless drawn uniformly, probability), a reviewed run, or a column "
    "of DATA",
)
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    default="auto",
    show_default=True,
    help="what predictions maximize; auto: balanced accuracy for tables with a rare class and verified labels",
)
@click.option("--budget", callback=seconds_of, metavar="TIME", help="time for training: 90s, 30m, 2h [no limit]")
@on_options
@yes_option
@click.option("--quiet", is_flag=True, help="no progress, only the result")
@click.pass_context
def auto(
    ctx: click.Context,
    /,
    out: Path | None,
    folds: int,
    budget: float | None,
    verified: str | None,
    metric: Metric,
    on: Literal["local", "ray"],
    resources: str,
    mirror: str,
    yes: bool,
    quiet: bool,
    **_: Any,
) -> None:
    """Find a classifier for DATA, whose labels may be wrong, without tuning anything.

    Cross-validates a portfolio of classifiers. Noisy labels do not show which of them is best, so the result is the
    recommended one; with a hundred verified labels (--verified) the candidates are combined. Writes a run folder for
    `predict`, `issues`, `report` and `export`, with all candidates in leaderboard.json.
    """
    config = resolve(ctx)
    if ctx.get_parameter_source("val_share") == click.core.ParameterSource.DEFAULT:
        config = config.replace(val_share=0.0)  # the folds hold out what is needed
    folder = out or default_out(config, comparison=True).with_name(f"auto-{Path(config.data).stem}")
    board = run_auto(
        config,
        folder,
        folds=folds,
        budget=budget,
        verified=verified,
        metric=metric,
        where=ExecutorConfig(on=on, resources=resources, mirror=mirror),
        say=(lambda text: None) if quiet else say,
        command=shlex.join(ctx.meta["ncsam.command"]),
        approve=approval(yes, quiet=True, shorter="limit it with --budget 30m"),
    )
    show(board)
    here = shlex.quote(str(folder))
    say(f"run folder: {folder}\nnext: ncsam issues {here}; ncsam report {here}; ncsam predict {here} NEW")


def show(board: dict[str, Any]) -> None:
    """The leaderboard, and what was chosen."""
    rows = [
        [
            ("* " if row["chosen"] else "  ") + row["name"],
            row["status"],
            *(
                _number(row, name)
                for name in ("noisy_accuracy", "standard_error", "noisy_balanced_accuracy", "noisy_auc")
            ),
            f"{row['seconds']:.1f}",
        ]
        for row in board["candidates"]
    ]
    show_table(["candidate", "status", "noisy accuracy", "+-", "balanced", "AUC", "seconds"], rows, left=2)
    chosen = board["chosen"]
    names = " and ".join(chosen["candidates"])
    what = f"a combination of {names}" if len(chosen["candidates"]) > 1 else names
    say(f"chosen (*): {what}: {chosen['noisy_accuracy']:.1f} +- {chosen['standard_error']:.1f} % of held-out labels")
    clean = board["clean_accuracy"]
    say(f"noise rate: {noise_rate_words(board['noise_rate'])}")
    if clean is None:
        say(
            "accuracy on true labels: cannot be determined without verified labels "
            "(ncsam review RUN --for model-selection)"
        )
    else:
        say(f"accuracy on true labels: {clean['estimate']:.1f} % ({clean['low']:.1f} to {clean['high']:.1f} %)")


def _number(row: dict[str, Any], name: str) -> str:
    return "" if row[name] is None else f"{row[name]:.1f}"
