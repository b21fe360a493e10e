"""Curves over epochs: mean over seeds with a band of one standard deviation, as a PNG or as SVG that follows a page.

The colors are those of Okabe and Ito, which color-blind readers can tell apart; the line style says the same again.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ncsam._errors import need
from ncsam._files import atomic_path
from ncsam._statistics import Spread
from ncsam._text import printable
from ncsam.engine.config import BASES, NEUTRAL, TRAINING
from ncsam.engine.optimizers import unused_options
from ncsam.runs.reader import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Fields in which runs of one group may differ: the seeds, the machine, and what is said about the file itself.
_NOT_IDENTITY = NEUTRAL | {
    "version",
    "command",
    "seed",
    "noise_seed",
    "devices",
    "accelerator",
    "strategy",
    "num_nodes",
}
#: Fields that a label names first when they differ, most of them by their value alone.
_NAMED_FIRST = ("data", "noise", "rate", "label_file", "model", "method", "optimizer")


class Point(NamedTuple):
    """An epoch of a curve: mean over seeds, and the standard deviation where there are several."""

    epoch: int
    mean: float
    std: float | None


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone, under a label that tells the groups of one report apart.

    Attributes:
        label: the settings that distinguish the group.
        runs: at least one run folder.
    """

    label: str
    runs: Sequence[RunFolder]

    def spread(self, metric: str) -> Spread | None:
        """Mean and standard deviation of a number over the finished runs; `None` if none has it.

        Args:
            metric: a key of the summary.
        """
        return Spread.of(run.summary.get(metric) for run in self.runs)

    def values(self, metric: str) -> dict[int, float]:
        """The metric of each finished run, by its seed.

        Args:
            metric: a key of the summary.
        """
        found = {run.seed: run.summary.get(metric) for run in self.runs}
        return {seed: float(value) for seed, value in found.items() if seed is not None and value is not None}

    def curve(self, name: str) -> list[Point]:
        """Mean and standard deviation over the runs, at the epochs that every run with the curve has reached.

        Args:
            name: a metric of the epochs, or `telemetry.NAME`; see `RunFolder.curve`.
        """
        curves = [curve for curve in (run.curve(name) for run in self.runs) if curve]
        if not curves:
            return []
        epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
        spreads = [Spread.of(curve[epoch] for curve in curves) for epoch in epochs]
        return [Point(e, s.mean, s.std) for e, s in zip(epochs, spreads, strict=True) if s is not None]


def group_runs(runs: Iterable[RunFolder]) -> list[Group]:
    """Runs by configuration, in the order in which each was first seen; the seed and the machine do not count.

    Args:
        runs: run folders in any order.
    """
    by_identity: dict[str, list[RunFolder]] = {}
    for run in runs:
        identity = {key: value for key, value in run.config.items() if key not in _NOT_IDENTITY}
        by_identity.setdefault(json.dumps(identity, sort_keys=True, default=str), []).append(run)
    members = list(by_identity.values())
    labels = _labels([_told(group[0]) for group in members])
    return [Group(label, group) for label, group in zip(labels, members, strict=True)]


def _told(run: RunFolder) -> dict[str, Any]:
    """The options that tell a run apart; those of training do not matter to a model that is fitted at once."""
    unused = {*TRAINING} - {"model", "model_options"} if run.fitted else set()
    return {key: value for key, value in run.config.items() if key not in unused}


