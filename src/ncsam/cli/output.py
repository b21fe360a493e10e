"""Tables for people: ruled and bold on a terminal, plain aligned columns in a pipe. `NO_COLOR` is honored."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ncsam._errors import need
from ncsam._text import printable, printable_lines, table_cell


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
