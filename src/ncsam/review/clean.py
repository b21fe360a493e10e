"""The labels of a run after review: what changes and why, and the table, arrays or folder to train on next."""

from __future__ import annotations

import csv
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, need, unknown_name
from ncsam._files import atomic_path
from ncsam._text import path_cell, printable
from ncsam.auditing.findings import Finding, known_checks
from ncsam.data.modalities.rows import TableRows
from ncsam.data.modalities.text import TextList
from ncsam.data.tables.columns import CLEANED
from ncsam.data.types import DataSet, PathList, Split
from ncsam.engine.task import task_of
from ncsam.errors import RunError
from ncsam.review.queue import Queue
from ncsam.runs.decisions import Decisions
from ncsam.runs.findings import load_findings
from ncsam.runs.reader import RunFolder

_NEEDS_SAMPLES = "an .npz, because a file of labels cannot leave samples out"
#: What may change a label: reviewers only; reviewers, else suggestions that are probably correct; else any suggestion.
APPLY = ("reviewed", "confident", "all")


@dataclass(frozen=True)
class Cleaned:
    """The training split with new labels.

    Attributes:
        dataset: the data with its given labels.
        labels: the new labels (N,).
        source: where each label comes from: "given", "reviewed", "confident", "suggested" or "audit".
        probability: probability that the new label is correct, without considering the review (N,); NaN if unknown.
        dropped: which samples are removed (N,). Empty: none.
        dropped_columns: columns of a table that are removed.
    """

    dataset: DataSet
    labels: npt.NDArray[np.int64]
    source: list[str]
    probability: npt.NDArray[np.float64]
    dropped: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    dropped_columns: frozenset[str] = frozenset()

    @property
    def kept(self) -> npt.NDArray[np.int64]:
        """The positions of the samples that are kept."""
        every = np.arange(len(self.labels))
        return every[~self.dropped] if len(self.dropped) else every

    @property
    def given_label(self) -> npt.NDArray[np.int64]:
        return self.dataset.train.labels

    def changes(self) -> list[tuple[str, str, int]]:
        """Return (given label, new label, count) of the changed labels, most frequent first."""
        moved = self.kept[(self.labels != self.given_label)[self.kept]]
        names = self.dataset.classes
        pairs = Counter((names[self.given_label[i]], names[self.labels[i]]) for i in moved)
        return [(one, other, count) for (one, other), count in sorted(pairs.items(), key=lambda p: (-p[1], p[0]))]

    def rows(self) -> tuple[list[str], Iterator[list[object]]]:
        """Return the columns and rows of the table to train on.

        If samples are paths, texts or named numbers, the table contains them and their `split`, followed by validation
        and test rows, and replaces the data in training. Otherwise it contains the `index` and is a label file
        (`label_file`) for that data. The remaining columns are `label`, `given_label`, `source`, `probability`, and
        `clean_label` if it is known.
        """
        dataset = self.dataset
        columns, cells = _described(dataset, self.dropped_columns)
        clean = dataset.train.clean if dataset.train.clean is not None and dataset.train.clean.min() >= 0 else None
        files = not columns and dataset.train.has_paths  # features of files
        head = [*columns, "split"] if columns else ["index"]
        head += [*CLEANED, *(["clean_label"] if clean is not None else []), *(["path"] if files else [])]
        return head, self._rows(cells if columns else None, clean, files)

    def _rows(
        self, cells: Callable[[Split, int], list[object]] | None, clean: Any, files: bool
    ) -> Iterator[list[object]]:
        dataset, names = self.dataset, self.dataset.classes
        for i in self.kept.tolist():
            chance = None if np.isnan(self.probability[i]) else round(float(self.probability[i]), 4)
            row: list[object] = [i] if cells is None else [*cells(dataset.train, i), "train"]
            row += [names[self.labels[i]], names[self.given_label[i]], self.source[i], chance]
            row += [] if clean is None else [names[clean[i]]]
            yield [*row, path_cell(dataset.train.path(i) or "")] if files else row
        if cells is None:
            return
        for name, split in (("val", dataset.val), ("test", dataset.test)):
            for i in range(0 if split is None else len(split)):
                assert split is not None
                label = names[split.labels[i]]
                known = [] if clean is None else [label]
                yield [*cells(split, i), name, label, label, "given", None, *known]

    def to_frame(self) -> Any:
        """Return the table of `rows` as a `pandas.DataFrame`."""
        pandas = need("pandas", "tables", "a table of cleaned labels")
        head, rows = self.rows()
        return pandas.DataFrame(list(rows), columns=head)


