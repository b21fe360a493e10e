"""The text of a table: cells, footnote marks, caption and notes."""

from __future__ import annotations

import csv
import io
import itertools
import string
from collections.abc import Callable, Iterator, Sequence

from ncsam.reproduce.notes import Note
from ncsam.reproduce.results import METRICS, Filled
from ncsam.reproduce.sheet import Section, Sheet
from ncsam.reproduce.tables import Column, Row

_MEANING = {
    "best": "the best epoch on the test set, which flatters",
    "last": "after the last epoch",
    "last5": "mean of the last 5 epochs",
    "last10": "mean of the last 10 epochs",
}


def caption(filled: Filled) -> str:
    """Return a caption that says what the numbers are.

    Args:
        filled: the table with its results.
    """
    counts = filled.seeds or [0]
    seeds = f"{counts[0]} seed{'s' * (counts[0] > 1)}" if len(counts) == 1 else "as many seeds as n says"
    spread = ", mean ± sample standard deviation" if counts[-1] > 1 else ""
    return (
        f"Test accuracy in percent, {filled.metric} ({_MEANING[filled.metric]}), {seeds}{spread}; in brackets the "
        f"paper's figure and ours less that. Scale {filled.scale}."
    )


class _Marked:
    """The notes, with a letter for each that applies only to a part of the table."""

    def __init__(self, filled: Filled) -> None:
        self.filled = filled
        one = string.ascii_lowercase + string.ascii_uppercase
        letters = itertools.chain(one, map("".join, itertools.product(one, repeat=2)))
        self.notes = [("" if note.of_all else next(letters), note) for note in filled.notes]

    def of_row(self, row: Row) -> str:
        return self._letters(lambda note: note.columns is None and row.name in (note.rows or ()))

    def of_column(self, column: Column) -> str:
        return self._letters(lambda note: note.rows is None and column.name in (note.columns or ()))

    def of_cell(self, row: Row, column: Column) -> str:
        return self._letters(lambda n: row.name in (n.rows or ()) and column.name in (n.columns or ()))

    def _letters(self, holds: Callable[[Note], bool]) -> str:
        found = [letter for letter, note in self.notes if letter and holds(note)]
        return f" [{','.join(found)}]" if found else ""

    def texts(self) -> list[str]:
        return [f"[{letter}] {note.text}" if letter else note.text for letter, note in self.notes]


def _text(filled: Filled, marks: _Marked, row: Row, column: Column) -> str:
    """`ours (paper's, difference)`, or why there is no number: a dash for a cell that the paper does not print."""
    cell = filled.cells.get((row.name, column.name))
    if cell is None:
        if filled.has(row, column):
            return "failed" + marks.of_cell(row, column)
        return "not run" if (row, column) in filled.table.cells else "-"
    spread = cell.ours.get(filled.metric)
    ours = "not known" if spread is None else spread.text(1)
    count = f", n {cell.seeds}" if len(filled.seeds) > 1 else ""
    difference = cell.difference(filled.metric)
    theirs = "" if difference is None else f" ({cell.published:.1f}, {difference:+.1f}{count})"
    return ours + (theirs or (f" ({count[2:]})" if count else "")) + marks.of_cell(row, column)


def _sections(filled: Filled) -> Iterator[Section]:
    """Header and lines for the columns of each dataset."""
    marks = _Marked(filled)
    for _, group in itertools.groupby(filled.columns, key=lambda column: column.dataset):
        columns = list(group)
        lines = [
            [
                row.title + marks.of_row(row),
                *(_text(filled, marks, row, column) for column in columns),
            ]
            for row in filled.table.rows
            if any(filled.has(row, column) for column in columns)
        ]
        yield Section(["", *(column.title + marks.of_column(column) for column in columns)], lines)


def sheet(filled: Filled, images: Sequence[str] = ()) -> Sheet:
    """Convert a filled table to the form in which it is written.

    Args:
        filled: the table with its results.
        images: file names of images to show.
    """
    sections = list(_sections(filled))
    notes = _Marked(filled).texts()
    return Sheet(filled.table.name, filled.table.title, caption(filled), sections, notes, to_csv(filled), images)


def to_csv(filled: Filled) -> str:
    """Format a filled table as CSV: a line for each cell with every metric. Its notes are joined by bars.

    Args:
        filled: the table with its results.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    spreads = [f"{metric}{part}" for metric in METRICS for part in ("", "_std")]
    writer.writerow(
        ["table", "scale", "row", "column", "seeds", *spreads, "metric", "paper", "difference", "not_comparable"]
    )
    for row, column in filled.table.cells:
        cell = filled.cells.get((row.name, column.name))
        if cell is None:
            continue
        numbers: list[float | None] = []
        for metric in METRICS:
            spread = cell.ours.get(metric)
            numbers += [None, None] if spread is None else [spread.mean, spread.std]
        holds = [note.text for note in filled.notes if note.holds_for(row, column)]
        where = [filled.table.name, filled.scale, row.name, column.name, cell.seeds]
        compared = [filled.metric, _short(cell.published), _short(cell.difference(filled.metric)), " | ".join(holds)]
        writer.writerow([*where, *map(_short, numbers), *compared])
    return buffer.getvalue()


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"
