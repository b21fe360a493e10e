"""The summary as a LaTeX table for a paper, in the style of `booktabs`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ncsam._files import atomic_path
from ncsam.report.content import Cell, Report

_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}


def write_latex(report: Report, path: Path) -> Path:
    """Write the table; its path.

    Args:
        report: what `gather` returns.
        path: the `.tex` file; an existing one is replaced.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(to_latex(report), encoding="utf-8", errors="backslashreplace")
    return path


def to_latex(report: Report) -> str:
    """A `table` with one row per group, its meaning in the caption.

    Args:
        report: what `gather` returns; its summary is used.
    """
    rows = [
        [escape(group.label), str(len(group.runs)), *map(_number, cells)]
        for group, cells in zip(report.groups, report.cells, strict=True)
    ]
    meaning = " ".join(f"{escape(text)}." for text in report.explained)
    words = (
        rf"{escape(report.title)}. Mean $\pm$ sample standard deviation over seeds; bold: better than every other row, "
        rf"$p < .05$ each in a paired t-test over seeds. {meaning}"
    )
    table = tabular(["", "seeds", *map(escape, report.columns)], rows)
    return "\n".join([r"\begin{table}", r"  \centering", *table, rf"  \caption{{{words}}}", r"\end{table}"]) + "\n"


def tabular(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a ruled table of cells that are LaTeX already; names on the left, numbers on the right.

    Args:
        head: column titles.
        rows: cells, as many in each row as in `head`.
    """
    return [
        rf"  \begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"    \toprule",
        "    " + " & ".join(head) + r" \\",
        r"    \midrule",
        *("    " + " & ".join(row) + r" \\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
    ]


def escape(text: str) -> str:
    """Text as LaTeX prints it.

    Args:
        text: plain text; characters with a meaning in LaTeX are escaped.
    """
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: _SPECIAL.get(found[0], "\\" + found[0]), text)


def _number(cell: Cell) -> str:
    if cell.spread is None:
        return "--"
    mean, _, std = cell.text.partition(" ± ")
    shown = rf"\mathbf{{{mean}}}" if cell.top else mean
    return f"${shown}$" if not std else rf"${shown} \pm {std}$"
