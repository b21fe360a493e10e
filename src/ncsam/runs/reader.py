"""Run folders, read back: `Run` is what one of them holds."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any

from ncsam._errors import bad_value
from ncsam._files import parse_yaml, read_json, read_text
from ncsam._options import coerce
from ncsam.data.types import UNKNOWN
from ncsam.engine.config import RunConfig
from ncsam.noise import NoisyLabels

#: Beside the runs of a comparison: the command that made them.
COMMAND_FILE = "command.txt"

#: Of a summary: what is shown as a number, and what counts epochs.
_FIGURES = (
    *(
        "best",
        "last",
        "last5",
        "last10",
        "val_chosen",
        "memorized",
        "noise_rate",
        "noise_estimate",
        "label_issues_auroc",
    ),
    *("seconds", "flip_ratio"),
)
_COUNTS = ("epochs", "warmup_epochs")
#: Of every row of `label_issues.csv`, and of which type.
_KNOWN: dict[str, Any] = {"index": int, "observed": int, "suggested": int, "suspicion": (int, float)}
#: Of a summary: what is a mapping, with the types of what it must hold.
_MAPPINGS: dict[str, dict[str, Any]] = {
    "metric_names": {},
    "verified": {"samples": int, "source": str},
    "noise_at_end": {"rate": float, "low": float, "high": float, "samples": int},
}


@dataclass(frozen=True)
class LabelIssue:
    """One row of `label_issues.csv`; class numbers, and `None` where the run did not know."""

    index: int
    observed: int
    suggested: int
    suspicion: float
    clean: int | None
    path: str | None


@dataclass(frozen=True)
class Run:
    """A run folder. `metrics` holds a dictionary per epoch; `summary` is empty while the run is not finished."""

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Run:
        """Read `config.yaml`, `metrics.jsonl` and, if the run is finished, `summary.json`."""
        folder = Path(folder)
        if not (folder / "config.yaml").is_file():
            there = "holds no config.yaml" if folder.is_dir() else "does not exist"
            raise bad_value("run", str(folder), f"a run folder is what `ncsam train --out` wrote; this one {there}")
        path = folder / "config.yaml"
        config = parse_yaml(read_text(path), str(path))
        if not isinstance(config, dict):
            raise ValueError(f"{path} holds {type(config).__name__}, not a configuration")
        if odd := [name for name in config if not isinstance(name, str)]:
            raise ValueError(f"{path} holds {odd[0]!r} in the place of an option's name")
        try:
            RunConfig.from_dict({name: value for name, value in config.items() if name in RunConfig.describe()})
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        return cls(folder, config, _read_lines(folder / "metrics.jsonl"), _read_summary(folder / "summary.json"))

    @property
    def metric_names(self) -> dict[str, str]:
        """What each number of the summary means, in the run's own words."""
        return dict(self.summary.get("metric_names") or {})

    @property
    def command(self) -> str:
        """What was typed for this run, or for the comparison it belongs to; else what repeats it."""
        if self.config.get("command"):
            return str(self.config["command"])
        of_all = self.folder.parent / COMMAND_FILE
        if of_all.is_file():
            return of_all.read_text(encoding="utf-8", errors="backslashreplace").strip()
        return f"ncsam train --config {self.folder / 'config.yaml'}"

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def epochs(self) -> int:
        return int(self.config.get("epochs") or len(self.metrics))

    @property
    def warmup_epochs(self) -> int:
        """Epochs of warm-up; 0 if there is none, or none has ended by itself yet."""
        if self.config.get("warmup") == "auto":
            return int(self.summary.get("warmup_epochs") or 0)
        fields = {key: self.config[key] for key in ["optimizer", "warmup"] if key in self.config}
        return RunConfig(**fields, epochs=self.epochs).warmup_epochs

    @property
    def classes(self) -> list[str] | None:
        """The class names, as the checkpoint's notes hold them."""
        file = self.folder / "checkpoints" / "last.json"
        try:
            data = coerce("data", _read_json(file).get("data"), dict[str, Any] | None) or {}
            return coerce("classes", data.get("classes"), list[str] | None)  # type: ignore[no-any-return]
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    @property
    def trust(self) -> dict[str, Any]:
        """How far the label issues are to be trusted, as `label_posterior.json` has it."""
        return _read_json(self.folder / "label_posterior.json")

    @property
    def annotators(self) -> list[dict[str, str]]:
        """Those whose answers were joined into the labels: `annotator`, `answers`, `accuracy` (a share), as text."""
        return list(_read_table(self.folder / "annotators.csv"))

    @cached_property
    def noise(self) -> NoisyLabels | None:
        """The label noise that the run made, if it made any."""
        if not (self.folder / "noise.npz").is_file():
            return None
        return NoisyLabels.load(self.folder / "noise.npz")

    def issue_rows(self, limit: int | None = None) -> list[dict[str, Any]]:
        """The first rows of `label_issues.csv`, the least plausible labels first; empty if there is none."""
        file = self.folder / "label_issues.csv"
        return [_label_issue(row, file) for row in islice(_read_table(file), limit)]

    def label_issues(self, limit: int | None = None) -> list[LabelIssue]:
        """The same as records of what every run knows of a label issue."""
        return [
            LabelIssue(r["index"], r["observed"], r["suggested"], r["suspicion"], r.get("clean"), r.get("path"))
            for r in self.issue_rows(limit)
        ]

    def curve(self, name: str) -> dict[int, float]:
        """`{epoch: value}` of a metric, or of `telemetry.NAME`; epochs without the value are left out."""
        field, _, rest = name.partition(".")
        found: dict[int, float] = {}
        for row in self.metrics:
            value = (row.get(field) or {}).get(rest) if rest else row.get(field)
            if value is not None and math.isfinite(value):
                found[int(row["epoch"])] = float(value)
        return found