def cleaned(
    folder: Path,
    apply: str = "reviewed",
    threshold: float = 0.9,
    *,
    findings: Sequence[str] = (),
    decisions: Decisions | None = None,
    dataset: DataSet | None = None,
) -> Cleaned:
    """Return the labels of a run folder after its review.

    Reviewers' decisions always apply. For samples that nobody has reviewed, or on which reviewers are unsure or
    disagree, "confident" applies suggestions that are correct with probability `threshold` or more, and "all" applies
    every suggestion for a flagged label (`is_label_issue`).

    Args:
        folder: the run folder.
        apply: "reviewed", "confident" or "all".
        threshold: minimum probability for "confident", in (0, 1].
        findings: names of checks whose decisions to apply, after an audit.
        decisions: decisions to use instead of those in the folder.
        dataset: the data, if it is in memory. `None` reads it as the configuration says.

    Raises:
        UsageError: if an argument is invalid, p_wrong is needed but cannot be estimated, or nothing would be left.
        RunError: if the labels have changed since training.
    """
    if apply not in APPLY:
        raise unknown_name("apply", apply, APPLY)
    if not 0 < threshold <= 1:
        raise bad_value("threshold", threshold, "a probability above 0, up to 1")
    run = RunFolder.read(folder)
    dataset = task_of(folder, dataset).dataset
    split, queue = dataset.train, Queue(run)
    decisions = decisions or Decisions(folder)
    chosen = _chosen(folder, findings, dataset.num_classes)
    if len(queue) != len(split) or not np.array_equal(queue.given_label, split.labels[queue.index]):
        raise RunError(f"the labels of {run.config.get('data')} have changed since {folder} was trained")
    decisions.check(len(split), dataset.num_classes)
    if apply == "confident" and queue.p_suggested is None:
        reason = run.posterior.get("reason") or "this run did not estimate it"
        raise bad_value("apply", apply, f"reviewed or all: p_wrong cannot be estimated for this run ({reason})")
    labels, source = split.labels.copy(), ["given"] * len(split)
    probability = np.full(len(split), np.nan)
    dropped = np.zeros(len(split), dtype=bool)
    _apply_findings(chosen, split.labels, labels, source, dropped)
    if dropped.all():
        raise bad_value("findings", list(findings), "checks that leave some sample of the training split")
    known = queue.p_wrong is not None and queue.p_suggested is not None
    for row, index in enumerate(queue.index.tolist()):
        verdict = decisions.verdict(index)
        suggested_label = int(queue.suggested_label[row])
        if verdict is not None and verdict.label is not None:
            labels[index], source[index], dropped[index] = verdict.label, "reviewed", False
        elif verdict is not None and verdict.drop:
            source[index], dropped[index] = "reviewed", True
        elif source[index] == "audit":
            pass
        elif apply == "confident" and queue.p_suggested is not None and queue.p_suggested[row] >= threshold:
            labels[index], source[index] = suggested_label, "confident"
        elif apply == "all" and queue.is_label_issue[row]:
            labels[index], source[index] = suggested_label, "suggested"
        if known and queue.p_wrong is not None and queue.p_suggested is not None:
            if labels[index] == split.labels[index]:
                probability[index] = 1 - queue.p_wrong[row]
            elif labels[index] == suggested_label:
                probability[index] = queue.p_suggested[row]
    columns = frozenset(each.name for each in chosen if each.decision == "drop column")
    return Cleaned(dataset, labels, source, probability, dropped, columns)


