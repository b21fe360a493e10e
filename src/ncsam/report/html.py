"""`report.html`: one file, readable offline, on a screen or a telephone, by day and by night."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

from ncsam.noise import NoisyLabels
from ncsam.report.content import ANNOTATORS, Report
from ncsam.report.figures import CURVES, STYLES, TELEMETRY, Panel, looks, new_figure, panel_svg
from ncsam.report.groups import Group
from ncsam.report.html_classes import READABLE, by_class, matrix, number
from ncsam.report.previews import Tile
from ncsam.report.style import STYLE
from ncsam.runs.reader import RunFolder

_DASHES = ("", "6 3", "7 3 1.5 3", "1.5 3", "8 2 2 2 2 2")
assert len(_DASHES) == len(STYLES)


def to_html(report: Report) -> str:
    """The whole page."""
    sections = [
        _header(report),
        *(f'<p class="note">{escape(note)}</p>' for note in report.notes),
        _summary(report),
        _figures(report.groups, "Curves", "curves", CURVES, _curve_words(report.groups), large=2),
        _label_issues(report),
        by_class(report),
        _annotators(report),
        _noise(report),
        _figures(report.groups, "Inside the optimizer", "telemetry", TELEMETRY, _TELEMETRY_WORDS),
        _configuration(report),
        f"<footer>Made by {escape(report.made)} from the run folders alone. This page loads nothing.</footer>",
    ]
    return page(f"{report.title} | ncsam report", "\n".join(section for section in sections if section))


def page(title: str, body: str) -> str:
    """A document around what it shows."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _header(report: Report) -> str:
    facts = "".join(
        f"<li><span>{escape(name)}</span> <b>{escape(value)}</b></li>" for name, value in report.facts.items()
    )
    return f'<header>\n<h1>{escape(report.title)}</h1>\n<ul class="facts">{facts}</ul>\n</header>'


def _summary(report: Report) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("", "seeds", *report.columns))
    rows = []
    for group, cells in zip(report.groups, report.cells, strict=True):
        numbers = "".join(map(number, cells))
        rows.append(f'<tr><th scope="row">{escape(group.label)}</th><td>{len(group.runs)}</td>{numbers}</tr>')
    words = "".join(f"<li>{_explained(text)}</li>" for text in report.explained)
    several = any(len(group.runs) > 1 for group in report.groups)
    spread = " Mean ± sample standard deviation over seeds." if several else ""
    mark = (
        " A dot marks what is better than every other row, p < .05 each in a paired t-test over seeds."
        if len(report.groups) > 1
        else ""
    )
    return (
        '<section id="summary">\n<h2>Summary</h2>\n'
        f'<p class="quiet">Test accuracies and shares in percent.{spread}{mark}</p>\n'
        f'<div class="scroll"><table class="summary"><thead><tr>{head}</tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div>\n<ul class="plain">{words}</ul>\n</section>'
    )


def _explained(text: str) -> str:
    name, _, meaning = text.partition(": ")
    return f"<code>{escape(name)}</code>: {escape(meaning)}"


def _legend(groups: Sequence[Group], panels: Sequence[Panel]) -> str:
    """The groups that are in one of the panels."""
    items = []
    for group, look in zip(groups, looks(groups), strict=True):
        if not any(group.curve(panel.metric) for panel in panels):
            continue
        line = f'stroke="var(--series-{look.color})" stroke-dasharray="{_DASHES[look.style]}"'
        swatch = f'<svg viewBox="0 0 34 10" aria-hidden="true"><path d="M0 5H34" {line} stroke-width="2.4"/></svg>'
        items.append(f"<li>{swatch}{escape(group.label)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'


def _curve_words(groups: Sequence[Group]) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    band = " Lines are means over seeds, bands one standard deviation to each side." if several else ""
    unknown = not any(group.curve("memorized") for group in groups)
    memorized = " The clean labels are not known, so memorization cannot be shown." if unknown else ""
    return f"Against the epoch.{band}{memorized}"


_TELEMETRY_WORDS = (
    "Means over the measured steps of an epoch. g is the gradient of the mini-batch, clean g that of its rightly "
    "labeled samples, g* that of the flipped ones, eps the perturbation, rho its radius, s the compensation."
)


def _figures(
    groups: Sequence[Group], title: str, name: str, panels: Sequence[Panel], words: str, *, large: int = 0
) -> str:
    """The panels that have something to show: the first `large` of them two to a row, the others three."""
    known = [panel for panel in panels if any(group.curve(panel.metric) for group in groups)]
    if not known:
        return ""
    first = [panel_svg(groups, panel, width=4.5, height=2.9) for panel in known[:large]]
    rest = [panel_svg(groups, panel, width=3.9, height=2.7) for panel in known[large:]]
    return (
        f'<section id="{name}">\n<h2>{title}</h2>\n<p class="quiet">{words}</p>\n{_legend(groups, known)}\n'
        f"{_grid(first, 'figures')}{_grid(rest, 'figures small')}</section>"
    )


def _grid(drawn: Sequence[str | None], kind: str) -> str:
    figures = "".join(f'<figure class="card">{svg}</figure>\n' for svg in drawn)
    return f'<div class="{kind}">\n{figures}</div>\n' if drawn else ""


def _annotators(report: Report) -> str:
    if not report.annotators:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{answers}</td><td>{accuracy}</td></tr>'
        for name, answers, accuracy in report.annotators
    )
    return (
        f'<section id="annotators">\n<h2>Annotators</h2>\n<p class="quiet">{escape(ANNOTATORS)}</p>\n'
        '<div class="scroll"><table class="summary"><thead><tr><th scope="col">annotator</th><th scope="col">answers'
        f'</th><th scope="col">accuracy, %</th></tr></thead><tbody>{rows}</tbody></table></div>\n</section>'
    )


