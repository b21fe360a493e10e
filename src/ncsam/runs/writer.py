"""How a run folder is written: its beginning, and its end. `train` and `auto` both end through `write_run`.

    save_checkpoint(...)                                   # ncsam.engine.checkpoint
    begin_run(folder, config, task.dataset, record=task.record, command=command)
    summary = write_run(folder, results, issues, by_class=..., oof=...)

`summary.json` is written last: it marks a run as finished.
"""

from __future__ import annotations

import csv
import errno
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam._files import atomic_path, is_open_file
from ncsam._text import path_cell, table_cell
from ncsam.errors import RunError
from ncsam.issues.calibration import labels_sha256
from ncsam.runs import layout

if TYPE_CHECKING:
    from ncsam.data.images.files import BadImage
    from ncsam.data.types import DataSet
    from ncsam.issues.table import LabelIssues
    from ncsam.noise import NoisyLabels

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_NAME = ".lock"
#: Seconds that the children of a killed process (those that decode images) get to notice and let go of its lock.
_PATIENCE = 10.0


class FolderLock:
    """A folder whose lock this process holds.

    Args:
        folder: the locked folder.
        file: its lock file, open and locked.
    """

    def __init__(self, folder: Path, file: IO[str]) -> None:
        self.folder = folder
        self._file = file

    def is_there(self) -> bool:
        """Whether the folder is still the one that was locked."""
        return is_open_file(self._file, self.folder / _NAME)

    def check(self) -> None:
        """Raise `RunError` if the folder was removed or replaced: what is written there now would not be this run."""
        if not self.is_there():
            raise RunError(
                f"{self.folder} was removed, moved or replaced during the run. The run stops here; nothing more is "
                "written"
            )


@contextmanager
def locked(folder: Path) -> Iterator[FolderLock]:
    """Hold the folder's lock, or raise `RunError` if another process does.

    The system drops the lock when its holder ends, however it ends: a lock file left behind is no lock. A folder that
    was made for the run is removed again, with those above it, if the run ends in an error before it wrote anything
    else there.

    Args:
        folder: the run folder; it is created if needed.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / _NAME, "r+", encoding="utf-8", opener=_open)  # noqa: SIM115 - closed below
    except FileExistsError:
        raise RunError(f"{folder} is a file, and a run needs a folder") from None
    except OSError as error:
        raise RunError(f"{folder} cannot be used as a run folder: {error.strerror or error}") from error
    with file:
        _lock(file, folder)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        held = FolderLock(folder, file)
        try:
            yield held
        except BaseException:
            if made and held.is_there():
                _remove_if_empty(made)
            raise


def _open(path: str, _: int) -> int:
    """Never through a link, which would have its target emptied."""
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _lock(file: IO[str], folder: Path) -> None:
    if fcntl is None:
        return
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            if _is_alive(holder) or time.monotonic() > until:
                process = f"process {holder}" if holder else "another process"
                raise RunError(f"{folder} is in use: {process} is training there") from None
            time.sleep(0.1)


def _is_alive(holder: str) -> bool:
    """Whether the process of this number may be alive; one on another machine cannot be seen from here."""
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        return True
    return True


def _remove_if_empty(folders: list[Path]) -> None:
    """Remove a folder that holds its lock alone, and those above it that were made for it."""
    with suppress(OSError):
        if os.listdir(folders[0]) == [_NAME]:
            (folders[0] / _NAME).unlink()
            for folder in folders:
                folder.rmdir()


Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
NOT_DRAWN = "none"  # in place of a probability in `verified.csv`


class Config(Protocol):
    """A run's configuration, as far as its folder is concerned; `ncsam.engine.RunConfig` is one."""

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Any:
        """A configuration from plain values.

        Args:
            options: values by option name, as YAML holds them.
        """

    def save(self, path: Path, command: str | None = None) -> None:
        """Write it as YAML.

        Args:
            path: the file to write.
            command: the command that made the run, noted in the file if given.
        """

    def conflicts(self, saved: Any) -> dict[str, tuple[Any, Any]]:
        """The options by which a saved run differs: name to (saved, wanted).

        Args:
            saved: a configuration of the same class.
        """


@dataclass(frozen=True)
class OutOfFold:
    """Out-of-fold predictions of a training split.

    Attributes:
        probabilities: float32 (samples, classes), in the order of the training split.
        about: how they were made: `folds`, `seed` of the split, `labels_sha256` of the given labels, `train_accuracy`
            (percent of the labels they were trained on that the models fit), and what else their maker notes.
    """

    probabilities: Floats
    about: dict[str, Any]

    @classmethod
    def of(cls, probabilities: npt.ArrayLike, labels: Labels, about: Mapping[str, Any]) -> OutOfFold:
        """Predictions for these labels.

        Args:
            probabilities: (samples, classes), finite; stored as float32.
            labels: (samples,) the given labels, whose digest is noted.
            about: how the predictions were made; see the attribute.

        Raises:
            UsageError: if the probabilities are not finite or have another number of rows.
        """
        rows = np.asarray(probabilities, dtype=np.float32)
        if rows.ndim != 2 or len(rows) != len(labels) or not np.isfinite(rows).all():
            raise bad_value("probabilities", f"{rows.dtype} {rows.shape}", f"finite numbers ({len(labels)}, classes)")
        return cls(rows, {**about, "labels_sha256": labels_sha256(labels)})

    def belong_to(self, labels: Labels) -> bool:
        """Whether they were made for these labels, and have a row for each and a column for every class.

        Args:
            labels: (samples,) the given labels of a training split.
        """
        rows, columns = self.probabilities.shape
        fits = rows == len(labels) and columns > max(labels, default=-1)
        return bool(fits) and self.about.get("labels_sha256") == labels_sha256(labels)


