"""`ncsam clean`."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ncsam.cli.main import BriefCommand
from ncsam.cli.options import Listed, Readable, RunPath, Written, files_of, keep
from ncsam.cli.output import say, show_table
from ncsam.runs.reader import RunFolder

if TYPE_CHECKING:
    from ncsam.review.clean import Cleaned
    from ncsam.runs.decisions import Decisions

_PAIRS = 10  # that are listed
#: Options of a run that describe its old data and labels, or the run itself.
_OF_THE_OLD_DATA = (
    *("--out", "--config", "--noise", "--rate", "--noise-seed", "--noise-options", "--label-file", "--label-column"),
    *("--data-options", "--dry-run", "--folds"),
)

EPILOG = """\b
Examples:
  ncsam clean runs/first --dry-run
  ncsam clean runs/first --out cleaned.csv
  ncsam clean runs/first --apply confident --threshold 0.95 --out cleaned.csv
  ncsam clean runs/first --folder cleaned/ --copy
  ncsam clean runs/first --findings exact_duplicate,outlier --out cleaned.csv
  ncsam clean runs/first --from label-studio export.json --out cleaned.csv

\b
Then train on the table or the folder:
  ncsam train cleaned.csv --out runs/second
"""


@click.command(cls=BriefCommand, epilog=EPILOG, rare=frozenset({"copy", "threshold"}))
@click.argument("run", type=RunPath())
@click.option("--out", type=Written(), help="table to write (.csv; .npz for arrays)")
@click.option("--folder", type=Written(folder=True), help="new folder of links to the files, by class")
@click.option("--copy", is_flag=True, help="with --folder: copy files instead of linking them")
@click.option(
    "--apply",
    type=click.Choice(["reviewed", "confident", "all"]),
    default="reviewed",
    show_default=True,
    help="whose decisions; reviewed: the reviewers'; confident: also suggestions that are probably correct; all: "
    "all suggestions",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    help="with --apply confident: minimum probability that the suggestion is correct",
)
@click.option(
    "--findings",
    type=Listed(),
    help="also apply what these checks of `ncsam audit` decided; drops samples or columns, merges classes",
)
@click.option(
    "--from",
    "taken",
    type=(click.Choice(["label-studio", "huggingface", "csv"]), Readable(folders=True, exists=False)),
    metavar="TOOL FILE",
    help="read decisions from another tool first; label-studio, huggingface or csv",
)
@click.option("--dry-run", is_flag=True, help="only print what would change, by pair of classes")
def clean(
    run: Path,
    out: Path | None,
    folder: Path | None,
    copy: bool,
    apply: str,
    threshold: float,
    findings: list[str] | None,
    taken: tuple[str, Path] | None,
    dry_run: bool,
) -> None:
    """Write RUN's data with corrected labels. The data itself is never changed.

    Reviewers' decisions take precedence over suggestions. The table has the columns path (or text, features), split,
    label, given_label, source and probability; train on it with `ncsam train TABLE`. For named datasets it has an index
    instead of paths; use `ncsam train DATA --label-file TABLE`.
    """
    from ncsam.review.clean import cleaned

    if not dry_run and out is None and folder is None:
        raise click.UsageError("Missing output: give --out FILE, --folder FOLDER, or --dry-run.")
    if copy and folder is None:
        raise click.UsageError("--copy needs --folder.")
    if out is not None and out.suffix.lower() not in (".csv", ".npz"):
        raise click.UsageError(f"--out {out}: the file must end in .csv or .npz.")
    keep(files_of(run), out)
    decisions = None if taken is None else _decisions(run, *taken, write=not dry_run)
    found = cleaned(run, apply, threshold, findings=findings or (), decisions=decisions)
    written = [] if dry_run else _write(found, run, out, folder, copy)
    pairs = found.changes()
    if pairs:
        show_table(["given label", "new label", "samples"], [[a, b, f"{n:,}"] for a, b, n in pairs[:_PAIRS]], left=2)
    if len(pairs) > _PAIRS:
        say(f"and {len(pairs) - _PAIRS:,} more pairs of classes")
    changed = (found.labels != found.given_label)[found.kept]
    sources = Counter(
        source for source, moved in zip(np.array(found.source)[found.kept], changed, strict=True) if moved
    )
    why = ", ".join(f"{count:,} {source}" for source, count in sorted(sources.items())) or "none"
    would = "would change" if dry_run else "changed"
    say(f"{int(changed.sum()):,} of {len(changed):,} labels {would} ({why})")
    if apply == "reviewed" and not findings and "reviewed" not in found.source:
        here, trusted = shlex.quote(str(run)), RunFolder.read(run).posterior.get("reliable")
        accept = f"--apply {'confident' if trusted else 'all'}"
        say(f"no label was reviewed: use `ncsam review {here}`, or accept suggestions with `{accept}`")
    if left := len(found.labels) - len(found.kept):
        say(f"{left:,} samples {'would be' if dry_run else 'were'} left out")
    if found.dropped_columns:
        say(f"columns left out: {', '.join(sorted(found.dropped_columns))}")
    unseen = sum(sources.values()) - sources["reviewed"] - sources["audit"]
    if unseen:
        say(_expected(found, unseen, RunFolder.read(run).posterior))
    for line in written:
        say(line)


def _decisions(run: Path, tool: str, file: Path, *, write: bool) -> Decisions:
    """The decisions of a run and of a file that came back; with `write` they are kept in the run folder."""
    from ncsam.review.imported import imported, take_decisions
    from ncsam.runs.decisions import Decisions

    new = imported(run, tool, file)
    decisions = Decisions(run, write=write)
    try:
        added = take_decisions(decisions, new)
    finally:
        decisions.close()
    say(f"{len(new):,} decisions in {file}, {added:,} of them new")
    return decisions


def _write(found: Cleaned, run: Path, out: Path | None, folder: Path | None, copy: bool) -> list[str]:
    """Write what is asked for; the lines that say so."""
    from ncsam.review.clean import write_arrays, write_folder, write_table

    lines, config = [], RunFolder.read(run).config
    if folder is not None:
        count = write_folder(found, folder, copy=copy)
        lines += [
            f"{folder}: {count:,} {'copies' if copy else 'links'}",
            f"next: {next_command(config, [str(folder)])}",
        ]
    if out is not None:
        option = (write_arrays if out.suffix.lower() == ".npz" else write_table)(found, out)
        data = [str(config["data"]), option, str(out)] if option else [str(out)]
        lines += [str(out), f"next: {next_command(config, data)}"]
    return lines


def next_command(config: Mapping[str, Any], data: Sequence[str]) -> str:
    """The command that trains on the cleaned data as the run was trained: without its label noise and folder."""
    words = shlex.split(str(config.get("command") or "ncsam train"))
    name, rest = words[1] if words[1:2] in (["train"], ["auto"]) else "train", words[2:]
    kept: list[str] = []
    while rest:
        word = rest.pop(0)
        flag = word.partition("=")[0]
        takes_value = "=" not in word and bool(rest) and not rest[0].startswith("--")
        value = [rest.pop(0)] if word.startswith("--") and takes_value else []
        if word.startswith("--") and flag not in _OF_THE_OLD_DATA:
            kept += [word, *value]
    return shlex.join(["ncsam", name, *data, *kept])


def _expected(found: Cleaned, unseen: int, posterior: Mapping[str, Any]) -> str:
    """How many of the suggestions that nobody reviewed are correct, or a warning that it cannot be estimated."""
    from ncsam.issues.table import unreliable

    moved = found.labels != found.given_label
    moved[np.setdiff1d(np.arange(len(moved)), found.kept)] = False
    chances = [
        p
        for p, source, new in zip(found.probability, found.source, moved, strict=True)
        if new and source not in ("reviewed", "audit")
    ]
    if any(math.isnan(chance) for chance in chances):
        return f"warning: nobody has reviewed {unseen:,} of these. {unreliable(posterior)}"
    return f"nobody has reviewed {unseen:,} of these; about {sum(chances):,.0f} of them are correct"
