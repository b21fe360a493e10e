"""`report.html`: one self-contained file, readable offline, on a screen or a phone, in light or dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ncsam._errors import need
from ncsam.noise import NoisyLabels
from ncsam.report.content import ANNOTATORS, Cell, Report
from ncsam.report.figures import CURVES, STYLES, TELEMETRY, Group, Panel, looks, new_figure, panel_svg

if TYPE_CHECKING:
    from jinja2 import Environment

#: Up to this many classes a matrix is a table with numbers; above, an image or nothing.
READABLE = 20
_DASHES = ("", "6 3", "7 3 1.5 3", "1.5 3", "8 2 2 2 2 2")
assert len(_DASHES) == len(STYLES)
_TELEMETRY_WORDS = (
    "Means over the measured steps of an epoch. g is the gradient of the mini-batch, clean g that of its correctly "
    "labeled samples, g* that of the flipped ones, eps the perturbation, rho its radius, s the compensation."
)


def to_html(report: Report) -> str:
    """The page of a report.

    Args:
        report: what `gather` returns.
    """
    groups = report.groups
    return _render(
        "report.html",
        title=f"{report.title} | ncsam report",
        report=report,
        several=any(len(group.runs) > 1 for group in groups),
        curves=_figures(groups, "Curves", "curves", CURVES, _curve_words(groups), large=2),
        telemetry=_figures(groups, "Inside the optimizer", "telemetry", TELEMETRY, _TELEMETRY_WORDS),
        accuracies=[[Cell(spread, 1, False) for spread in row] for row in report.classes.accuracies],
        confusions=[c for c in report.classes.confusions if c.noise or c.transitions or _is_readable(c.shares)],
        readable=READABLE,
        annotators_words=ANNOTATORS,
        noises=[_noise(run.folder.name, record) for run, record in report.noises],
    )


def page(title: str, body: str) -> str:
    """A document around a body that is HTML already.

    Args:
        title: plain text, which is escaped.
        body: trusted HTML, which is not escaped.
    """
    markup = need("markupsafe", "train", "writing a page").Markup
    return _render("page.html", title=title, body=markup(body))


def plain(value: Any) -> str:
    """A configuration's value as a reader writes it: `null`, `a, b` for lists, `key: value` for mappings.

    Args:
        value: as YAML holds it: a scalar, a list or a mapping.
    """
    if value is None:
        return "null"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {plain(v)}" for key, v in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(plain, value)) or "none"
    return str(value)


@cache
def _environment() -> Environment:
    """Templates in which every value is escaped, unless it is marked as HTML."""
    jinja2 = need("jinja2", "train", "writing a report")
    found: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ncsam.report"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    found.filters["plain"] = plain
    return found


def _render(name: str, **values: Any) -> str:
    return _environment().get_template(name).render(**values)


def _is_readable(shares: Any) -> bool:
    return shares is not None and len(shares) <= READABLE


def _curve_words(groups: Sequence[Group]) -> str:
    several = any(len(group.runs) > 1 for group in groups)
    band = " Lines are means over seeds, bands one standard deviation to each side." if several else ""
    unknown = not any(group.curve("memorized") for group in groups)
    memorized = " The clean labels are not known, so memorization cannot be shown." if unknown else ""
    return f"Against the epoch.{band}{memorized}"


def _figures(
    groups: Sequence[Group], title: str, name: str, panels: Sequence[Panel], words: str, *, large: int = 0
) -> dict[str, Any] | None:
    """The panels that have something to show: the first `large` of them two to a row, the others three."""
    markup = need("markupsafe", "train", "writing a page").Markup
    known = [panel for panel in panels if any(len(group.curve(panel.metric)) > 1 for group in groups)]
    if not known:
        return None
    legend = [
        {"label": group.label, "color": look.color, "dashes": _DASHES[look.style]}
        for group, look in zip(groups, looks(groups), strict=True)
        if any(group.curve(panel.metric) for panel in known)
    ]
    return {
        "name": name,
        "title": title,
        "words": words,
        "legend": legend,
        "large": [markup(panel_svg(groups, panel, width=4.5, height=2.9) or "") for panel in known[:large]],
        "small": [markup(panel_svg(groups, panel, width=3.9, height=2.7) or "") for panel in known[large:]],
    }


def _noise(run: str, record: NoisyLabels) -> dict[str, Any]:
    options = [f"{key} {value}" for key, value in record.recipe.items() if key not in ("name", "transition")]
    words = f"{record.recipe.get('name')} ({', '.join(options)}): {int(record.mask.sum()):,} of {len(record):,} labels "
    words += f"are wrong, {100 * record.rate:.2f} % (run {run})"
    image = None if record.num_classes <= READABLE else _matrix_image(record)
    return {"words": words, "transition": record.transition, "image": image}


def _matrix_image(record: NoisyLabels) -> str:
    figure, (ax,) = new_figure(width=6.4, height=5.4)
    figure.set_layout_engine("constrained")
    record.plot(ax)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor="white")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
