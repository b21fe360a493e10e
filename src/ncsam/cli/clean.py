"""`ncsam clean`."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ncsam.cli.output import say, show_table
from ncsam.cli.paths import Written, files_of, keep
from ncsam.runs.reader import RunFolder

if TYPE_CHECKING:
    from ncsam.review.clean import Cleaned

EPILOG = """\b
Examples:
  ncsam clean runs/first --dry-run
  ncsam clean runs/first --out cleaned.csv
  ncsam clean runs/first --apply confident --threshold 0.95 --out cleaned.csv
  ncsam clean runs/first --folder cleaned/ --copy

\b
Then train again, on the table or on the folder:
  ncsam train cleaned.csv --out runs/second
"""


@click.command(epilog=EPILOG)
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=Written(), help="table to write (.csv; .npz for arrays)")
@click.option("--folder", type=Written(folder=True), help="new folder of links to the files, by class")
@click.option("--copy", is_flag=True, help="copies instead of links, with --folder")
@click.option(
    "--apply",
    type=click.Choice(["reviewed", "confident", "all"]),
    default="reviewed",
    show_default=True,
    help="what may change a label: reviewers alone; also suggestions that are probably right; or all suggestions",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    help="with --apply confident: the least probability that the suggestion is right",
)
@click.option("--dry-run", is_flag=True, help="print what would change, by class pair, and write nothing")
def clean(
    run: Path, out: Path | None, folder: Path | None, copy: bool, apply: str, threshold: float, dry_run: bool
) -> None:
    """Write the labels of RUN's data as they are after review. The data itself is never changed.

    A reviewer's word counts before any suggestion. The table has the columns path (or text, numbers), split, label,
    observed, source of the decision, and probability of the label; `ncsam train` takes it in place of the data. Of
    other data it has the index in place of the path, and goes to `ncsam train DATA --label-file`.
    """
    from ncsam.review.clean import cleaned

    if not dry_run and out is None and folder is None:
        raise click.UsageError("Say where to: --out FILE, --folder FOLDER, or --dry-run.")
    if copy and folder is None:
        raise click.UsageError("--copy goes with --folder.")
    if out is not None and out.suffix.lower() not in (".csv", ".npz"):
        raise click.UsageError(f"--out {out}: the file must end in .csv or .npz.")
    keep(files_of(run), out)
    found = cleaned(run, apply, threshold)
    written = [] if dry_run else _write(found, run, out, folder, copy)
    pairs = found.changes()
    if pairs:
        show_table(["given label", "new label", "samples"], [[a, b, f"{n:,}"] for a, b, n in pairs], left=2)
    changed = found.labels != found.given_label
    sources = Counter(source for source, moved in zip(found.source, changed, strict=True) if moved)
    why = ", ".join(f"{count:,} {source}" for source, count in sorted(sources.items())) or "none"
    would = "would change" if dry_run else "changed"
    say(f"{int(changed.sum()):,} of {len(changed):,} labels {would} ({why})")
    unseen = sum(sources.values()) - sources["reviewed"]
    if unseen:
        say(_expected(found, unseen, RunFolder.read(run).posterior))
    for line in written:
        say(line)


def _write(found: Cleaned, run: Path, out: Path | None, folder: Path | None, copy: bool) -> list[str]:
    """Write what is asked for; the lines that say so."""
    from ncsam.review.clean import write_arrays, write_folder, write_table

    lines = []
    if folder is not None:
        count = write_folder(found, folder, copy=copy)
        lines += [
            f"{folder}: {count:,} {'copies' if copy else 'links'}",
            f"next: ncsam train {shlex.quote(str(folder))}",
        ]
    if out is not None:
        option = (write_arrays if out.suffix.lower() == ".npz" else write_table)(found, out)
        data = [str(RunFolder.read(run).config["data"]), option] if option else []
        lines += [str(out), f"next: ncsam train {shlex.join([*data, str(out)])}"]
    return lines


def _expected(found: Cleaned, unseen: int, posterior: Mapping[str, Any]) -> str:
    """How many of the suggestions that nobody looked at are right, or a warning that it cannot be known."""
    from ncsam.issues.table import unreliable

    moved = found.labels != found.given_label
    chances = [
        p for p, source, new in zip(found.probability, found.source, moved, strict=True) if new and source != "reviewed"
    ]
    if any(math.isnan(chance) for chance in chances):
        return f"warning: nobody has looked at {unseen:,} of these. {unreliable(posterior)}"
    return f"nobody has looked at {unseen:,} of these; about {sum(chances):,.0f} of them are right"