def _noise(report: Report) -> str:
    if not report.noises:
        return ""
    parts = [
        '<section id="noise">\n<h2>The label noise</h2>\n<p class="quiet">Each row is a clean class; its numbers are '
        "the shares of it that carry each label.</p>"
    ]
    for run, record in report.noises:
        recipe = ", ".join(
            f"{key} {value}" for key, value in record.recipe.items() if key not in ("name", "transition")
        )
        words = f"{record.recipe.get('name')} ({recipe}): {int(record.mask.sum()):,} of {len(record):,} labels are "
        words += f"wrong, {100 * record.rate:.2f} % (run {run.folder.name})"
        readable = record.num_classes <= READABLE
        names = report.class_names
        shown = matrix(record.transition, names, "clean ↓ labeled →") if readable else _matrix_image(record)
        parts.append(f"<h3>{escape(words)}</h3>\n{shown}")
    return "\n".join([*parts, "</section>"])


def _matrix_image(record: NoisyLabels) -> str:
    figure, (ax,) = new_figure(width=6.4, height=5.4)
    figure.set_layout_engine("constrained")
    record.plot(ax)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor="white")
    uri = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img style="max-width:100%;border-radius:10px" alt="transition matrix" src="data:image/png;base64,{uri}">'


def _label_issues(report: Report) -> str:
    if not report.galleries:
        return ""
    parts = [
        '<section id="issues">\n<h2>Label issues</h2>\n<p class="quiet">Training samples whose label is most likely '
        "wrong: the <s>given label</s>, then the <b>suggested one</b>. The whole list is in each run's "
        "<code>label_issues.csv</code>.</p>"
    ]
    for place, found in enumerate(report.galleries):
        seed = "" if found.run.seed is None else f", seed {found.run.seed}"
        wrong = found.really_wrong
        share = "" if wrong is None else f": {wrong} of these {len(found.tiles)} are mislabeled"
        opened = " open" if place == 0 else ""
        parts.append(
            f"<details{opened}><summary>{escape(found.label)}{escape(seed)}{share}</summary>\n"
            f"<p>{escape(found.expected)}</p>\n"
            f'<div class="gallery">{"".join(_tile(tile, found.tiny) for tile in found.tiles)}</div></details>'
        )
    return "\n".join([*parts, "</section>"])


def _tile(tile: Tile, tiny: bool) -> str:
    row = tile.row
    given, suggested = escape(str(row["given_label"])), escape(str(row.get("suggested_label", row["predicted_label"])))
    image = ""
    if tile.image is not None:
        kind = ' class="tiny"' if tiny else ""
        image = f'<img{kind} loading="lazy" alt="sample {row["index"]}" src="{tile.image}">'
    words = "" if tile.text is None else f"<p>{escape(tile.text)}</p>"
    truth = ""
    if tile.mislabeled is not None:
        true = f"truly {escape(str(row['clean_label']))}" if tile.mislabeled else "its label was correct"
        truth = f"<small>{true}</small>"
    where = f"sample {row['index']}, label quality {row['label_quality']:.4f}"
    where += f", {row['path']}" if row.get("path") else ""
    return (
        f'<figure title="{escape(where)}">{image}{words}<figcaption><s>{given}</s> → <b>{suggested}</b>{truth}'
        f"<small>#{row['index']}, {row['label_quality']:.2f}</small></figcaption></figure>"
    )


def _configuration(report: Report) -> str:
    rows = "".join(_setting(key, value) for key, value in report.config.items())
    parts = ['<section id="configuration">\n<h2>Configuration</h2>']
    if report.differing:
        head = "".join(f'<th scope="col">{escape(key)}</th>' for key in ("", *report.differing))
        body = "".join(_differing(group, report.differing) for group in report.groups)
        parts.append(
            '<p class="quiet">What differs between the groups:</p>\n<div class="scroll"><table class="config">'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
    parts.append(
        f"<details{'' if report.differing else ' open'}><summary>What all runs share</summary>"
        f'<div class="scroll"><table class="config"><tbody>{rows}</tbody></table></div></details>'
    )
    commands = escape("\n".join(report.commands))
    parts.append(f"<details open><summary>The commands</summary><pre>{commands}</pre></details>")
    parts.append(f"<details><summary>The run folders</summary>{_folders(report.groups)}</details>")
    return "\n".join([*parts, "</section>"])


def _setting(key: str, value: Any) -> str:
    return f'<tr><th scope="row">{escape(key)}</th><td>{escape(plain(value))}</td></tr>'


def _differing(group: Group, keys: Sequence[str]) -> str:
    config = group.runs[0].config
    cells = "".join(f"<td>{escape(plain(config.get(key)))}</td>" for key in keys)
    return f'<tr><th scope="row">{escape(group.label)}</th>{cells}</tr>'


def _folders(groups: Sequence[Group]) -> str:
    def line(run: RunFolder) -> str:
        return f"{run.folder}  ({len(run.metrics)} of {run.epochs} epochs)"

    return f"<pre>{escape(chr(10).join(line(run) for group in groups for run in group.runs))}</pre>"


def plain(value: Any) -> str:
    """A configuration's value as a reader writes it: `null`, `a, b` for lists, `key: value` for mappings."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {plain(v)}" for key, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return str(value)
