"""Run folders, read back: `RunFolder` is what one of them holds. Light: neither torch nor training code is imported."""

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
from typing import TYPE_CHECKING, Any

import numpy as np

from ncsam._arguments import coerce
from ncsam._errors import bad_value
from ncsam._files import open_arrays, parse_yaml, read_json, read_text
from ncsam._text import table_cell
from ncsam.errors import DamagedFileError, RunError
from ncsam.issues.table import CLASS_COLUMNS, MAIN, LabelIssues
from ncsam.runs import layout
from ncsam.runs.writer import Config, OutOfFold

if TYPE_CHECKING:
    from ncsam.noise import NoisyLabels

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
        "warmup_noise",
        "test_balanced_accuracy",
        "test_f1",
        "test_auc",
        "label_issues_auroc",
    ),
    *("seconds", "flip_ratio"),
)
_COUNTS = ("epochs", "warmup_epochs")
#: Columns of `label_issues.csv` that hold whole numbers; those that hold text; the others hold numbers.
_WHOLE = ("index", *CLASS_COLUMNS, "is_label_issue", "times_flipped", "times_forgotten", "first_learned", "held_out")
_TEXT = ("path", "text")
#: Of a summary: what is a mapping, with the types of what it must hold.
_MAPPINGS: dict[str, dict[str, Any]] = {
    "metric_names": {},
    "verified": {"samples": int, "source": str},
    "noise_estimate": {"estimate": float, "low": float, "high": float},
}


@dataclass(frozen=True)
class RunFolder:
    """A run folder. `metrics` holds a dictionary per epoch; `summary` is empty while the run is not finished.

    Attributes:
        folder: where the run lies.
        config: the options of `config.yaml`, with `version` and `command` where they were noted.
        metrics: the records of the finished epochs, in order.
        summary: the content of `summary.json`.
    """

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> RunFolder:
        """Read `config.yaml`, `metrics.jsonl` and, if the run is finished, `summary.json`.

        Args:
            folder: the run folder.

        Raises:
            UsageError: if the folder does not exist or holds no `config.yaml`.
            DamagedFileError: if a record of an epoch cannot be read.
            ValueError: if the configuration or the summary is not of the expected form.
        """
        folder = Path(folder)
        path = folder / layout.CONFIG
        if not path.is_file():
            there = f"holds no {layout.CONFIG}" if folder.is_dir() else "does not exist"
            raise bad_value("run", str(folder), f"a run folder written by ncsam; this one {there}")
        config = parse_yaml(read_text(path), str(path))
        if not isinstance(config, dict):
            raise ValueError(f"{path} holds {type(config).__name__}, not a configuration")
        for name in _names(config):
            if not isinstance(name, str):
                raise ValueError(f"{path} holds {name!r} in place of an option's name")
        for name in (name for name in config if name.endswith("_options")):
            if not isinstance(config[name], dict | None):
                raise ValueError(f"{path}: invalid {name}={config[name]!r}: expected options by name")
        return cls(folder, config, _read_lines(folder / layout.METRICS), _read_summary(folder / layout.SUMMARY))

    @property
    def metric_names(self) -> dict[str, str]:
        """What each number of the summary means, in the run's own words."""
        names = dict(self.summary.get("metric_names") or {})
        return (
            {name: text.replace(" after the last epoch", "") for name, text in names.items()} if self.fitted else names
        )

    @property
    def fitted(self) -> bool:
        """Whether a closed-form model was fitted: there are no epochs, and neither method nor optimizer counts."""
        return self.summary.get("method") == "fit"

    @property
    def command(self) -> str:
        """What was typed for this run, or for the comparison it belongs to; else what repeats it."""
        if self.config.get("command"):
            return str(self.config["command"])
        of_all = self.folder.parent / layout.COMMAND
        if of_all.is_file():
            return of_all.read_text(encoding="utf-8", errors="backslashreplace").strip()
        return f"ncsam train --config {self.folder / layout.CONFIG}"

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def seed(self) -> int | None:
        return self._whole_number("seed")

    @property
    def epochs(self) -> int:
        return self._whole_number("epochs") or len(self.metrics)

    def _whole_number(self, option: str) -> int | None:
        """An option of `config.yaml`."""
        try:
            return coerce(option, self.config.get(option), int | None)  # type: ignore[no-any-return]
        except ValueError as error:
            raise ValueError(f"{self.folder / layout.CONFIG}: {error}") from error

    @property
    def classes(self) -> list[str] | None:
        """The class names, as the checkpoint's notes hold them."""
        file = layout.checkpoints(self.folder) / layout.LAST_NOTES
        notes = _read_json(file)
        try:
            data = coerce("data", notes.get("data"), dict[str, Any] | None) or {}
            return coerce("classes", data.get("classes"), list[str] | None)  # type: ignore[no-any-return]
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error

    @property
    def labels_sha256(self) -> str | None:
        """SHA-256 of the labels that the run was trained on, as the checkpoint's notes hold it."""
        found = _read_json(layout.checkpoints(self.folder) / layout.LAST_NOTES).get("labels_sha256")
        return found if isinstance(found, str) else None

    @property
    def posterior(self) -> dict[str, Any]:
        """Whether p_wrong is reliable, and why not, as `label_posterior.json` has it."""
        return _read_json(self.folder / layout.POSTERIOR)

    @property
    def annotators(self) -> list[dict[str, str]]:
        """The annotators whose answers were aggregated: `annotator`, `answers`, `accuracy` (a share), as text."""
        return list(_read_table(self.folder / layout.ANNOTATORS))

    @cached_property
    def noise(self) -> NoisyLabels | None:
        """The label noise that the run made, if it made any."""
        from ncsam.noise import NoisyLabels

        path = self.folder / layout.NOISE
        return NoisyLabels.load(path) if path.is_file() else None

    def label_issues(self, limit: int | None = None) -> LabelIssues:
        """The first `limit` label issues, the labels most likely wrong first; all by default.

        Args:
            limit: number of rows; `None` reads all.

        Raises:
            UsageError: if the run has not written them yet.
        """
        file = self.folder / layout.LABEL_ISSUES
        if not file.is_file():
            raise bad_value("run", str(self.folder), f"a finished run; this one has no {layout.LABEL_ISSUES} yet")
        rows = list(islice(_read_table(file), limit))
        return LabelIssues(_columns(rows, file), self.classes, self.posterior)

    def curve(self, name: str) -> dict[int, float]:
        """`{epoch: value}` of a metric, or of `telemetry.NAME`; epochs without the value are left out.

        Args:
            name: a key of the records in `metrics`, or `telemetry.NAME`.
        """
        field, _, rest = name.partition(".")
        found: dict[int, float] = {}
        for row in self.metrics:
            value = (row.get(field) or {}).get(rest) if rest else row.get(field)
            if value is not None and math.isfinite(value):
                found[int(row["epoch"])] = float(value)
        return found


