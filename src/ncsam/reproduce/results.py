"""Fill the cells of a table from finished runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncsam._statistics import Spread
from ncsam.comparison.specs import folder_name
from ncsam.jobs import Job
from ncsam.reproduce.notes import Note, not_comparable
from ncsam.reproduce.scales import Setting
from ncsam.reproduce.tables import Column, Row, Table

METRICS = ("best", "last", "last5", "last10")
#: The only one that the paper names, in one of its tables; it chooses nothing on test data.
DEFAULT_METRIC = "last5"


def run_name(row: Row, column: Column, seed: int) -> str:
    """Return the folder of a cell's run, relative to the folder of all runs. Tables that share a cell share the folder.

    Args:
        row: row of the cell.
        column: column of the cell.
        seed: seed of the run.
    """
    return f"{column.folder}/{folder_name(row.method, row.optimizer, seed)}"


def jobs(table: Table, setting: Setting, seeds: Sequence[int], out: Path) -> list[Job]:
    """Return the runs of a table, each once.

    Args:
        table: the table, whole or in part.
        setting: the scale and the sources of the datasets.
        seeds: seeds of each cell.
        out: the folder of the runs.
    """
    found: dict[str, Job] = {}
    for seed in seeds:
        for row, column in table.cells:
            name = run_name(row, column, seed)
            if name not in found:
                found[name] = Job(name, setting.config(row, column, seed), out / name)
    return list(found.values())


@dataclass(frozen=True)
class Cell:
    """Our numbers over seeds and the paper's number, as percentages.

    Attributes:
        ours: mean and deviation over seeds, by metric.
        seeds: number of finished seeds.
        published: the paper's number. `None` if it has none.
    """

    ours: Mapping[str, Spread]
    seeds: int
    published: float | None

    def difference(self, metric: str) -> float | None:
        """Return our mean minus the paper's number, in percentage points.

        Args:
            metric: a name from `METRICS`.

        Returns:
            The difference, or `None` if either number is missing.
        """
        if self.published is None or metric not in self.ours:
            return None
        return self.ours[metric].mean - self.published


@dataclass(frozen=True)
class Filled:
    """A table with its results so far.

    Attributes:
        table: the table, whole or in part.
        metric: the metric to show, from `METRICS`.
        scale: the scale of the runs.
        cells: cells with at least one finished run, by names of row and column.
        notes: what keeps it from being comparable with the paper.
        failed: names of row and column of the cells in which no run finished and at least one failed.
    """

    table: Table
    metric: str
    scale: str
    cells: Mapping[tuple[str, str], Cell]
    notes: Sequence[Note]
    failed: Collection[tuple[str, str]] = ()

    def has(self, row: Row, column: Column) -> bool:
        """Return whether a cell has a finished or failed run.

        Args:
            row: row of the cell.
            column: column of the cell.
        """
        return (row.name, column.name) in self.cells or (row.name, column.name) in self.failed

    @property
    def columns(self) -> list[Column]:
        """The columns with a finished or failed run."""
        return [c for c in self.table.columns if any(self.has(r, c) for r in self.table.rows)]

    @property
    def seeds(self) -> list[int]:
        """The distinct numbers of seeds of the cells, smallest first."""
        return sorted({cell.seeds for cell in self.cells.values()})


def fill(
    table: Table,
    setting: Setting,
    seeds: Sequence[int],
    summaries: Mapping[str, Mapping[str, Any]],
    metric: str | None = None,
    extra: Sequence[Note] = (),
    errors: Mapping[str, str] | None = None,
) -> Filled:
    """Fill a table with the results of its runs.

    Args:
        table: the table, whole or in part.
        setting: the scale and the sources of the datasets.
        seeds: seeds of each cell.
        summaries: summaries of the finished runs, by `run_name`.
        metric: a name from `METRICS`. `None`: the one the paper names for the table, else "last5".
        extra: further notes.
        errors: errors of the failed runs, by `run_name`.
    """
    cells: dict[tuple[str, str], Cell] = {}
    failed: dict[tuple[str, str], str] = {}
    for row, column in table.cells:
        names = [run_name(row, column, seed) for seed in seeds]
        found = [summaries[name] for name in names if name in summaries]
        wrong = [errors[name] for name in names if errors and name in errors]
        if wrong:
            failed[row.name, column.name] = f"{len(wrong)} of {len(names)} runs failed: {wrong[0]}"
        if found:
            spreads = {name: Spread.of(summary.get(name) for summary in found) for name in METRICS}
            ours = {name: spread for name, spread in spreads.items() if spread is not None}
            cells[row.name, column.name] = Cell(ours, len(found), table.published.get((row.name, column.name)))
    metric = metric or table.metric or DEFAULT_METRIC
    notes = [*not_comparable(table, setting), *extra, *_of_failed(failed)]
    return Filled(table, metric, setting.scale, cells, notes, [key for key in failed if key not in cells])


def _of_failed(failed: Mapping[tuple[str, str], str]) -> list[Note]:
    """Few notes for the failed cells: columns of a row are grouped, then rows with the same columns."""
    columns: dict[tuple[str, str], list[str]] = {}
    for (row, column), said in failed.items():
        columns.setdefault((said, row), []).append(column)
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (said, row), where in columns.items():
        rows.setdefault((said, tuple(where)), []).append(row)
    return [Note(said, rows=those, columns=where) for (said, where), those in rows.items()]
