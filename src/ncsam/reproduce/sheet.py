"""A table for readers, as Markdown, LaTeX, HTML and CSV. Each ends with the list of what is not comparable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from ncsam._files import atomic_path
from ncsam._text import markdown
from ncsam._version import __version__
from ncsam.report.html import page
from ncsam.report.latex import escape as latex
from ncsam.report.latex import tabular
from ncsam.report.markdown import table as markdown_table
from ncsam.reproduce.tables import SOURCE


class Section(NamedTuple):
    """A header and the lines below it, all of the same length. The first column contains names."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Sheet:
    """A table in a form that can be written in any format.

    Attributes:
        name: name of the files, without suffix.
        title: heading.
        caption: a sentence about the numbers.
        sections: tables, one below the other.
        notes: what is not comparable.
        csv: the whole table as CSV.
        images: file names of images to show.
    """

    name: str
    title: str
    caption: str
    sections: Sequence[Section]
    notes: Sequence[str]
    csv: str
    images: Sequence[str] = ()

    def write(self, folder: Path) -> list[Path]:
        """Write it in all formats.

        Args:
            folder: where to write `NAME.md`, `NAME.tex`, `NAME.html` and `NAME.csv`.

        Returns:
            The paths of the files.
        """
        formats: Mapping[str, Callable[[Sheet], str]] = {
            ".md": to_markdown,
            ".tex": to_latex,
            ".html": to_html,
            ".csv": lambda sheet: sheet.csv,
        }
        paths = []
        for suffix, text in formats.items():
            paths.append(folder / f"{self.name}{suffix}")
            with atomic_path(paths[-1]) as temporary:
                temporary.write_text(text(self), encoding="utf-8", errors="backslashreplace")
        return paths


_MADE = f"The paper's numbers: {SOURCE}. Made by ncsam {__version__}."


def to_markdown(sheet: Sheet) -> str:
    """Format a table as Markdown.

    Args:
        sheet: the table.
    """
    tables = [
        markdown_table(list(map(markdown, section.head)), [list(map(markdown, line)) for line in section.lines])
        for section in sheet.sections
    ]
    images = [f"![{markdown(sheet.title)}]({name})" for name in sheet.images]
    notes = "\n".join(f"- {markdown(text)}" for text in sheet.notes)
    parts = [f"## {markdown(sheet.title)}", markdown(sheet.caption), *tables, *images, "Not comparable:", notes]
    return "\n\n".join([*parts, markdown(_MADE)]) + "\n"


def to_latex(sheet: Sheet) -> str:
    """Format a table as a LaTeX `table` that needs `booktabs`.

    Args:
        sheet: the table.
    """
    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{latex(sheet.title)}. {latex(sheet.caption)}}}"]
    for head, rows in sheet.sections:
        lines += tabular(list(map(latex, head)), [list(map(latex, row)) for row in rows])
    lines += [r"  \par\footnotesize Not comparable:", r"  \begin{itemize}"]
    lines += [rf"    \item {{}}{latex(text)}" for text in sheet.notes]
    return "\n".join([*lines, r"  \end{itemize}", r"\end{table}"]) + "\n"


def to_html(sheet: Sheet) -> str:
    """Format a table as an HTML page that loads nothing but its images.

    Args:
        sheet: the table.
    """
    parts = [f"<h1>{escape(sheet.title)}</h1>", f'<p class="quiet">{escape(sheet.caption)}</p>']
    for section in sheet.sections:
        head = "".join(f'<th scope="col">{escape(text)}</th>' for text in section.head)
        body = "".join(
            f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(text)}</td>" for text in texts)}</tr>'
            for name, *texts in section.lines
        )
        parts.append(f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')
    parts += [f'<p><img src="{escape(name)}" alt="{escape(sheet.title)}" width="100%"></p>' for name in sheet.images]
    notes = "".join(f"<li>{escape(text)}</li>" for text in sheet.notes)
    parts += [f"<h2>Not comparable</h2>\n<ul>{notes}</ul>", f"<footer>{escape(_MADE)}</footer>"]
    return page(sheet.title, "\n".join(parts))
