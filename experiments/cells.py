"""The cells of a table: runs of the engine in their folders, or numbers that a function measured, in a file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ncsam._files import atomic_path
from ncsam.comparison import compare
from ncsam.comparison.specs import folder_name
from ncsam.engine import RunConfig
from ncsam.runs.reader import RunFolder

Options = Mapping[str, Any]
#: A number by seed.
Values = dict[int, float]


@dataclass(frozen=True)
class Setting:
    """A row: optimizer and method, as specs of `ncsam compare`."""

    optimizer: str
    method: str = "ce"


@dataclass(frozen=True)
class Chosen:
    """A row that follows from others: the spec `template` at the one of `values` that noisy validation prefers.

    `among` is the spec that was tried at each value; both have `{}` where it goes. Test data choose nothing.
    """

    template: str
    among: str
    values: Sequence[float]


@dataclass(frozen=True)
class Table:
    """Settings (rows) on problems (columns), with several seeds each.

    problems: name -> options of `RunConfig`, over those in `shared`; with `measure`, whatever it understands.
    settings: name -> an optimizer's spec, a `Setting`, or a `Chosen`; with `measure`, whatever it understands.
    seeds: how many, from 1.
    controls: name of a setting -> the one that it is compared with, seed by seed.
    metrics: the first is shown with its standard error and against the controls, the others as means. A metric is one
        of the summary, or of the epochs: then it is the mean of the last five.
    digits: of the numbers shown.
    measure: `(options of the problem, setting, seed) -> number`, for cells that are no runs; `None` leaves one out.
    quick: options that `--quick` puts over those of a problem.
    show: what prints it as Markdown, part by part; by default `common.tables`.
    """

    name: str
    problems: Mapping[str, Options]
    settings: Mapping[str, Any]
    seeds: int = 3
    shared: Options = field(default_factory=dict)
    controls: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[str] = ("last5", "memorized")
    digits: int = 1
    measure: Callable[[Options, Any, int], float | None] | None = None
    quick: Options = field(default_factory=lambda: {"epochs": 5})
    show: Callable[[Table, Results], Iterator[str]] | None = None

    def options(self, problem: str) -> dict[str, Any]:
        return {**self.shared, **self.problems[problem]}

    def smaller(self) -> Table:
        """The first problem, one seed, and what `quick` says: to see that it works."""
        name = next(iter(self.problems))
        return replace(self, problems={name: {**self.options(name), **self.quick}}, seeds=1)


class Results(Protocol):
    """The numbers of a table in a folder."""

    def run(self, problem: str, settings: Sequence[str], jobs: int) -> None:
        """Do what is not done yet of some settings on one problem."""

    def values(self, problem: str, setting: str, metric: str) -> Values:
        """The number of every seed; empty unless all of them are finished."""


class Runs:
    """Cells that are runs of the engine."""

    def __init__(self, table: Table, out: Path) -> None:
        self.table, self.out = table, out

    def run(self, problem: str, settings: Sequence[str], jobs: int) -> None:
        print(f"# {self.table.name}, {problem}", flush=True)
        named = [name for name in settings if not isinstance(self.table.settings[name], Chosen)]
        chosen = [name for name in settings if name not in named]
        for names in (named, chosen):  # what is chosen among others comes after them
            self._compare(problem, [s for name in names if (s := self._setting(problem, name)) is not None], jobs)

    def _compare(self, problem: str, settings: Sequence[Setting], jobs: int) -> None:
        config = RunConfig.from_dict(self.table.options(problem))
        alike: dict[tuple[str, ...], list[str]] = {}  # methods by their optimizers: each comparison starts processes
        for method in dict.fromkeys(setting.method for setting in settings):
            specs = dict.fromkeys(s.optimizer for s in settings if s.method == method)
            alike.setdefault(tuple(specs), []).append(method)
        seeds = range(1, self.table.seeds + 1)
        for optimizers, methods in alike.items():
            compare(config, self._folder(problem), methods=methods, optimizers=optimizers, seeds=seeds, workers=jobs)

    def values(self, problem: str, setting: str, metric: str) -> Values:
        found = self._setting(problem, setting)
        return {} if found is None else self._values(problem, found, metric)

    def chosen(self, problem: str, row: Chosen) -> float | None:
        """The value whose noisy-validation accuracy is best, in the mean of seeds and the last five epochs."""
        tried = {value: self._values(problem, Setting(row.among.format(value)), "val_accuracy") for value in row.values}
        means = {value: statistics.fmean(found.values()) for value, found in tried.items() if found}
        return max(means, key=lambda value: means[value]) if means else None

    def _folder(self, problem: str) -> Path:
        return self.out / self.table.name / problem.replace(" ", "")

    def _setting(self, problem: str, name: str) -> Setting | None:
        row = self.table.settings[name]
        if isinstance(row, Chosen):
            value = self.chosen(problem, row)
            return None if value is None else Setting(row.template.format(value))
        return Setting(row) if isinstance(row, str) else row

    def _values(self, problem: str, setting: Setting, metric: str) -> Values:
        values = {}
        for seed in range(1, self.table.seeds + 1):
            folder = self._folder(problem) / folder_name(setting.method, setting.optimizer, seed)
            run = RunFolder.read(folder) if (folder / "summary.json").is_file() else None
            value = None if run is None else number(run, metric)
            if value is None:
                return {}
            values[seed] = value
        return values


def number(run: RunFolder, metric: str) -> float | None:
    """A metric of the summary, or the mean of an epoch's metric over the last five epochs."""
    if metric in run.summary:
        return run.summary[metric]
    last = list(run.curve(metric).values())[-5:]
    return statistics.fmean(last) if last else None


class Measured:
    """Cells that a function measures, kept in a file as they come."""

    def __init__(self, table: Table, out: Path) -> None:
        self.table, self.file = table, out / f"{table.name}.json"
        self._kept = json.loads(self.file.read_text(encoding="utf-8")) if self.file.is_file() else {}

    def run(self, problem: str, settings: Sequence[str], jobs: int) -> None:
        assert self.table.measure is not None
        for seed in range(1, self.table.seeds + 1):
            for setting in settings:
                key = self._key(problem, setting, seed)
                if key not in self._kept:
                    row = self.table.settings[setting]
                    self._kept[key] = self.table.measure(self.table.options(problem), row, seed)
                    write(self.file, json.dumps(self._kept, indent=2) + "\n")
                    print(f"# {key}: {self._kept[key]}", flush=True)

    def values(self, problem: str, setting: str, metric: str) -> Values:
        seeds = range(1, self.table.seeds + 1)
        found = {seed: self._kept.get(self._key(problem, setting, seed)) for seed in seeds}
        return {} if None in found.values() else found

    def _key(self, problem: str, setting: str, seed: int) -> str:
        return f"{problem} | {setting} | seed {seed}"


def results(table: Table, out: Path) -> Results:
    return Runs(table, out) if table.measure is None else Measured(table, out)


def write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