def _chosen(folder: Path, checks: Sequence[str], classes: int) -> list[Finding]:
    """The findings of these checks."""
    if not checks:
        return []
    wanted, audited = known_checks(checks), load_findings(folder)
    if audited is None:
        raise bad_value("findings", list(wanted), f"none, or an audit of this run first (ncsam audit {folder})")
    found = [each for each in audited[0] if each.check in wanted]
    if any(each.target >= classes for each in found):
        raise RunError(f"the audit of {folder} names classes that its data does not have: repeat it")
    left = {each.check for each in found if each.decision == "review"} - {
        e.check for e in found if e.decision != "review"
    }
    if left:
        raise bad_value("findings", sorted(left), "checks with a decision; these are for people to review")
    return found


def _apply_findings(
    found: Sequence[Finding],
    given: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    source: list[str],
    dropped: npt.NDArray[np.bool_],
) -> None:
    """Change labels and drop samples in place. Classes are merged last, including samples that were moved into them."""
    for each in sorted(found, key=lambda each: each.decision == "merge"):
        if each.decision not in ("drop", "relabel", "merge"):
            continue
        rows = np.flatnonzero(labels == each.index) if each.decision == "merge" else each.affects(given)
        if each.decision == "drop":
            dropped[rows] = True
        elif each.target >= 0:
            labels[rows] = each.target
        for i in rows.tolist():
            source[i] = "audit"


def write_table(found: Cleaned, path: Path) -> str:
    """Write the rows of `Cleaned.rows` to a CSV file.

    Args:
        found: the cleaned labels.
        path: the file to write.

    Returns:
        The option that takes the file in training: "" if it replaces the data, else "--label-file".

    Raises:
        UsageError: if samples are removed but the file can only hold labels, or a name is not valid UTF-8.
    """
    head, rows = found.rows()
    only_labels = "split" not in head
    if only_labels and len(found.kept) < len(found.labels):
        raise bad_value("out", str(path), _NEEDS_SAMPLES)
    with _utf8(path), atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        for row in rows:
            writer.writerow(["" if value is None else value for value in row])
    return "--label-file" if only_labels else ""


@contextmanager
def _utf8(path: Path) -> Iterator[None]:
    """Refuse names that are not valid UTF-8: the table could not be read again."""
    try:
        yield
    except UnicodeEncodeError as error:
        around = printable(error.object[max(0, error.start - 20) : error.end + 20])
        allowed = f"only with names in UTF-8, and there is {around!r}; --folder takes all names"
        raise bad_value("out", str(path), allowed) from error


def _described(
    dataset: DataSet, without: frozenset[str] = frozenset()
) -> tuple[list[str], Callable[[Split, int], list[object]]]:
    """The columns that describe a sample, and a function for its cells; no columns if a table cannot hold them."""
    cells, inputs = dataset.train.cells, dataset.original.train.inputs
    named = inputs.columns if isinstance(inputs, TableRows) else dataset.columns
    if without and set(named) <= without:
        raise bad_value("findings", sorted(without), "checks that leave some column of the table")
    if isinstance(inputs, PathList):
        return ["path"], lambda split, i: [_absolute(split.path(i))]
    if isinstance(inputs, TextList):
        return [inputs.column or "text"], lambda split, i: [split.of_original().inputs[i]]
    if isinstance(inputs, TableRows):
        names = [name for name in inputs.columns if name not in without]
        return names, lambda split, i: [split.of_original().inputs[i][name] for name in names]
    if isinstance(cells, TableRows):
        written = [name for name in cells.columns if name not in without]
        return written, lambda split, i: [_row(split, i)[name] for name in written]
    if isinstance(inputs, np.ndarray) and dataset.columns:
        places = [place for place, name in enumerate(dataset.columns) if name not in without]
        numbers = [dataset.columns[place] for place in places]
        return numbers, lambda split, i: [_shortest(split.inputs[i][place]) for place in places]
    return [], lambda split, i: []


