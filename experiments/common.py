"""What the experiments share: a table is declared, then run, read back, and printed as Markdown.

    TABLE = Table("digits", {"symmetric 40": {"noise": "symmetric", "rate": 0.4}},
                  {"SGD": "sgd", "SAM": "sam:rho=auto"}, controls={"SAM": "SGD"})

    if __name__ == "__main__":
        main(__doc__, lambda files: [TABLE])

trains every setting on every problem with every seed, in run folders `OUT/TABLE/PROBLEM/METHOD-OPTIMIZER-sSEED`.
Interrupted, the same command goes on; `--tables` prints what is finished. Cells that are no runs of the engine come
from a function, `measure`, and are kept in `OUT/TABLE.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from cells import Chosen, Results, Runs, Setting, Table, results, write
from ncsam._statistics import Spread, difference, of_differences
from ncsam.report.markdown import table as markdown_table

__all__ = ["Chosen", "Setting", "Table", "main", "markdown_table", "parser", "write"]


def tables(table: Table, found: Results) -> Iterator[str]:
    """The table as Markdown: means with standard errors, differences from the controls, further metrics."""
    problems = [p for p in table.problems if any(found.values(p, s, table.metrics[0]) for s in table.settings)]
    if not problems:
        return
    yield f"## {table.name}, {table.seeds} seed{'s' if table.seeds > 1 else ''}"
    for place, metric in enumerate(table.metrics):
        cells = {s: [Spread.of(found.values(p, s, metric).values()) for p in problems] for s in table.settings}
        error = "" if place else ", mean ± standard error over seeds"
        yield f"`{metric}`{error}:"
        shown = {s: [cell_text(c, table.digits, alone=place > 0) for c in row] for s, row in cells.items() if any(row)}
        yield markdown_table(["setting", *problems], [[s, *row] for s, row in shown.items()])
        if place == 0 and table.controls:
            yield from _against_controls(table, found, problems)
    if isinstance(found, Runs):
        yield from _choices(table, found, problems)


def cell_text(spread: Spread | None, digits: int, *, alone: bool = False) -> str:
    """`mean ± standard error`, or the mean alone; a dash for what is not finished."""
    if spread is None:
        return "-"
    return f"{spread.mean:.{digits}f}" if alone else spread.text(digits, error=True)


def _against_controls(table: Table, found: Results, problems: Sequence[str]) -> Iterator[str]:
    rows = []
    for setting, control in table.controls.items():
        cells, together = [], []
        for problem in problems:
            ours, theirs = (found.values(problem, name, table.metrics[0]) for name in (setting, control))
            paired = difference(ours, theirs)
            cells.append("-" if paired is None else paired.text(table.digits))
            together += [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
        if together:
            whole = of_differences(together)
            rows.append([f"{setting} less {control}", *cells, "-" if whole is None else whole.text(table.digits)])
    if rows:
        yield "Differences seed by seed, mean ± standard error (p of the paired t-test); `all` takes them together:"
        yield markdown_table(["", *problems, "all"], rows)


def _choices(table: Table, found: Runs, problems: Sequence[str]) -> Iterator[str]:
    for name, row in table.settings.items():
        if isinstance(row, Chosen):
            values = [found.chosen(problem, row) for problem in problems]
            yield f"{name}: " + ", ".join(f"{v} ({p})" for p, v in zip(problems, values, strict=True) if v is not None)


def main(doc: str | None, declare: Callable[[argparse.Namespace], Sequence[Table]], **files: str) -> None:
    """Run the tables that `declare` makes, and print them.

    `files` names what the command line may give beside the folder of the runs (name -> help); `declare` finds each as
    an attribute, a `Path` or `None`, and the folder as `out`.
    """
    options = parser(doc)
    options.add_argument("out", type=Path, help="folder of the runs")
    for name, about in files.items():
        options.add_argument(f"--{name}", type=Path, metavar="FILE", help=about)
    options.add_argument("--only", nargs="+", metavar="NAME", help="tables and problems of these names alone")
    options.add_argument("--settings", nargs="+", metavar="NAME", help="these rows alone")
    options.add_argument("--seeds", type=int, help="how many, instead of the table's own number")
    options.add_argument("--jobs", type=int, default=2, help="runs at a time")
    options.add_argument("--tables", action="store_true", help="only print what is finished")
    options.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there, print nothing")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    chosen.out = chosen.out / "quick" if chosen.quick else chosen.out
    chosen.out.mkdir(parents=True, exist_ok=True)
    declared = [table if chosen.seeds is None else replace(table, seeds=chosen.seeds) for table in declare(chosen)]
    declared = [table.smaller() if chosen.quick else table for table in declared]
    found = {table.name: results(table, chosen.out) for table in declared}
    for table, problem in [] if chosen.tables else _wanted(declared, set(chosen.only or ())):
        names = [name for name in table.settings if chosen.settings is None or name in chosen.settings]
        found[table.name].run(problem, names, chosen.jobs)
    text = "\n\n".join(part for table in declared for part in (table.show or tables)(table, found[table.name])) + "\n"
    write(chosen.markdown, text) if chosen.markdown else print(text, end="")


def _wanted(declared: Sequence[Table], names: set[str]) -> Iterator[tuple[Table, str]]:
    """Each table with each of its problems; a name of a table leaves the others out, and so does a problem's."""
    known = {table.name for table in declared}, {problem for table in declared for problem in table.problems}
    if unknown := names - known[0] - known[1]:
        raise SystemExit(f"--only: no table or problem is called {', '.join(sorted(unknown))}")
    some_tables, some_problems = (names & kind for kind in known)
    for table in declared:
        for problem in table.problems:
            if table.name in (some_tables or known[0]) and problem in (some_problems or known[1]):
                yield table, problem


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The option that every experiment has."""
    options = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    options.add_argument("--quick", action="store_true", help="a small version, to see that it works")
    return options
