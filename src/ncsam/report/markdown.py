"""The same report as Markdown, with its curves as a PNG beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from ncsam._files import atomic_path
from ncsam._text import markdown, markdown_block, markdown_code
from ncsam.report.content import ANNOTATORS, Report
from ncsam.report.figures import curves_png
from ncsam.report.sections import Gallery

#: What stands under the table of the summary.
STATISTIC = (
    "Mean ± sample standard deviation over seeds; bold: better than every other row, p < .05 each in a paired t-test "
    "over seeds (not corrected for the number of rows)."
)


def write_markdown(report: Report, path: Path) -> list[Path]:
    """Write `path` and the image `NAME-curves.png` beside it; both paths.

    Args:
        report: what `gather` returns.
        path: the `.md` file; an existing one is replaced.
    """
    image = curves_png(report.groups, path.with_name(f"{path.stem}-curves.png"), report.title)
    with atomic_path(path) as temporary:
        temporary.write_text(to_markdown(report, image.name), encoding="utf-8", errors="backslashreplace")
    return [path, image]


def to_markdown(report: Report, image: str) -> str:
    """The text, with `image` as the address of the curves.

    Args:
        report: what `gather` returns.
        image: path of the curves relative to the Markdown file; it is percent-encoded.
    """
    rows = [
        [markdown(group.label), str(len(group.runs)), *(_bold(cell.text, cell.top) for cell in cells)]
        for group, cells in zip(report.groups, report.cells, strict=True)
    ]
    parts = [
        f"# {markdown(report.title)}",
        ", ".join(f"{name}: {markdown(value)}" for name, value in report.facts.items()),
        *(f"> {markdown(note)}" for note in report.notes),
        "## Summary",
        table(["", "seeds", *map(markdown, report.columns)], rows),
        "\n".join(f"- {markdown(text)}" for text in report.explained),
        STATISTIC,
        "## Curves",
        f"![Test accuracy and memorization against the epoch]({quote(image)})",
        *_noise(report),
        *_classes(report),
        *_label_issues(report.galleries),
        *_annotators(report),
        *_audits(report),
        "## Configuration",
        table(
            ["option", "value"], [[markdown(key), markdown_code(str(value))] for key, value in report.config.items()]
        ),
        *_differing(report),
        "## Commands",
        markdown_block("\n".join(report.commands), "sh"),
        f"Made by {report.made}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells that are Markdown already.

    Args:
        head: column titles; the first column is aligned left, the others right.
        rows: cells, as many in each row as in `head`.
    """
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _bold(text: str, top: bool) -> str:
    return f"**{text}**" if top else text


def _noise(report: Report) -> list[str]:
    return [
        f"## Label noise, run {markdown(run.folder.name)}\n\n{markdown_block(str(record), 'text')}"
        for run, record in report.noises
    ]


def _classes(report: Report) -> list[str]:
    found, parts = report.classes, []
    if found.names:
        head = ["test accuracy, %", *(markdown(group.label) for group in report.groups)]
        texts = [["-" if s is None else s.text(1) for s in row] for row in found.accuracies]
        parts.append(table(head, [[markdown(name), *row] for name, row in zip(found.names, texts, strict=True)]))
    for each in found.confusions:
        if each.noise:
            parts.append(f"{markdown(each.label)}, run {markdown(each.run.folder.name)}: {markdown(each.noise)}.")
        if each.transitions:
            rows = [[markdown(t.given), markdown(t.suggested), str(t.count)] for t in each.transitions]
            parts.append(table(["given label", "suggested label", "training samples"], rows))
    return ["## By class", *parts] if parts else []


def _label_issues(galleries: Sequence[Gallery]) -> list[str]:
    parts = []
    for found in galleries:
        wrong = found.really_wrong
        share = "" if wrong is None else f" {wrong} of these {len(found.tiles)} are mislabeled."
        names = ["given_label", "suggested_label", *([] if wrong is None else ["clean_label"])]
        shown = ["sample"] if any(tile.text is not None for tile in found.tiles) else []
        rows = [
            [
                str(tile.row["index"]),
                *(markdown(str(tile.row.get(name, ""))) for name in names),
                f"{tile.row['label_quality']:.3f}",
                *([markdown(tile.text or "")] if shown else []),
            ]
            for tile in found.tiles
        ]
        head = ["index", *(name.replace("_", " ") for name in names), "label quality", *shown]
        parts += [
            f"## Label issues: {markdown(found.label)}",
            f"Run {markdown(found.run.folder.name)}.{share} {markdown(found.expected)}",
            table(head, rows),
        ]
    return parts


def _annotators(report: Report) -> list[str]:
    if not report.annotators:
        return []
    rows = [[markdown(name), *figures] for name, *figures in report.annotators]
    return ["## Annotators", ANNOTATORS, table(["annotator", "answers", "accuracy, %"], rows)]


def _audits(report: Report) -> list[str]:
    parts = ["## Dataset audit"] if report.audits else []
    for part in report.audits:
        rows = [
            [markdown(each.name or f"{each.split} {each.index}"), f"{each.score:.3g}", markdown(each.evidence)]
            for each, _ in part.shown
        ]
        told = f"{part.count:,}, from a score of {part.check.threshold:g} on ({part.check.score})."
        parts += [f"### {part.check.title}", told, table(["what", "score", "evidence"], rows)]
    return parts


def _differing(report: Report) -> list[str]:
    if not report.differing:
        return []
    rows = [
        [markdown(g.label), *(markdown_code(str(g.runs[0].config.get(key))) for key in report.differing)]
        for g in report.groups
    ]
    return [table(["group", *map(markdown, report.differing)], rows)]
