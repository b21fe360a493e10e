"""`ncsam annotators`."""

from __future__ import annotations

import csv
from pathlib import Path

import click

from ncsam._files import atomic_path
from ncsam._text import path_cell
from ncsam.cli.options import Readable, Written, keep
from ncsam.cli.output import show_table

EPILOG = """\b
Examples:
  ncsam annotators answers.csv --out labels.csv
  ncsam annotators answers.csv --method dawid_skene --soft --out labels.csv

\b
Then, if the items are paths of images or texts:
  ncsam train labels.csv --out runs/first
Or at once, with the annotators in the report:
  ncsam train answers.csv --data-options join=dawid_skene --out runs/first
"""


@click.command(epilog=EPILOG)
@click.argument("answers", type=Readable())
@click.option(
    "--method",
    type=click.Choice(["majority", "dawid_skene"]),
    default="majority",
    show_default=True,
    help="how to aggregate; dawid_skene weights annotators by their estimated errors",
)
@click.option("--soft", is_flag=True, help="also write the probability of every class")
@click.option("--out", type=Written(), help="table to write (.csv)")
def annotators(answers: Path, method: str, soft: bool, out: Path | None) -> None:
    """Aggregate the ANSWERS of several annotators: one column per annotator, or one row per answer.

    Prints every annotator's estimated accuracy. The table has the item's column, label and agreement.
    """
    from ncsam.data.tables.annotators import ABSENT, join, read_annotations
    from ncsam.data.tables.columns import COLUMN_NAMES

    keep([answers], out)
    given = read_annotations(answers)
    found = join(given.answers, len(given.classes), method)
    counts = (given.answers != ABSENT).sum(axis=0)
    rows = [
        [name, f"{count:,}", f"{100 * accuracy:.1f}"]
        for name, count, accuracy in zip(given.annotators, counts.tolist(), found.accuracy.tolist(), strict=True)
    ]
    show_table(["annotator", "answers", "accuracy %"], rows)
    unanimous = float((found.agreement > 1 - 1e-9).mean()) if method == "majority" else None
    said = "" if unanimous is None else f"; unanimous on {100 * unanimous:.1f} %"
    click.echo(
        f"{len(given.items):,} items, {len(given.annotators):,} annotators, {len(given.classes):,} classes{said}"
    )
    if out is None:
        return
    paths = given.column.lower() in COLUMN_NAMES["path"]
    with atomic_path(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([given.column, "label", "agreement", *(f"p_{name}" for name in given.classes if soft)])
        for i, item in enumerate(given.items):
            chances = [f"{p:.4f}" for p in found.soft[i]] if soft else []
            writer.writerow(
                [
                    path_cell(item) if paths else item,
                    given.classes[found.labels[i]],
                    f"{found.agreement[i]:.4f}",
                    *chances,
                ]
            )
    click.echo(str(out))