def read_summary(folder: str | os.PathLike[str], config: Config) -> dict[str, Any] | None:
    """The summary of a finished run; `None` if it is not finished.

    A run that never reached a checkpoint has nothing to lose, so its configuration does not count.

    Args:
        folder: the run folder; it need not exist.
        config: the configuration that the run is expected to have.

    Raises:
        RunError: if the folder holds a run with another configuration, or the summary is damaged.
    """
    folder = Path(folder)
    path, saved = folder / layout.SUMMARY, folder / layout.CONFIG
    if saved.is_file() and (layout.has_checkpoint(folder) or path.exists()):
        options = parse_yaml(read_text(saved), str(saved))
        if not isinstance(options, dict):
            raise ValueError(f"{saved} must hold `option: value` lines, not {type(options).__name__}")
        about = ("version", "command")
        known = {name: value for name, value in options.items() if name not in about}
        refuse_another(folder, config, type(config).from_dict(known))
    if not path.is_file():
        return None
    try:
        return _read_summary(path)
    except ValueError as error:
        raise RunError(f"{path} cannot be read as the summary of a run: remove it and rerun the command") from error


def refuse_another(folder: Path, config: Config, saved: Config) -> None:
    """Raise `RunError` if the run that is saved in a folder is not the one that is wanted.

    Args:
        folder: the run folder, for the message.
        config: the configuration that is wanted.
        saved: the configuration found in the folder.
    """
    changed = config.conflicts(saved)
    if changed:
        listed = "; ".join(f"{name} was {was!r}, now {now!r}" for name, (was, now) in changed.items())
        raise RunError(f"{folder} holds a run with another configuration ({listed}): choose another folder")


def load_oof(folder: Path) -> OutOfFold | None:
    """The out-of-fold predictions of a run; `None` if it has none.

    Args:
        folder: the run folder.

    Raises:
        ValueError: if the file does not hold what `save_oof` writes.
    """
    path = folder / layout.OOF
    if not path.is_file():
        return None
    with open_arrays(path) as arrays:
        if not {"probabilities", "about"} <= arrays.keys():
            raise ValueError(f"{path} does not hold out-of-fold predictions")
        rows, text = arrays["probabilities"], arrays["about"]
    if rows.ndim != 2 or rows.dtype.kind != "f" or not np.isfinite(rows).all():
        raise ValueError(f"{path} does not hold probabilities (samples, classes)")
    try:
        about = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its notes are not JSON") from error
    if not isinstance(about, dict):
        raise ValueError(f"{path} is damaged: its notes are not values by name")
    return OutOfFold(rows.astype(np.float32, copy=False), about)


