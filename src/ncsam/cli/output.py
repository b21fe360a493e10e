"""Tables for people: ruled and bold on a terminal, plain aligned columns in a pipe. `NO_COLOR` is honoured."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from ncsam._errors import need


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table; the first `left` columns are words, the others numbers."""
    need("rich", "train", "printing a table")
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if terminal else 1000, highlight=False, emoji=False, markup=False)
    table = Table(
        box=box.SIMPLE_HEAD if terminal else None,
        pad_edge=False,
        header_style="bold",
    )
    for number, name in enumerate(head):
        table.add_column(name, justify="left" if number < left else "right", no_wrap=number >= left)
    for row in rows:
        table.add_row(*row)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
