"""What commands print: text, tables and results; and the question before long work starts.

Tables are ruled and bold on a terminal, plain aligned columns in a pipe. `NO_COLOR` is honored.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ncsam._errors import need
from ncsam._statistics import Spread
from ncsam._text import format_duration, printable, printable_lines, table_cell
from ncsam.issues.posterior import noise_rate_words

if TYPE_CHECKING:
    from ncsam.engine.forecast import Approve
    from ncsam.runs.reader import RunFolder


def say(text: str, *, err: bool = False) -> None:
    """Print lines for people. They may hold names from elsewhere: what a terminal would obey is shown as an escape."""
    click.echo(printable_lines(text), err=err)


def is_narrow() -> bool:
    """Whether output goes to a terminal that has no room for a wide table."""
    return sys.stdout.isatty() and shutil.get_terminal_size().columns < 130


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table; the first `left` columns are words, the others numbers."""
    need("rich", "train", "printing a table")
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(
        width=None if terminal else 1000,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        emoji=False,
        markup=False,
    )
    table = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
        padding=(0, 1 if terminal else 2, 0, 0),
        header_style="bold",
    )
    for number, name in enumerate(head):
        justify: Any = "left" if number < left else "right"
        table.add_column(name, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as CSV, the keys first; nothing in them is a formula to a spreadsheet."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writerow({key: table_cell(key) for key in rows[0]})
    writer.writerows({key: table_cell(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


#: Columns of a comparison that a narrow window has no room for.
_WIDE = ("last10", "test_balanced_accuracy", "test_f1", "test_auc", "label_issues_auroc", "seconds")


def show_summary(run: RunFolder) -> None:
    """The summary of a run."""
    from ncsam.engine.metrics import OF_EPOCHS, SUMMARY  # torch, which listings do not need

    known = {name: run.summary[name] for name in SUMMARY if run.summary.get(name) is not None}
    meanings = run.metric_names
    if run.fitted:
        known = {name: value for name, value in known.items() if name not in OF_EPOCHS}
    rows = [[name, f"{value:.{SUMMARY[name].digits}f}", meanings.get(name, "")] for name, value in known.items()]
    show_table(["metric", "value", "meaning"], rows, left=3)
    if "noise_estimate" in run.summary:
        say(f"noise rate: {noise_rate_words(run.summary['noise_estimate'])}")


def show_comparison(rows: Sequence[Mapping[str, Any]], meanings: Mapping[str, str]) -> None:
    """Mean ± standard deviation over seeds of every metric that was measured, a line for each combination."""
    from ncsam.engine.metrics import SUMMARY  # torch, which listings do not need

    columns = [name for name in SUMMARY if any(_spread(row, name) for row in rows)]
    if is_narrow():
        columns = [name for name in columns if name not in _WIDE]
    lines = [
        [row["method"], row["optimizer"], _seeds(row["seeds"]), *(_text(row, c, SUMMARY[c].digits) for c in columns)]
        for row in rows
    ]
    show_table(["method", "optimizer", "seeds", *columns], lines, left=2)
    say("mean ±standard deviation over seeds" + ("; further columns in a wider window" if is_narrow() else ""))
    for name in columns:
        if name in meanings:
            say(f"{name}: {meanings[name]}")


def _seeds(seeds: Any) -> str:
    return str(len(seeds)) if isinstance(seeds, Sequence) else str(seeds)


def _spread(row: Mapping[str, Any], name: str) -> Spread | None:
    cell = row.get(name)
    if not isinstance(cell, Mapping) or cell.get("mean") is None:
        return None
    return Spread(cell["mean"], cell.get("std"))


def _text(row: Mapping[str, Any], name: str, digits: int) -> str:
    spread = _spread(row, name)
    return "not known" if spread is None else spread.text(digits).replace(" ± ", "\n±" if is_narrow() else " ±")


#: Expected seconds above which a command asks before it starts.
LONG = 1800.0
_Command = TypeVar("_Command", bound=Callable[..., Any])


def yes_option(command: _Command) -> _Command:
    """`--yes`: start without a question, however long it takes."""
    return click.option("--yes", is_flag=True, help="start even if it takes more than 30 minutes")(command)


def approval(yes: bool, *, quiet: bool = False, runs: int = 1, shorter: str) -> Approve:
    """What asks before long work starts.

    Args:
        yes: Whether `--yes` was given.
        quiet: Whether the expected time of short work is not printed.
        runs: How many times training is repeated.
        shorter: What would take less time.
    """

    def approve(seconds: float, what: str) -> None:
        total = seconds * runs if what == "training" else seconds
        if not quiet:
            say(f"{what}: about {format_duration(total)}")
        if total <= LONG or yes:
            return
        if _on_terminal():
            click.confirm(f"{what} takes about {format_duration(total)}. Start?", abort=True)
            return
        raise click.UsageError(f"{what} takes about {format_duration(total)}: add --yes to start it, or {shorter}.")

    return approve


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
