"""`ncsam issues`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ncsam.cli.options import method_option, model_option
from ncsam.cli.output import as_csv, say, show_table
from ncsam.issues.table import LabelIssues
from ncsam.run import Run

_TEXT = 80  # characters of a text that are shown
EPILOG = """\b
Examples:
  ncsam issues runs/first --top 50
  ncsam issues runs/first --folds 5 --top 100
  ncsam issues runs/first --top 0 --csv > issues.csv
  ncsam issues runs/first --top 100 --json
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--top", type=click.IntRange(0, sys.maxsize), default=20, show_default=True, help="how many; 0 for all")
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help="cross-validate: train RUN's configuration this many more times, so that every label is judged by a model "
    "that never saw it; resumes if interrupted",
)
@click.option("--json", "as_json", is_flag=True, help="as JSON, with all columns")
@click.option("--csv", "to_csv", is_flag=True, help="as CSV, with all columns")
@model_option
@method_option
def issues(
    run: Path, top: int, folds: int | None, as_json: bool, to_csv: bool, model: str | None, method: str | None
) -> None:
    """List the training labels of RUN that are most likely wrong, with a suggested label for each.

    The last line states how many of the listed labels are probably wrong, or why that cannot be estimated; with --folds
    it usually can.
    """
    if as_json and to_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    found = Run(run, named={"model": model, "method": method})
    listed = found.find_label_issues(folds, top=top or None, console=not (as_json or to_csv))
    if as_json:
        click.echo(json.dumps(list(listed.rows()), indent=2))
    elif to_csv:
        click.echo(as_csv(list(listed.rows())), nl=False)
    else:
        _show(listed, found.summary.get("label_issues_auroc"))


def _show(issues: LabelIssues, auroc: float | None) -> None:
    wanted = ("path", "text", "given_label", "suggested_label", "clean_label")
    words = [name for name in wanted if name in issues.columns]
    chances = ["p_wrong", "p_suggested"] if issues.reliable else []
    lines = [
        [
            *(_shortened(row[name]) if name == "text" else str(row[name]) for name in words),
            str(row["index"]),
            f"{row['label_quality']:.3f}",
            *(f"{row[name]:.2f}" for name in chances),
        ]
        for row in issues.rows()
    ]
    show_table([*words, "index", "label_quality", *chances], lines, left=len(words))
    if auroc is not None:
        say(f"AUROC of label_quality against the clean labels: {auroc:.3f}")
    say(issues.expectation())


def _shortened(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _TEXT else f"{line[: _TEXT - 3]}..."