def _row(split: Split, index: int) -> Mapping[str, object]:
    assert split.cells is not None
    row: Mapping[str, object] = split.cells[index]
    return row


def _shortest(number: Any) -> float:
    """14.23 where float32 holds 14.229999542236328: the shortest number that it rounds to itself."""
    return float(str(number))


def write_arrays(found: Cleaned, path: Path) -> str:
    """Write an `.npz` file with the inputs and the new labels as `y`, for data in arrays. `ncsam train` can read it.

    Args:
        found: the cleaned labels.
        path: the file to write.

    Returns:
        "": no option is needed in training.

    Raises:
        UsageError: if the samples are files.
    """
    dataset = found.dataset
    if not isinstance(dataset.train.inputs, np.ndarray):
        raise bad_value("out", str(path), "a .csv: this data is files, and an .npz would have to hold copies of them")
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "x": dataset.train.inputs[found.kept],
        "y": found.labels[found.kept],
        "y_given": found.given_label[found.kept],
        "source": np.array(found.source)[found.kept],
        "probability": found.probability[found.kept],
        "classes": np.array(dataset.classes),
    }
    if dataset.train.clean is not None:
        arrays["y_clean"] = dataset.train.clean[found.kept]
    for name, split in (("val", dataset.val), ("test", dataset.test)):
        if split is not None and isinstance(split.inputs, np.ndarray):
            arrays |= {f"x_{name}": split.inputs, f"y_{name}": split.labels}
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    return ""


def write_folder(found: Cleaned, folder: Path, *, copy: bool = False) -> int:
    """Write `FOLDER/train/CLASS/FILE` (and `test`, `val`) as links to the files or as copies.

    If two files of a class have the same name, the second is prefixed with its number. The folder is built as
    `.FOLDER.unfinished` next to it and renamed when complete. Leftovers of an interrupted call are removed.

    Args:
        found: the cleaned labels.
        folder: the folder to write, which must not exist or must be empty.
        copy: copy the files instead of linking to them.

    Returns:
        The number of files.

    Raises:
        UsageError: if the samples are not files, the folder is not empty, or a class name cannot be a folder name.
        FileNotFoundError: if a file no longer exists.
    """
    dataset = found.dataset
    splits = [split for split in (dataset.train, dataset.val, dataset.test) if split is not None]
    if not all(split.has_paths for split in splits):
        raise bad_value("folder", str(folder), "data that is files, or features that keep the paths of their files")
    if folder.exists() and any(folder.iterdir()):
        raise bad_value("folder", str(folder), "a folder that does not exist yet, or is empty")
    for name in dataset.classes:
        if name in ("", ".", "..") or "/" in name or os.sep in name or "\0" in name:
            raise bad_value("folder", str(folder), f"only with class names that can name a folder, and {name!r} cannot")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        count = _fill(found, unfinished, copy)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return count


def _fill(found: Cleaned, folder: Path, copy: bool) -> int:
    dataset, count = found.dataset, 0
    parts = {"train": (dataset.train.take(found.kept), found.labels[found.kept])}
    parts |= {n: (s, s.labels) for n, s in (("val", dataset.val), ("test", dataset.test)) if s is not None}
    for name, (split, labels) in parts.items():
        for i in range(len(split)):
            source = Path(_absolute(split.path(i)))
            if not source.is_file():
                raise FileNotFoundError(f"{source}: there is no such file any more")
            target = folder / name / dataset.classes[labels[i]] / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_symlink() or target.exists():
                target = target.with_name(f"{i}-{source.name}")
            if copy:
                shutil.copy2(source, target)
            else:
                target.symlink_to(source)
            count += 1
    return count


def _absolute(path: object) -> str:
    return os.path.abspath(str(path))