def class_name(classes: Sequence[str] | None, label: int) -> str:
    """A class by its name, or by its number where names are not known; a clean label may be known to differ only."""
    if label == UNKNOWN:
        return "another class"
    return classes[label] if classes and 0 <= label < len(classes) else str(label)


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """The run folders among `paths`, and those one level below a folder of runs (that of `ncsam compare`)."""
    runs = []
    for path in map(Path, paths):
        below = sorted(child.parent for child in path.glob("*/config.yaml")) if path.is_dir() else []
        runs += [Run.read(path)] if (path / "config.yaml").is_file() or not below else _in_order(path, below)
    return list({run.folder.resolve(): run for run in runs}.values())


def _in_order(folder: Path, below: Sequence[Path]) -> list[Run]:
    """The runs of a comparison in the order of its rows; else as they are named."""
    file = folder / "comparison.json"
    try:
        rows = json.loads(read_text(file)) if file.is_file() else []
        places = {name: place for place, name in enumerate(name for row in rows for name in row.get("runs", ()))}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is not the record of a comparison: remove it, and runs go by their names") from error
    return [Run.read(path) for path in sorted(below, key=lambda path: places.get(path.name, len(places)))]


def _read_table(file: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV by the names of its columns; none if there is no file, one sentence for whatever is wrong."""
    if not file.is_file():
        return
    with file.open(encoding="utf-8", errors="backslashreplace", newline="") as stream:
        rows = csv.DictReader(stream)
        try:
            for row in rows:
                if None in row or None in row.values():
                    wanted = len(rows.fieldnames or ())
                    raise ValueError(f"{file}, line {rows.line_num}, has not {wanted} fields as the header has")
                yield row
        except csv.Error as error:
            raise ValueError(f"{file}, line {rows.line_num}, is not a row of a table: {error}") from error


def _label_issue(row: dict[str, str], file: Path) -> dict[str, Any]:
    """A row of `label_issues.csv` with numbers as numbers; what every run writes is there."""
    if gone := [name for name in _KNOWN if name not in row]:
        raise ValueError(f"{file} has no column {gone[0]!r}")
    found = {key: _typed(key, text) for key, text in row.items()}
    for name, kinds in _KNOWN.items():
        if not isinstance(found[name], kinds) or (name == "index" and found[name] < 0):
            raise ValueError(f"{file}: {name}={row[name]!r} is not what a run writes there")
    if not isinstance(found.get("clean"), (int, NoneType)):
        raise ValueError(f"{file}: clean={row['clean']!r} is no class number")
    if (found.get("p_wrong") is None) != (found.get("p_suggested") is None):
        raise ValueError(f"{file}: p_wrong and p_suggested are both known, or neither is")
    return found


def _typed(key: str, text: str) -> Any:
    """A cell of `label_issues.csv`: a whole number, a number, a path, a text, or nothing."""
    if not text or key in ("path", "text"):
        return text or None
    try:
        return int(text) if text.removeprefix("-").isdecimal() and len(text) < 16 else float(text)
    except ValueError:
        raise ValueError(f"label_issues.csv: {key}={text!r} is not a number") from None


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    return read_json(file)


def _read_summary(file: Path) -> dict[str, Any]:
    """A summary whose figures are figures, and whose words are words."""
    summary = _read_json(file)
    hints: dict[str, Any] = dict.fromkeys(_FIGURES, int | float | None) | dict.fromkeys(_COUNTS, int | None)
    try:
        for name in summary.keys() & hints.keys():
            summary[name] = coerce(name, summary[name], hints[name])
        for name, kinds in _MAPPINGS.items():
            inside = coerce(name, summary.get(name), dict[str, Any] | None)
            for key in kinds if inside is not None else ():
                inside[key] = coerce(f"{name}.{key}", inside.get(key), kinds[key])
        for name, meaning in (summary.get("metric_names") or {}).items():
            coerce(f"metric_names.{name}", meaning, str)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return summary


def _read_lines(file: Path) -> list[dict[str, Any]]:
    """A dictionary per line. A last line that is cut off belongs to a run that was stopped, or is being written."""
    if not file.is_file():
        return []
    lines = [line for line in read_text(file).splitlines() if line.strip()]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise ValueError(f"{file}, line {number}, is not readable JSON: {error}") from error
            continue
        if not is_record(row):
            raise ValueError(f"{file}, line {number}, is not the record of an epoch")
        rows.append(row)
    return rows


def is_record(row: Any) -> bool:
    """Numbers by name, among them the epoch, and `telemetry` as a mapping of them."""
    if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
        return False
    measured = row.get("telemetry") or {}
    numbers = [value for name, value in row.items() if name != "telemetry"]
    return isinstance(measured, dict) and all(
        value is None or isinstance(value, (int, float)) for value in [*numbers, *measured.values()]
    )
