"""A report on runs, made from their folders alone: `report.html` for eyes, Markdown for notes and pull requests."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ncsam._arguments import count
from ncsam._errors import bad_value
from ncsam._files import atomic_path
from ncsam._statistics import Spread, difference
from ncsam._version import __version__
from ncsam.engine.config import IN_MEMORY
from ncsam.engine.metrics import OF_EPOCHS, SUMMARY
from ncsam.noise import NoisyLabels
from ncsam.report.figures import Group, group_runs, varying
from ncsam.report.sections import (
    SHOWN,
    AuditSection,
    Classes,
    Gallery,
    Leaderboard,
    audit_sections,
    by_class,
    gallery,
    leaderboard,
)
from ncsam.runs.reader import RunFolder, find_runs

#: The note on annotators.
ANNOTATORS = "Accuracy is the estimated share of an annotator's answers that are correct, given the answers of all."
#: Below this p of a paired test, a difference counts.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Cell:
    """A number of the summary; `top` marks a group that is better than all others beyond doubt over seeds.

    Attributes:
        spread: mean and standard deviation over the runs of a group; `None` if no run has the number.
        digits: decimals that are shown.
        top: whether the group is better than every other one, p < .05 each in a paired t-test over seeds.
    """

    spread: Spread | None
    digits: int
    top: bool

    @property
    def text(self) -> str:
        return "" if self.spread is None else self.spread.text(self.digits)


@dataclass(frozen=True)
class Report:
    """Everything that a report shows, before it is HTML or Markdown.

    Attributes:
        title: heading of the report.
        facts: values by name for the line under the title: number of runs, seeds, model and the like.
        groups: runs that differ in their seed alone, one row of the summary each.
        columns: metrics of the summary.
        cells: (groups, columns) of the summary.
        noises: a run and its label noise for each different noise recipe.
        class_names: in the order of the class numbers, or `None` if not known.
        galleries: the most likely label issues of each group.
        classes: results by class.
        annotators: name, number of answers and estimated accuracy in percent, as text.
        audits: findings of the dataset audits.
        leaderboards: results of model selection, for runs of `ncsam auto`.
        config: the options that all runs share.
        differing: names of the options in which runs differ.
        notes: sentences above the summary, such as which runs are not finished.
        made: version of the library and date.
    """

    title: str
    facts: dict[str, str]
    groups: Sequence[Group]
    columns: Sequence[str]
    cells: Sequence[Sequence[Cell]]
    noises: Sequence[tuple[RunFolder, NoisyLabels]]
    class_names: Sequence[str] | None
    galleries: Sequence[Gallery]
    classes: Classes
    annotators: Sequence[Sequence[str]]
    audits: Sequence[AuditSection]
    leaderboards: Sequence[Leaderboard]
    config: dict[str, Any]
    differing: Sequence[str]
    notes: Sequence[str]
    made: str

    @property
    def explained(self) -> list[str]:
        """What each column of the summary means, in the words of the runs themselves."""
        meant: dict[str, str] = {}
        for group in self.groups:
            for run in group.runs:
                meant = {**run.metric_names, **meant}
        return [f"{name}: {meant[name]}" for name in self.columns if name in meant]

    @property
    def commands(self) -> list[str]:
        """What was typed, each once."""
        return list(dict.fromkeys(run.command for group in self.groups for run in group.runs))


def gather(paths: Iterable[str | os.PathLike[str]], *, title: str | None = None, images: int = 24) -> Report:
    """Read run folders (or folders of them), and the images of the `images` most likely label issues of each group.

    Args:
        paths: run folders, or folders that hold them.
        title: heading; by default data and label noise.
        images: samples shown per group; 0 shows none.

    Raises:
        UsageError: if no run has finished an epoch.
    """
    count("images", images)
    runs = [run for run in find_runs(paths) if run.metrics]
    if not runs:
        raise bad_value("runs", [str(path) for path in paths], "none of them has finished an epoch yet")
    groups = group_runs(runs)
    configs = [run.config for run in runs]
    cells = {name: _column(groups, name) for name in SUMMARY}
    columns = [name for name, column in cells.items() if any(cell.spread for cell in column)]
    if all(run.fitted for run in runs):
        columns = [name for name in columns if name not in OF_EPOCHS]
    galleries, class_names, notes = _galleries(groups, images)
    differing = varying(configs)
    return Report(
        title=title or _title(runs),
        facts=_facts(runs, groups),
        groups=groups,
        columns=columns,
        cells=[[cells[name][row] for name in columns] for row in range(len(groups))],
        noises=_noises(runs),
        class_names=class_names,
        galleries=galleries,
        classes=by_class(groups, class_names),
        annotators=_annotators(runs),
        audits=[section for run in runs for section in audit_sections(run, min(images, SHOWN))],
        leaderboards=[board for run in runs if (board := leaderboard(run)) is not None],
        config={k: v for k, v in configs[0].items() if k not in differing and k not in ("command", "seed")},
        differing=differing,
        notes=[*_unfinished(runs), *_verified(runs), *notes],
        made=f"ncsam {__version__}, {datetime.now():%Y-%m-%d %H:%M}",
    )


def write_report(
    paths: Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    title: str | None = None,
    images: int = 24,
    metrics: Sequence[str] = (),
    markdown: bool = False,
    latex: bool = False,
) -> list[Path]:
    """Write the report to `out` (HTML); the files written.

    With `markdown` also beside it as `.md` with its PNGs, with `latex` its table as `.tex`. An `out` that ends in `.md`
    or `.tex` is that alone. `metrics` are the columns of the summary, in this order; all if empty.

    Args:
        paths: run folders, or folders that hold them.
        out: the file to write; its suffix decides the format.
        title: heading; by default data and label noise.
        images: samples shown per group; 0 shows none.
        metrics: columns of the summary; empty for all.
        markdown: also write Markdown beside an HTML report.
        latex: also write the summary as LaTeX beside an HTML report.
    """
    from ncsam.report.html import to_html
    from ncsam.report.latex import write_latex
    from ncsam.report.markdown import write_markdown

    out = Path(out)
    report = with_metrics(gather(list(paths), title=title, images=images), metrics)
    if out.suffix.lower() in (".md", ".markdown"):
        return write_markdown(report, out)
    if out.suffix.lower() == ".tex":
        return [write_latex(report, out)]
    with atomic_path(out) as temporary:
        temporary.write_text(to_html(report), encoding="utf-8", errors="backslashreplace")
    also = write_markdown(report, out.with_suffix(".md")) if markdown else []
    return [out, *also, *([write_latex(report, out.with_suffix(".tex"))] if latex else [])]


def with_metrics(report: Report, metrics: Sequence[str]) -> Report:
    """A report whose summary has these columns, in this order; all if empty.

    Args:
        report: the whole report.
        metrics: some of `report.columns`.

    Raises:
        UsageError: if a metric is not among the columns.
    """
    if unknown := [name for name in metrics if name not in report.columns]:
        raise bad_value("metrics", unknown, f"some of {', '.join(report.columns)}")
    if not metrics:
        return report
    order = [report.columns.index(name) for name in metrics]
    return replace(report, columns=list(metrics), cells=[[row[column] for column in order] for row in report.cells])


def _title(runs: Sequence[RunFolder]) -> str:
    data = list(dict.fromkeys(map(_data_name, runs)))
    noises = list(dict.fromkeys(noise_text(run.config) for run in runs))
    return ", ".join([" and ".join(data), *([noises[0]] if len(noises) == 1 and noises[0] else [])])


def _data_name(run: RunFolder) -> str:
    """The name of a run's data; of data that was passed as Python objects, the name of the run's folder."""
    data = run.config.get("data")
    if data == IN_MEMORY:
        return run.folder.name
    return Path(str(data)).stem if data else "data"


def noise_text(config: dict[str, Any]) -> str:
    """`40 % symmetric noise`, the file's name, or nothing.

    Args:
        config: the options of a run; `label_file`, `noise` and `rate` (a share) are used.
    """
    if config.get("label_file"):
        return f"labels of {Path(str(config['label_file'])).name}"
    if config.get("noise") in (None, "none"):
        return ""
    rate = config.get("rate")
    return f"{config['noise']} noise" if rate is None else f"{100 * float(rate):g} % {config['noise']} noise"


def _facts(runs: Sequence[RunFolder], groups: Sequence[Group]) -> dict[str, str]:
    rates = Spread.of(run.summary.get("noise_rate") for run in runs)
    seeds = sorted({run.seed for run in runs if run.seed is not None})
    return {
        "runs": f"{len(runs)} in {len(groups)} group{'s' if len(groups) > 1 else ''}",
        **({"seeds": ", ".join(map(str, seeds))} if seeds else {}),
        **{
            key.replace("_", " "): value
            for key in (("model",) if all(run.fitted for run in runs) else ("model", "epochs", "batch_size"))
            if (value := ", ".join(dict.fromkeys(str(run.config.get(key)) for run in runs))) != "None"
        },
        **({"wrong labels": f"{100 * rates.mean:.1f} %"} if rates is not None else {}),
    }


def _column(groups: Sequence[Group], name: str) -> list[Cell]:
    spreads = [group.spread(name) for group in groups]
    top = _clear_winner(groups, name)
    return [Cell(s, SUMMARY[name].digits, group is top) for group, s in zip(groups, spreads, strict=True)]


def _clear_winner(groups: Sequence[Group], name: str) -> Group | None:
    """The group that is better than every other, p < .05 each, in a paired t-test over the seeds that both have."""
    more_is_better = SUMMARY[name].more_is_better
    values = {id(group): group.values(name) for group in groups}
    if more_is_better is None or len(groups) < 2 or not all(values.values()):
        return None
    sign = 1 if more_is_better else -1
    best = max(groups, key=lambda group: sign * statistics.fmean(values[id(group)].values()))
    for other in groups:
        if other is not best:
            found = difference(values[id(best)], values[id(other)])
            if found is None or found.p is None or found.p >= SIGNIFICANT:
                return None
    return best


def _noises(runs: Sequence[RunFolder]) -> list[tuple[RunFolder, NoisyLabels]]:
    """One record per recipe: seeds give other draws of the same noise, and one of them shows it."""
    found: dict[str, tuple[RunFolder, NoisyLabels]] = {}
    for run in runs:
        if run.noise is not None:
            found.setdefault(repr((run.config.get("data"), run.noise.recipe)), (run, run.noise))
    return list(found.values())


def _annotators(runs: Sequence[RunFolder]) -> list[list[str]]:
    """Name, answers and estimated accuracy in percent of the first run's annotators, who has answered most first."""
    people = next((run.annotators for run in runs if run.annotators), [])
    try:
        rows = [(each["annotator"], int(each["answers"]), float(each["accuracy"])) for each in people]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"annotators.csv is not the list of annotators that training writes: {error}") from error
    return [[name, f"{n:,}", f"{100 * accuracy:.1f}"] for name, n, accuracy in sorted(rows, key=lambda row: -row[1])]


def _unfinished(runs: Sequence[RunFolder]) -> list[str]:
    return [
        f"{run.folder.name} is not finished: {len(run.metrics)} of {run.epochs} epochs. It has curves but no summary."
        for run in runs
        if not run.finished
    ]


def _verified(runs: Sequence[RunFolder]) -> list[str]:
    """Which runs knew some verified labels, and whose: figures of others do not compare with theirs."""
    found: dict[str, None] = {}
    for run in runs:
        if (about := run.summary.get("verified")) is not None:
            told = f"whether {about['samples']:,} labels are correct: {about['source']}"
            words = f"{run.config.get('method')} was told {told}."
            found[words] = None
    return list(found)


def _galleries(groups: Sequence[Group], images: int) -> tuple[list[Gallery], Sequence[str] | None, list[str]]:
    galleries = [gallery(group.runs[0], group.label, images) for group in groups] if images else []
    galleries = [found for found in galleries if found.tiles]
    notes = list(dict.fromkeys(found.missing for found in galleries if found.missing))
    classes = next((found.classes for found in galleries if found.classes), None)
    return galleries, classes, notes