def read_verified_labels(folder: Path, classes: Sequence[str]) -> dict[int, int]:
    """Class numbers of the samples that were verified before the run; empty where there are none.

    Args:
        folder: the run folder.
        classes: the class names, in the order of the class numbers.

    Returns:
        Class number by position in the training split.

    Raises:
        ValueError: if a row has no position, or a class that is not among `classes`.
    """
    path = folder / layout.VERIFIED
    numbers = {table_cell(name): number for number, name in enumerate(classes)}
    try:
        return {int(row["index"]): numbers[row["label"]] for row in _read_table(path)}
    except (LookupError, ValueError) as error:
        raise ValueError(f"{path} does not hold verified labels of this data") from error


def read_by_class(folder: Path) -> dict[str, Any]:
    """The confusion and transition matrices of a run; empty where there are none.

    Args:
        folder: the run folder.

    Returns:
        Arrays (classes, classes) by name: `test` and `held_out` count samples, a row per given label and a column per
        predicted one; `transition` is the estimated transition matrix. A run may lack some of them.
    """
    if not (folder / layout.BY_CLASS).is_file():
        return {}
    with open_arrays(folder / layout.BY_CLASS) as arrays:
        return dict(arrays)


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[RunFolder]:
    """The run folders among `paths`, and those one level below a folder of runs (that of `ncsam compare`).

    Args:
        paths: run folders or folders that hold them; a run that is found twice is returned once.
    """
    runs = []
    for path in map(Path, paths):
        below = sorted(child.parent for child in path.glob(f"*/{layout.CONFIG}")) if path.is_dir() else []
        runs += [RunFolder.read(path)] if (path / layout.CONFIG).is_file() or not below else _in_order(path, below)
    return list({run.folder.resolve(): run for run in runs}.values())


def _in_order(folder: Path, below: Sequence[Path]) -> list[RunFolder]:
    """The runs of a comparison in the order of its rows; else as they are named."""
    file = folder / layout.COMPARISON
    try:
        rows = json.loads(read_text(file)) if file.is_file() else []
        places = {name: place for place, name in enumerate(name for row in rows for name in row.get("runs", ()))}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} is not the record of a comparison: remove it to list the runs by name") from error
    return [RunFolder.read(path) for path in sorted(below, key=lambda path: places.get(path.name, len(places)))]


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


def _columns(rows: list[dict[str, str]], file: Path) -> dict[str, Any]:
    """The columns of `label_issues.csv`, each of its type."""
    names = list(rows[0]) if rows else list(MAIN)
    if missing := [name for name in MAIN if name not in names]:
        raise ValueError(f"{file} has no column {missing[0]!r}")
    columns = {name: _column(name, [row[name] for row in rows], file) for name in names}
    columns["is_label_issue"] = columns["is_label_issue"].astype(bool)
    if (columns["index"] < 0).any():
        raise ValueError(f"{file}: invalid index={columns['index'].min()}: expected positions from 0")
    if "p_suggested" in columns and (np.isnan(columns["p_wrong"]) != np.isnan(columns["p_suggested"])).any():
        raise ValueError(f"{file}: p_wrong and p_suggested are both known, or neither is")
    return columns


def _column(name: str, cells: list[str], file: Path) -> Any:
    if name in _TEXT:
        return np.array(cells, dtype=object)
    kind: Any = np.int64 if name in _WHOLE else np.float64
    empty = "0" if name == "first_learned" else "nan"
    try:
        return np.array([cell or empty for cell in cells]).astype(kind) if cells else np.zeros(0, dtype=kind)
    except (ValueError, OverflowError):
        raise ValueError(f"{file}: the column {name!r} holds something other than numbers") from None


def _names(value: Any) -> Iterator[Any]:
    """The names in nested mappings and lists."""
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _names(each)


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
                raise DamagedFileError(f"{file}, line {number}, is not readable JSON: {error}") from error
            continue
        if not is_record(row):
            raise DamagedFileError(f"{file}, line {number}, is not the record of an epoch")
        rows.append(row)
    return rows


def is_record(row: Any) -> bool:
    """Numbers by name, among them the epoch, and `telemetry` as a mapping of them.

    Args:
        row: a parsed line of `metrics.jsonl`.
    """
    if not isinstance(row, dict) or not isinstance(row.get("epoch"), int):
        return False
    measured = row.get("telemetry") or {}
    numbers = [value for name, value in row.items() if name != "telemetry"]
    return isinstance(measured, dict) and all(
        value is None or isinstance(value, (int, float)) for value in [*numbers, *measured.values()]
    )