def varying(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The fields, seeds and machine aside, in which the configurations differ.

    Args:
        configs: the options of each run.
    """
    fields = dict.fromkeys(key for config in configs for key in config if key not in _NOT_IDENTITY)
    return [key for key in fields if len({repr(config.get(key)) for config in configs}) > 1]


def _labels(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Every setting that was given more than one value, and those that are needed to tell the groups apart.

    A setting that an optimizer does not use is not said of it, and a flip ratio that follows from the rate is not said
    unless it must be.
    """
    differing = varying(configs)
    used = [{k: v for k, v in c.items() if k not in unused_options(str(c.get("optimizer")))} for c in configs]
    several = [key for key in differing if len({repr(c[key]) for c in used if c.get(key) is not None}) > 1]
    usual = ["method", "optimizer"] if any("method" in config for config in used) else ["model"]
    named = [key for key in _NAMED_FIRST if key in differing] or usual
    named += [key for key in several if key not in named and key != "flip_ratio"]
    for extra in (key for key in differing if key not in named):
        distinct = len({_label(config, named) for config in used})
        if distinct == len(configs):
            break
        if len({_label(config, [*named, extra]) for config in used}) > distinct:
            named.append(extra)
    return [_label(config, named) for config in used]


def _label(config: dict[str, Any], keys: Sequence[str]) -> str:
    said = []
    for key in keys:
        value = config.get(key)
        if isinstance(value, dict):
            said += [f"{name} {setting}" for name, setting in value.items()]
        elif value is not None:
            said.append(str(value) if key in _NAMED_FIRST and key != "rate" else f"{key} {value}")
    return ", ".join(said)


@dataclass(frozen=True)
class Panel:
    """One diagram: the metric it shows, its title, and what the vertical axis says.

    Attributes:
        metric: a name that `Group.curve` knows.
        title: above the diagram.
        axis: label of the vertical axis; one that ends in "%" limits bands to 0 to 100.
    """

    metric: str
    title: str
    axis: str

    @property
    def limits(self) -> tuple[float, float]:
        """Where a band ends: a deviation does not reach beyond what a share can be."""
        return (0.0, 100.0) if self.axis.endswith("%") else (-math.inf, math.inf)


CURVES = (
    Panel("test_accuracy", "Test accuracy", "correct, %"),
    Panel("memorized", "Wrong labels memorized", "of wrong training labels, %"),
    Panel("train_accuracy_observed", "Training accuracy, observed labels", "agrees with given label, %"),
    Panel("train_accuracy_clean", "Training accuracy, clean labels", "agrees with true label, %"),
    Panel("val_accuracy", "Validation accuracy, noisy labels", "agrees with given label, %"),
    Panel("train_loss", "Training loss", "mean loss"),
    Panel("calibration_error", "Calibration error on the test set", "expected error, %"),
    Panel("lr", "Learning rate", "learning rate"),
)
TELEMETRY = (
    Panel("telemetry.grad_norm", "Gradient norm ‖g‖", "norm"),
    Panel("telemetry.noise_grad_norm", "Norm of the noise gradient ‖g*‖", "norm"),
    Panel("telemetry.cos_grad_noise", "Gradient and noise gradient", "cos(g, g*)"),
    Panel("telemetry.compensation_ratio", "Compensation against radius", "s ‖g*‖ / rho"),
    Panel("telemetry.cos_sam", "Perturbation and SAM's own", "cos(eps, eps of SAM)"),
    Panel("telemetry.projected", "Steps where the projection binds", "of measured steps, %"),
    Panel("telemetry.rho", "Radius of the perturbation", "rho"),
    Panel("telemetry.perturbation_norm", "Length of the perturbation", "‖eps‖"),
    Panel("telemetry.flipped_mislabeled", "Flipped samples truly mislabeled", "of flipped samples, %"),
    Panel("telemetry.cos_clean", "Perturbation and clean gradient", "cos(eps, clean g)"),
    Panel("telemetry.cos_clean_sam", "SAM's own and clean gradient", "cos(eps of SAM, clean g)"),
)

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
STYLES = ("-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)))
INK, MUTED, GRID = "#1d2330", "#5b6475", "#dfe3ea"
#: Which variable of the page's style sheet each color of a themed SVG becomes.
VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid"} | {c: f"--series-{i}" for i, c in enumerate(COLORS)}


@dataclass(frozen=True)
class Look:
    """Color and line style of a group, by their numbers in `COLORS` and `STYLES`.

    Attributes:
        color: index into `COLORS`.
        style: index into `STYLES`.
    """

    color: int
    style: int


def looks(groups: Sequence[Group]) -> list[Look]:
    """Where both differ, the color tells the optimizer and the style the method; else both tell the group.

    Args:
        groups: all groups of a diagram.

    Returns:
        A look for each group, in order.
    """
    pairs = [(str(g.runs[0].config.get("optimizer")), str(g.runs[0].config.get("method"))) for g in groups]
    colors, styles = (list(dict.fromkeys(names)) for names in zip(*pairs, strict=True)) if pairs else ([], [])
    crossed = len(colors) > 1 and len(styles) > 1 and len(set(pairs)) == len(pairs)
    numbers = [(colors.index(o), styles.index(m)) if crossed else (i, i) for i, (o, m) in enumerate(pairs)]
    return [Look(color % len(COLORS), style % len(STYLES)) for color, style in numbers]


def draw(ax: Axes, groups: Sequence[Group], panel: Panel) -> bool:
    """Draw the panel's curves of all groups; `False`, and nothing drawn, if no run recorded the metric.

    Args:
        ax: the axes to draw on.
        groups: one line each.
        panel: which metric, with title and axis label.
    """
    drawn = False
    for group, look in zip(groups, looks(groups), strict=True):
        points = thinned(group.curve(panel.metric))
        if not points:
            continue
        drawn = True
        epochs, means = [p.epoch for p in points], [p.mean for p in points]
        color = COLORS[look.color]
        marker = "o" if len(points) == 1 else None
        ax.plot(
            epochs,
            means,
            color=color,
            linestyle=STYLES[look.style],
            label=printable(group.label),
            linewidth=1.8,
            marker=marker,
        )
        band = [p for p in points if p.std is not None]
        least, most = panel.limits
        low = [max(least, p.mean - (p.std or 0.0)) for p in band]
        high = [min(most, p.mean + (p.std or 0.0)) for p in band]
        ax.fill_between([p.epoch for p in band], low, high, color=color, alpha=0.16, linewidth=0)
    if drawn:
        _mark_warmup(ax, groups)
        ax.set_title(panel.title, loc="left", fontsize=11, color=INK, fontweight="bold")
        ax.set_xlabel("epoch", color=MUTED)
        ax.set_ylabel(panel.axis, color=MUTED)
        ax.locator_params(axis="x", integer=True)
        ax.grid(True, color=GRID, linewidth=0.8)
        ax.set_axisbelow(True)
        ax.tick_params(colors=MUTED, labelsize=9, length=0)
        for side in ax.spines.values():
            side.set_visible(False)
    return drawn


def thinned(points: Sequence[Point], most: int = 800) -> list[Point]:
    """At most so many points, which is more than a diagram has room for.

    Of each stretch of epochs the lowest and the highest stay, so that no peak is lost, and the first and the last.

    Args:
        points: in the order of the epochs.
        most: number of points to keep at most.
    """
    if len(points) <= most:
        return list(points)
    stretches = (most - 2) // 2
    kept = {0, len(points) - 1}
    for number in range(stretches):
        part = range(number * len(points) // stretches, (number + 1) * len(points) // stretches)
        kept |= {min(part, key=lambda i: points[i].mean), max(part, key=lambda i: points[i].mean)}
    return [points[i] for i in sorted(kept)]


def warmup_epochs(run: RunFolder) -> int:
    """Epochs of warm-up; 0 if there is none, or while automatic warm-up lasts.

    Args:
        run: a finished or unfinished run.
    """
    if run.summary:
        return int(run.summary.get("warmup_epochs") or 0)
    share = run.config.get("warmup")
    perturbs = run.config.get("optimizer") not in BASES
    return round(share * run.epochs) if perturbs and isinstance(share, (int, float)) else 0


def _mark_warmup(ax: Axes, groups: Sequence[Group]) -> None:
    ends = sorted({end for group in groups for run in group.runs if (end := warmup_epochs(run))})
    for number, end in enumerate(ends):
        ax.axvline(end, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        if number == 0:
            text = "end of warm-up" if len(ends) == 1 else "ends of warm-up"
            low, high = ax.get_ylim()
            ax.set_ylim(low, high + 0.08 * (high - low))  # room for the words above the curves
            at = ax.get_xaxis_transform()
            ax.annotate(text, (end, 1), xycoords=at, xytext=(3, -2), textcoords="offset points", va="top").set(
                fontsize=8.5, color=MUTED
            )


def new_figure(columns: int = 1, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with `columns` diagrams side by side, without a window.

    Args:
        columns: number of diagrams.
        width: inches of each diagram.
        height: inches.
    """
    figure = need("matplotlib.figure", "plot", "drawing curves").Figure(figsize=(width * columns, height))
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def save_png(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write the figure at twice the screen's resolution, on white.

    Args:
        figure: what to save.
        path: the file; an existing one is replaced.
    """
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=160, facecolor="white")
    return Path(path)


def curves_png(groups: Sequence[Group], path: str | os.PathLike[str], title: str = "") -> Path:
    """`curves_figure` as a PNG file.

    Args:
        groups: one line each.
        path: the file; an existing one is replaced.
        title: above the diagrams; none if empty.
    """
    return save_png(curves_figure(groups, title), path)


def curves_figure(groups: Sequence[Group], title: str = "") -> Figure:
    """Test accuracy and memorization side by side, or the training accuracy where the clean labels are not known.

    Args:
        groups: one line each.
        title: above the diagrams; none if empty.
    """
    known = any(group.curve("memorized") for group in groups)
    panels = CURVES[:2] if known else (CURVES[0], CURVES[2])
    figure, axes = new_figure(len(panels), width=5.2, height=3.9)
    figure.set_layout_engine("constrained")
    for ax, panel in zip(axes, panels, strict=True):
        draw(ax, groups, panel)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        columns = min(4, len(handles))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3)
    if title:
        figure.suptitle(printable(title), fontsize=10, color=MUTED, x=0.01, ha="left")
    return figure


def panel_svg(groups: Sequence[Group], panel: Panel, *, width: float, height: float) -> str | None:
    """The panel as an SVG element for a page, its colors the page's variables; `None` if there is nothing to draw.

    Args:
        groups: one line each.
        panel: which metric, with title and axis label.
        width: inches.
        height: inches.
    """
    figure, (ax,) = new_figure(width=width, height=height)
    # margins in inches, alike in all panels: they stand in line, and nothing has to be measured
    figure.subplots_adjust(left=0.62 / width, right=1 - 0.08 / width, bottom=0.48 / height, top=1 - 0.3 / height)
    return themed_svg(figure, panel.title) if draw(ax, groups, panel) else None


def themed_svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element with text as text, and with the colors of `VARIABLES` left to the page.

    Args:
        figure: its backgrounds are made transparent.
        title: label for screen readers, and seed of the ids in the SVG.
    """
    matplotlib = need("matplotlib", "plot", "drawing curves")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif"}):
        figure.patch.set_visible(False)
        for ax in figure.axes:
            ax.patch.set_visible(False)
        buffer = io.StringIO()
        none: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=none)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)  # its style would reach the whole page
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # alike in every figure; a page has each id once
    svg = re.sub(r"\s*\n\s*", " ", svg)
    for color, variable in VARIABLES.items():
        svg = re.sub(f'{color}(?=[;"])', f"var({variable})", svg, flags=re.IGNORECASE)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height)="[^"]*"', "", opening)
    return f'{opening} role="img" aria-label="{title}">{rest}'
