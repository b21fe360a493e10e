"""`ncsam predict`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam.cli.failures import can_skip_damaged
from ncsam.cli.options import method_option, model_option
from ncsam.cli.output import as_csv, say
from ncsam.cli.paths import Readable, Written, files_of, keep
from ncsam.data import Inputs, Split, check_images
from ncsam.embed import read_inputs
from ncsam.engine.predictor import load_predictor

EPILOG = """\b
Examples:
  ncsam predict runs/first photo1.jpg photo2.jpg
  ncsam predict runs/first new-photos/ --out predictions.csv
  ncsam predict runs/first images.npz --top 3 --json
  ncsam predict runs/reviews new-reviews.csv
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("inputs", nargs=-1, required=True, type=Readable(folders=True))
@click.option("--out", type=Written(), help="file to write (.csv or .json) [screen]")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of CSV")
@click.option("--top", type=click.IntRange(min=1), default=1, show_default=True, help="how many classes of each")
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="samples at a time")
@click.option("--skip-damaged", is_flag=True, help="leave out image files that cannot be read, and name them")
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

    INPUTS are what the run was trained on, also if it was trained on embeddings of it: image files, folders of them, or
    one .npz with an array x; tables with the same columns; tables of texts, or .txt files with one on each line;
    features in an .npz; nested arrays in an .npz with an array x.NAME for each.

    Gives a line per sample: where it is from, its label, and the probability of that label.
    """
    keep([*inputs, *files_of(run)], out)
    trained = load_predictor(run, model=model, method=method)
    names, found = read_inputs(trained.modality, list(inputs), workers=workers)
    if top > len(trained.classes):
        raise bad_value("top", top, f"there are {len(trained.classes)} classes")
    if skip_damaged:
        names, found = _readable(names, found)
    rows: list[dict[str, Any]] = []
    with can_skip_damaged():
        batches = list(trained.probabilities(found, batch_size=batch_size, workers=workers))
    for batch in batches:
        values, classes = batch.topk(top, dim=1)
        for chances, numbers in zip(values.tolist(), classes.tolist(), strict=True):
            row: dict[str, Any] = {"input": names[len(rows)]}
            for rank, (chance, number) in enumerate(zip(chances, numbers, strict=True), start=1):
                suffix = "" if rank == 1 else str(rank)
                row |= {f"label{suffix}": trained.classes[number], f"probability{suffix}": round(chance, 6)}
            rows.append(row)
    text = json.dumps(rows, indent=2) + "\n" if as_json or (out and out.suffix == ".json") else as_csv(rows)
    if out is None:
        click.echo(text, nl=False)
        return
    with atomic_path(out) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    say(str(out))


def _readable(names: list[str], inputs: Inputs) -> tuple[list[str], Inputs]:
    """Without the image files that cannot be read, which are named on standard error."""
    kept, bad = check_images(Split(inputs, np.zeros(len(names), dtype=np.int64)), skip=True)
    for each in bad:
        say(f"left out: {each}", err=True)
    if bad and not len(kept):
        raise bad_value("inputs", len(names), "at least one file that can be read")
    gone = {each.index for each in bad}
    return [name for number, name in enumerate(names) if number not in gone], kept.inputs
