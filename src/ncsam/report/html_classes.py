"""The part of the page that is about classes, and the tables of numbers that it shares with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from ncsam.report.by_class import Confusions
from ncsam.report.content import Cell, Report

#: Up to this many classes a matrix is a table with numbers; above, an image or nothing.
READABLE = 20


def by_class(report: Report) -> str:
    """The section on classes; empty where no run recorded them."""
    found = report.classes
    parts = []
    if found.names:
        rest = f" The {len(found.names)} lowest of {len(found.names) + found.left_out}." if found.left_out else ""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", *(g.label for g in report.groups)))
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th>{"".join(number(Cell(s, 1, False)) for s in row)}</tr>'
            for name, row in zip(found.names, found.accuracies, strict=True)
        )
        parts.append(
            f'<p class="quiet">Test accuracy of each class, percent.{rest}</p>\n<div class="scroll">'
            f'<table class="summary"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        )
    parts += [_confusions(each, report.class_names) for each in found.confusions]
    body = "\n".join(part for part in parts if part)
    return f'<section id="classes">\n<h2>By class</h2>\n{body}\n</section>' if body else ""


def _confusions(found: Confusions, class_names: Sequence[str] | None) -> str:
    parts = [f"<p>By its own estimate, {escape(found.noise)}.</p>"] if found.noise else []
    if found.transitions:
        rows = "".join(
            f"<li><s>{escape(t.given)}</s> → <b>{escape(t.suggested)}</b>, {t.count:,}</li>" for t in found.transitions
        )
        parts.append(f'<p class="quiet">Flagged training labels, by class pair:</p><ul class="facts">{rows}</ul>')
    if found.shares is not None and len(found.shares) <= READABLE:
        parts.append(
            '<p class="quiet">Samples that were held out: of each given label, the shares predicted as each class.'
            f"</p>{matrix(found.shares, class_names, 'labeled ↓ predicted →')}"
        )
    if not parts:
        return ""
    title = f"{found.label}, run {found.run.folder.name}"
    return f"<details><summary>{escape(title)}</summary>{''.join(parts)}</details>"


def matrix(shares: npt.NDArray[np.float64], class_names: Sequence[str] | None, corner: str) -> str:
    """A table of shares, shaded by their size."""
    size = len(shares)
    names = list(class_names) if class_names and len(class_names) == size else [str(c) for c in range(size)]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = []
    for name, row in zip(names, shares, strict=True):
        cells = "".join(_share(share) for share in row)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    body = f'<thead><tr><th class="corner">{corner}</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
    return f'<div class="scroll"><table class="matrix">{body}</table></div>'


def _share(share: float) -> str:
    if np.isnan(share):
        return "<td>n/a</td>"
    return f'<td style="--share:{share:.4f}"{" class=zero" if share < 0.005 else ""}>{share:.2f}</td>'


def number(cell: Cell) -> str:
    """A cell of a table: the mean, marked where it is the top, and its deviation."""
    if cell.spread is None:
        return '<td class="std">not known</td>'
    mean, _, std = cell.text.partition(" ± ")
    spread = f'<span class="std">± {std}</span>' if std else ""
    return f'<td><span class="{"top" if cell.top else "mean"}">{mean}</span>{spread}</td>'
