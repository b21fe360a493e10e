"""`ncsam predict`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from ncsam._files import atomic_path
from ncsam.cli.main import BriefCommand, can_skip_damaged
from ncsam.cli.options import Readable, RunPath, Written, files_of, keep, method_option, model_option
from ncsam.cli.output import as_csv, say
from ncsam.run import Run

EPILOG = """\b
Examples:
  ncsam predict runs/first photo1.jpg photo2.jpg
  ncsam predict runs/first new-photos/ --out predictions.csv
  ncsam predict runs/first images.npz --top 3 --json
  ncsam predict runs/reviews new-reviews.csv
"""


@click.command(cls=BriefCommand, epilog=EPILOG, rare=frozenset({"model", "method"}))
@click.argument("run", type=RunPath())
@click.argument("inputs", nargs=-1, required=True, type=Readable(folders=True))
@click.option("--out", type=Written(), help="file to write (.csv or .json) [screen]")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of CSV")
@click.option("--top", type=click.IntRange(min=1), default=1, show_default=True, help="classes to list per sample")
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="samples per batch")
@click.option("--skip-damaged", is_flag=True, help="skip image files that cannot be read, and list them")
@click.option("--workers", default=0, show_default=True, help="processes that decode image files")
@model_option
@method_option
def predict(
    run: Path,
    inputs: Sequence[Path],
    out: Path | None,
    as_json: bool,
    top: int,
    batch_size: int,
    skip_damaged: bool,
    workers: int,
    model: str | None,
    method: str | None,
) -> None:
    """Classify INPUTS with the last checkpoint of RUN.

    INPUTS are of the same kind as the training data: image files or folders, tables with the same columns, tables of
    texts or .txt files with one text per line, or an .npz with an array x (nested arrays: x.NAME). A run on embeddings
    also takes the original images or texts.

    Prints one row per sample: its source, the beginning of a text, the predicted label and its probability.
    """
    keep([*inputs, *files_of(run)], out)
    trained = Run(run, named={"model": model, "method": method})
    with can_skip_damaged():
        found = trained.predict(list(inputs), batch_size=batch_size, workers=workers, skip_damaged=skip_damaged)
    for each in found.skipped:
        say(f"left out: {each}", err=True)
    rows = found.top(top)
    text = json.dumps(rows, indent=2) + "\n" if as_json or (out and out.suffix == ".json") else as_csv(rows)
    if out is None:
        click.echo(text, nl=False)
        return
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    say(str(out))