def begin_run(
    folder: Path,
    config: Config,
    dataset: DataSet,
    *,
    record: NoisyLabels | None = None,
    damaged: Sequence[BadImage] = (),
    command: str | None = None,
) -> None:
    """Write what is known before training: configuration, label noise, files left out, annotators.

    Args:
        folder: the run folder.
        config: the resolved configuration.
        dataset: the data with the labels that are trained on.
        record: the label noise that the run made, if any.
        damaged: files that could not be read and are left out.
        command: the command that made the run, for `config.yaml`.
    """
    with writing(folder):
        config.save(folder / layout.CONFIG, command)
        if record is not None:
            record.save(folder / layout.NOISE)
        if damaged:
            rows = [(path_cell(bad.path or ""), table_cell(bad.reason)) for bad in damaged]
            _write_rows(folder / layout.DAMAGED, ("path", "reason"), rows)
        if dataset.annotators:
            people = [(table_cell(a.name), a.answers, f"{a.accuracy:.4f}") for a in dataset.annotators]
            _write_rows(folder / layout.ANNOTATORS, ("annotator", "answers", "accuracy"), people)


def write_run(
    folder: Path,
    results: Mapping[str, Any],
    issues: LabelIssues,
    *,
    by_class: Mapping[str, npt.NDArray[Any] | None] | None = None,
    oof: OutOfFold | None = None,
) -> dict[str, Any]:
    """Write the end of a run whose checkpoint and metrics are there: label issues, predictions, and the summary.

    Args:
        folder: the run folder, which the caller has locked.
        results: the numbers and words of the summary; `label_issues_auroc` is added.
        issues: the label issues of the training split.
        by_class: confusion matrices and the like, by name (`by_class.npz`).
        oof: out-of-fold predictions, if the run has any.

    Returns:
        The summary.

    Raises:
        RunError: if a file cannot be written; rerunning the command finishes the run.
    """
    if oof is not None:
        save_oof(folder, oof)
    write_label_issues(folder, issues)
    if by_class is not None:
        arrays: dict[str, Any] = {name: array for name, array in by_class.items() if array is not None}
        path = folder / layout.BY_CLASS
        with writing(path), atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
    summary = {**results, "label_issues_auroc": issues.about.get("label_issues_auroc")}
    write_json(folder / layout.SUMMARY, summary)
    return summary


def write_label_issues(folder: Path, issues: LabelIssues) -> None:
    """Write `label_issues.csv`, with class numbers, and `label_posterior.json`.

    Args:
        folder: the run folder.
        issues: the label issues of the training split.
    """
    path = folder / layout.LABEL_ISSUES
    names = issues.columns
    columns = [issues.numbers(name) for name in names]
    with writing(path), atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_cell(*pair) for pair in zip(names, row, strict=True)] for row in zip(*columns, strict=True))
    write_json(folder / layout.POSTERIOR, issues.about)


def write_verified(folder: Path, rows: Labels, labels: Sequence[str], probabilities: npt.NDArray[Any] | None) -> None:
    """Write `verified.csv`: `index`, `label` and, unless the samples were drawn evenly, `probability`, which is "none"
    for those that were not drawn at random.

    Args:
        folder: the run folder.
        rows: (n,) positions in the training split.
        labels: the class name of each.
        probabilities: (n,) with which each sample was drawn, NaN for those not drawn at random; `None` if drawn evenly.
    """
    head = ("index", "label", *(() if probabilities is None else ("probability",)))
    drawn: list[Any] = (
        [()] * len(rows)
        if probabilities is None
        else [(NOT_DRAWN if np.isnan(p) else repr(float(p)),) for p in probabilities]
    )
    cells = [(int(row), table_cell(label), *p) for row, label, p in zip(rows, labels, drawn, strict=True)]
    with writing(folder / layout.VERIFIED):
        _write_rows(folder / layout.VERIFIED, head, cells)


def save_oof(folder: Path, oof: OutOfFold) -> None:
    """Write `oof_probs.npz`.

    Args:
        folder: the run folder.
        oof: the out-of-fold predictions of the training split.
    """
    path = folder / layout.OOF
    with writing(path), atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, probabilities=oof.probabilities, about=np.array(json.dumps(oof.about)))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file completely or not at all.

    Args:
        path: the file; an existing one is replaced.
        content: values that JSON can hold.
    """
    with writing(path), atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write `path` into a `RunError`.

    Args:
        path: what is being written, a file or the run folder, for the message.
    """
    try:
        yield
    except OSError as error:
        full = " (the disk is full)" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        gone = " (its folder no longer exists)" if error.errno == errno.ENOENT else ""
        raise RunError(
            f"{path} could not be written: {error.strerror or error}{full}{gone}. {what_is_left(path)}; "
            "fix this and rerun the command to resume"
        ) from error


def what_is_left(path: Path) -> str:
    """What a run that ends here can resume from; `path` is its folder, or something in it.

    Args:
        path: the run folder, or a file or folder in it.
    """
    places = (path / layout.CHECKPOINTS, path.parent / layout.CHECKPOINTS, path.parent)
    here = next((place for place in places if (place / layout.LAST).is_file()), None)
    if here is None:
        return "There is no checkpoint yet"
    return f"The last good checkpoint is intact in {here}"


def _write_rows(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(head)
        table.writerows(rows)


def _cell(name: str, value: Any) -> object:
    if name == "path":
        return path_cell(str(value))
    if name == "text":
        return table_cell(str(value))
    if isinstance(value, (float, np.floating)):
        return "" if np.isnan(value) else f"{value:.6g}"
    if name == "first_learned":
        return int(value) or ""
    return int(value)
