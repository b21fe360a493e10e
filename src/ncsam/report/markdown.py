"""The same report as Markdown, with its curves as a PNG beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ncsam._files import atomic_path
from ncsam.report.content import Report
from ncsam.report.figures import curves_png
from ncsam.report.previews import Gallery

#: What stands under the table of the summary.
STATISTIC = (
    "Mean ± sample standard deviation over seeds; bold: better than every other row, p < .05 each in a paired t-test "
    "over seeds (not corrected for the number of rows)."
)


def write_markdown(report: Report, path: Path) -> list[Path]:
    """Write `path` and the picture `NAME-curves.png` beside it; both paths."""
    picture = curves_png(report.groups, path.with_name(f"{path.stem}-curves.png"), report.title)
    with atomic_path(path) as temporary:
        temporary.write_text(to_markdown(report, picture.name), encoding="utf-8")
    return [path, picture]


def to_markdown(report: Report, picture: str) -> str:
    """The text, with `picture` as the address of the curves."""
    rows = [
        [group.label, str(len(group.runs)), *(_bold(cell.text, cell.top) for cell in cells)]
        for group, cells in zip(report.groups, report.cells, strict=True)
    ]
    parts = [
        f"# {report.title}",
        ", ".join(f"{name}: {value}" for name, value in report.facts.items()),
        *(f"> {note}" for note in report.notes),
        "## Summary",
        table(["", "seeds", *report.columns], rows),
        "\n".join(f"- {text}" for text in report.explained),
        STATISTIC,
        "## Curves",
        f"![Test accuracy and memorisation against the epoch]({picture})",
        *_noise(report),
        *_classes(report),
        *_suspects(report.galleries),
        "## Configuration",
        table(["option", "value"], [[key, f"`{value}`"] for key, value in report.config.items()]),
        *_differing(report),
        "## Commands",
        "```sh\n" + "\n".join(report.commands) + "\n```",
        f"Made by {report.made}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks inside a cell are escaped."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )


def _bold(text: str, top: bool) -> str:
    return f"**{text}**" if top else text


def _noise(report: Report) -> list[str]:
    return [f"## Label noise, run {run.folder.name}\n\n```text\n{record}\n```" for run, record in report.noises]


def _classes(report: Report) -> list[str]:
    found, parts = report.classes, []
    if found.names:
        head = ["test accuracy, %", *(group.label for group in report.groups)]
        texts = [["-" if s is None else s.text(1) for s in row] for row in found.accuracies]
        parts.append(table(head, [[name, *row] for name, row in zip(found.names, texts, strict=True)]))
    for each in found.confusions:
        if each.noise:
            parts.append(f"{each.label}, run {each.run.folder.name}: {each.noise}.")
        if each.transitions:
            rows = [[t.observed, t.suggested, str(t.count)] for t in each.transitions]
            parts.append(table(["observed", "suggested", "training samples"], rows))
    return ["## By class", *parts] if parts else []


def _suspects(galleries: Sequence[Gallery]) -> list[str]:
    parts = []
    for found in galleries:
        wrong = found.really_wrong
        share = "" if wrong is None else f" {wrong} of these {len(found.suspects)} are really mislabelled."
        known = [] if wrong is None else ["clean"]
        rows = [
            [str(s.index), found.name(s.observed), found.name(s.suggested), f"{s.suspicion:.3f}"]
            + ([] if s.clean is None else [found.name(s.clean)])
            for s in found.suspects
        ]
        head = ["index", "observed", "suggested", "suspicion", *known]
        parts += [
            f"## Most suspicious labels: {found.label}",
            f"Run {found.run.folder.name}.{share}",
            table(head, rows),
        ]
    return parts


def _differing(report: Report) -> list[str]:
    if not report.differing:
        return []
    rows = [[g.label, *(f"`{g.runs[0].config.get(key)}`" for key in report.differing)] for g in report.groups]
    return [table(["group", *report.differing], rows)]
