"""`ncsam review`."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from ncsam._errors import need
from ncsam.cli.main import MISTAKE, Failure
from ncsam.cli.options import RunPath
from ncsam.runs.reader import RunFolder

EPILOG = """\b
Examples:
  ncsam review runs/first
  ncsam review runs/first --reviewer Ada --no-open
  ncsam review runs/first --port 8123
  ncsam review runs/auto --for model-selection

Every decision is saved immediately (review.jsonl in the run folder). Stop with Ctrl-C; rerun the command to continue.
Then: ncsam clean runs/first --out cleaned.csv, or ncsam auto DATA --verified runs/auto
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=RunPath())
@click.option(
    "--for",
    "purpose",
    type=click.Choice(["label-issues", "model-selection"]),
    default="label-issues",
    show_default=True,
    help="review likely label issues, or samples that distinguish good models",
)
@click.option("--reviewer", help="name of the reviewer [the last one]")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="port on 127.0.0.1; 0 for a free one [0]")
@click.option("--open/--no-open", "open_page", default=True, help="open the page in the browser [open]")
def review(run: Path, purpose: str, reviewer: str | None, port: int, open_page: bool) -> None:
    """Review the label issues of RUN on a local page: accept the suggestion, keep the label, or choose another class.

    With --for model-selection, the page shows samples on which good candidates disagree, ten at a time, and estimates
    the share of wrong labels and the accuracy on true labels, with intervals.

    The page is served on this machine only, at an address with a random token, and makes no external requests.
    """
    need("starlette", "review", "the review page")
    need("uvicorn", "review", "the review page")
    from ncsam.review.serve import serve

    if not RunFolder.read(run).finished:
        raise Failure(f"{run} is not finished: a run writes its label issues when it ends", MISTAKE)

    def ready(address: str) -> None:
        click.echo(f"{address}\nPress Ctrl-C to stop; all decisions are saved.")
        if open_page:
            click.launch(address)

    serve(run, port=port, reviewer=reviewer, ready=ready, purpose=purpose)
    if purpose == "model-selection":
        data = RunFolder.read(run).config.get("data")
        click.echo(f"next: ncsam auto {shlex.quote(str(data))} --verified {shlex.quote(str(run))} --out {run}-verified")
    else:
        click.echo(f"next: ncsam clean {run} --out cleaned.csv")
