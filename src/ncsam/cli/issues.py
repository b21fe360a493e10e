"""`ncsam issues`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from ncsam.cli.failures import MISTAKE, Failure
from ncsam.cli.options import method_option, model_option
from ncsam.cli.output import as_csv, say, show_table
from ncsam.data.modalities.text import shortened
from ncsam.issues.table import trust_sentence
from ncsam.runs.reader import Run, class_name

_TEXT = 80  # characters of a text that are shown
EPILOG = """\b
Examples:
  ncsam issues runs/first --top 50
  ncsam issues runs/first --folds 5 --top 100
  ncsam issues runs/first --top 0 --csv > doubtful.csv
  ncsam issues runs/first --top 100 --json
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--top", type=click.IntRange(0, sys.maxsize), default=20, show_default=True, help="how many; 0 for all")
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    help="train RUN's configuration this many times more, each time with a part of the samples held out, and judge "
    "every label by a network that never saw it; goes on where it was stopped",
)
@click.option("--json", "as_json", is_flag=True, help="as JSON, with all that is known of each")
@click.option("--csv", "to_csv", is_flag=True, help="as CSV, likewise")
@model_option
@method_option
def issues(
    run: Path, top: int, folds: int | None, as_json: bool, to_csv: bool, model: str | None, method: str | None
) -> None:
    """List the training samples of RUN whose label is the most doubtful, with the label it suggests instead.

    A last line says how many of those listed are probably wrong, and how often the suggestion is right; or why that
    cannot be known. With --folds it mostly can.
    """
    if as_json and to_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    if folds is not None:
        _judge(run, folds, console=not (as_json or to_csv), named={"model": model, "method": method})
    found = Run.read(run)
    rows = found.issue_rows(top or None)
    if not rows:
        raise Failure(f"{run} has no label_issues.csv yet; a run writes it when it ends", MISTAKE)
    rows = _named(found, rows)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif to_csv:
        click.echo(as_csv(rows), nl=False)
    else:
        _show(found, rows)


def _judge(run: Path, folds: int, *, console: bool, named: dict[str, Any]) -> None:
    from ncsam.engine.out_of_fold import find_label_issues_cv

    if not Run.read(run).finished:
        raise Failure(f"{run} is not finished: finish it first, by the command that began it", MISTAKE)
    find_label_issues_cv(run, folds, console=console, named=named)


def _named(run: Run, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with class names beside the class numbers, where names are known."""
    classes = run.classes
    labels = [key for key in ("observed", "suggested", "clean") if key in rows[0]] if classes else []
    return [{**row, **{f"{key}_name": class_name(classes, row[key]) for key in labels}} for row in rows]


def _show(run: Run, rows: list[dict[str, Any]]) -> None:
    labels = [key for key in ("observed", "suggested", "clean") if key in rows[0]]
    chances = [key for key in ("p_wrong", "p_suggested") if rows[0].get(key) is not None]
    shown = [key for key in ("path", "text") if key in rows[0]]
    head = [*labels, *shown, "index", "suspicion", *chances]
    lines = [
        [
            *(str(row.get(f"{key}_name", row[key])) for key in labels),
            *(shortened(str(row[key]), _TEXT) if key == "text" else str(row[key]) for key in shown),
            str(row["index"]),
            f"{row['suspicion']:.3f}",
            *(f"{row[key]:.2f}" for key in chances),
        ]
        for row in rows
    ]
    show_table(head, lines, left=len(head) - 2 - len(chances))
    auroc = run.summary.get("label_issues_auroc")
    if auroc is not None:
        say(f"AUROC of the suspicion against the clean labels: {auroc:.3f}")
    say(trust_sentence(rows, run.trust))
