"""`ncsam issues`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ncsam._errors import need
from ncsam._text import shortened
from ncsam.cli.main import BriefCommand
from ncsam.cli.options import RunPath, files_of, keep, method_option, model_option
from ncsam.cli.output import as_csv, say, show_table
from ncsam.issues.posterior import noise_rate_words
from ncsam.issues.table import LabelIssues
from ncsam.run import Run

EPILOG = """\b
Examples:
  ncsam issues runs/first --top 50
  ncsam issues runs/first --folds 5 --top 100
  ncsam issues runs/first --top 0 --csv > issues.csv
  ncsam issues runs/first --top 100 --json
  ncsam issues runs/first --top 500 --to label-studio --out tasks.json
"""


@click.command(cls=BriefCommand, epilog=EPILOG, rare=frozenset({"root", "model", "method"}))
@click.argument("run", type=RunPath())
@click.option(
    "--top",
    type=click.IntRange(0, 10**9),
    metavar="N",
    default=20,
    show_default=True,
    help="how many to list; 0 for all",
)
@click.option(
    "--folds",
    type=click.IntRange(min=2),
    metavar="K",
    help="cross-validate first; train RUN's configuration K more times, so that every label is judged by a model "
    "that never saw it; resumes if interrupted",
)
@click.option("--json", "as_json", is_flag=True, help="as JSON, with all columns")
@click.option("--csv", "to_csv", is_flag=True, help="as CSV, with all columns")
@click.option(
    "--to",
    "tool",
    type=click.Choice(["label-studio", "huggingface", "datalab", "csv"]),
    help="export to this tool, with --out; `ncsam clean --from` reads the decisions back",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="with --to: the file or folder to write; .json for label-studio, .npz for datalab, .csv, or a folder for "
    "huggingface",
)
@click.option("--root", default="/", show_default=True, help="label-studio: its LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT")
@model_option
@method_option
def issues(
    run: Path,
    top: int,
    folds: int | None,
    as_json: bool,
    to_csv: bool,
    tool: str | None,
    out: Path | None,
    root: str,
    model: str | None,
    method: str | None,
) -> None:
    """List the training labels of RUN that are most likely wrong, with a suggested label for each.

    The last line states how many of the listed labels are probably wrong, or why that cannot be estimated; with --folds
    it usually can.
    """
    if as_json and to_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    if (tool is None) != (out is None):
        raise click.UsageError("--to and --out belong together.")
    found = Run(run, named={"model": model, "method": method})
    listed = found.find_label_issues(folds, top=top or None, console=not (as_json or to_csv))
    if tool is not None and out is not None:
        keep(files_of(run), out)
        _send(found, listed, tool, out, root)
    elif as_json:
        click.echo(json.dumps(list(listed.rows()), indent=2))
    elif to_csv:
        click.echo(as_csv(list(listed.rows())), nl=False)
    else:
        _show(listed, found.summary)
        here = shlex.quote(str(run))
        apply = " --apply confident" if listed.reliable else ""
        say(f"next: ncsam review {here}; ncsam clean {here}{apply} --out cleaned.csv")


def _send(run: Run, issues: LabelIssues, tool: str, out: Path, root: str) -> None:
    """Write label issues for another tool."""
    if tool == "label-studio":
        issues.to_label_studio(out, root=root, model_version=f"ncsam {run.path.name}")
        say(str(out.with_suffix(".xml")))
    elif tool == "huggingface":
        made = issues.to_huggingface()
        need("datasets", None, "exchange with Hugging Face").disable_progress_bars()
        made.save_to_disk(str(out))
    elif tool == "datalab":
        run.to_datalab(out)
    else:
        issues.to_csv(out)
    if tool == "datalab":
        say(f"{out}: all labels")
    else:
        say(f"{out}: {len(issues):,} labels")
        say(f"next: ncsam clean {run.path} --from {tool} FILE --out cleaned.csv")


def _show(issues: LabelIssues, summary: Mapping[str, Any]) -> None:
    wanted = ("path", "text", "given_label", "suggested_label", "clean_label")
    words = [name for name in wanted if name in issues.columns]
    chances = ["p_wrong", "p_suggested"] if issues.reliable else []
    lines = [
        [
            *(shortened(str(row[name])) if name == "text" else str(row[name]) for name in words),
            str(row["index"]),
            f"{row['label_quality']:.3f}",
            *(f"{row[name]:.2f}" for name in chances),
        ]
        for row in issues.rows()
    ]
    show_table([*words, "index", "label_quality", *chances], lines, left=len(words))
    if (auroc := summary.get("label_issues_auroc")) is not None:
        say(f"AUROC of label_quality against the clean labels: {auroc:.3f}")
    if "noise_estimate" in summary:
        say(f"noise rate: {noise_rate_words(summary['noise_estimate'])}")
    say(issues.expectation())
