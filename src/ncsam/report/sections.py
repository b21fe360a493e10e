"""Sections of the report: samples of label issues, the audit, results by class, the leaderboard of model selection."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ncsam._arguments import is_reference
from ncsam._files import read_json
from ncsam._statistics import Spread
from ncsam.auditing.findings import CHECKS, Check, Finding
from ncsam.data import DataSet, load
from ncsam.data.modalities import Modality, modality_of
from ncsam.data.types import Split
from ncsam.engine.task import reader_options, task_of
from ncsam.errors import RunError
from ncsam.issues.posterior import noise_rate_words
from ncsam.issues.table import class_name
from ncsam.report.figures import Group
from ncsam.runs import layout
from ncsam.runs.findings import load_findings
from ncsam.runs.reader import RunFolder, read_by_class

if TYPE_CHECKING:
    from PIL.Image import Image

#: Up to this longest side, in pixels, the pixels of an image are shown as squares.
TINY = 64
_CHECKED = 100  # labels whose expectation is stated


@dataclass(frozen=True)
class Tile:
    """One label issue as the report shows it: its row of the table, and an image (a data URI) or a text, if any.

    Attributes:
        row: the columns of `LabelIssues` by name, with class names where they are known.
        image: a data URI, or `None`.
        text: the text or row of the sample, shortened, or `None`.
    """

    row: dict[str, Any]
    image: str | None = None
    text: str | None = None

    @property
    def mislabeled(self) -> bool | None:
        """Whether the label is really wrong; `None` where the clean label is not known."""
        clean = self.row.get("clean_label")
        return None if clean is None else bool(clean != self.row["given_label"])


@dataclass(frozen=True)
class Gallery:
    """The labels of a run that are most likely wrong.

    Attributes:
        label: the group that the run belongs to.
        run: the run folder.
        tiles: the labels shown.
        tiny: whether the images are so small that their pixels are shown as squares.
        classes: the class names, where they are known.
        missing: why no samples are shown; `None` where they are.
        expected: how many of the first 100 labels are probably wrong, or why that cannot be estimated.
    """

    label: str
    run: RunFolder
    tiles: Sequence[Tile]
    tiny: bool = False
    classes: Sequence[str] | None = None
    missing: str | None = None
    expected: str = ""

    @property
    def really_wrong(self) -> int | None:
        """How many of the labels shown are wrong; `None` where the clean labels are not known."""
        known = [tile.mislabeled for tile in self.tiles]
        return None if None in known else sum(map(bool, known))


def gallery(run: RunFolder, label: str, count: int) -> Gallery:
    """The first `count` label issues of a run, with their samples. Unreadable data is reported, not raised.

    Args:
        run: the run folder; without label issues the gallery is empty.
        label: name of the group that the run stands for.
        count: number of label issues shown.
    """
    if not (run.folder / layout.LABEL_ISSUES).is_file():
        return Gallery(label, run, [])
    issues = run.label_issues(max(count, _CHECKED))
    expected = issues.head(_CHECKED).expectation("the first")
    try:
        dataset = dataset_of(run)
    except (OSError, ValueError, ImportError, RunError) as error:
        missing = f"The samples are not shown: {error}"
        tiles = [Tile(row) for row in issues.head(count).rows()]
        return Gallery(label, run, tiles, False, run.classes, missing, expected)
    if issues.classes is None:
        issues.classes = list(dataset.classes)
    kind, inputs = modality_of(dataset), dataset.train.inputs
    rows = list(issues.head(count).rows())
    found = [kind.preview(inputs, row["index"]) if row["index"] < len(inputs) else None for row in rows]
    shown = [preview for preview in found if preview is not None and not isinstance(preview, str)]
    nothing = None if any(found) else f"The samples of {dataset.name} are {kind.name}, which are not shown."
    tiles = [
        Tile(row, text=preview) if preview is None or isinstance(preview, str) else Tile(row, image=data_uri(preview))
        for row, preview in zip(rows, found, strict=True)
    ]
    tiny = bool(shown) and max(max(image.size) for image in shown) <= TINY
    return Gallery(label, run, tiles, tiny, issues.classes, nothing, expected)


def dataset_of(run: RunFolder) -> DataSet:
    """The dataset of a run as its user has it, read again, if its labels are still those that the run was trained on.

    Nothing is downloaded and no user code is run.

    Args:
        run: the run folder.

    Raises:
        RunError: if the labels differ, so that the samples would not be those of the run.
    """
    config = run.config
    if is_reference(config.get("data")):
        raise RunError(f"the data is made by code ({config['data']!r}), which a report does not run")
    task = task_of(run.folder, _read(run))
    labels, then = task.dataset.train.labels, run.labels_sha256
    if then is not None:
        same = then == task.labels_sha256
    else:  # a folder without its checkpoint
        issues = run.label_issues()
        index, given = issues.numbers("index"), issues.numbers("given_label")
        same = bool((index < len(labels)).all()) and np.array_equal(labels[index], given)
    if not same:
        raise RunError(f"the labels of {config.get('data')} are not those the run was trained on")
    return task.original


def _read(run: RunFolder) -> DataSet | None:
    """The data of a run without its label noise; runs on the same data share it."""
    if (run.folder / layout.DATA).is_file():
        return None  # a copy in the run folder, which `task_of` reads
    config = run.config
    options = json.dumps(reader_options(config), sort_keys=True, default=repr)
    return _load(str(config.get("data")), config.get("data_root"), options)


@lru_cache(maxsize=4)
def _load(source: str, root: str | None, options: str) -> DataSet:
    return load(source, root, **json.loads(options))


def data_uri(image: Image) -> str:
    """PNG for small images, which it keeps exactly; JPEG for photographs, which it keeps short.

    Args:
        image: a PIL image; up to 64 pixels on its longer side it is small.
    """
    kind = "png" if max(image.size) <= TINY else "jpeg"
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **({"quality": 82} if kind == "jpeg" else {"optimize": True}))
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


SHOWN = 12  # findings of a check


@dataclass(frozen=True)
class Sight:
    """A sample beside a finding: its name, and an image (a data URI) or a text, if any.

    Attributes:
        name: split and index, such as "train 12".
        image: a data URI, or `None`.
        text: the text or row of the sample, shortened, or `None`.
    """

    name: str
    image: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class AuditSection:
    """The findings of one check in one run: how many there are, and the worst of them with their samples.

    Attributes:
        run: the audited run.
        check: the check that found them.
        count: number of all findings.
        shown: the first findings, each with the samples that it is about.
        notes: checks that were not possible; only the first section of a run has them.
    """

    run: RunFolder
    check: Check
    count: int
    shown: Sequence[tuple[Finding, Sequence[Sight]]]
    notes: Sequence[str] = field(default=())


def audit_sections(run: RunFolder, most: int = SHOWN) -> list[AuditSection]:
    """A section for every check that found something; none for a run that was not audited.

    Args:
        run: the run folder.
        most: findings shown per check.
    """
    audited = load_findings(run.folder) if (run.folder / layout.AUDIT).is_file() else None
    if audited is None:
        return []
    findings, notes = audited
    splits: Mapping[str, Split] = {}
    kind: Modality | None = None
    with suppress(OSError, ValueError, ImportError, RunError):  # the gallery says why the samples are not shown
        dataset = dataset_of(run)
        splits, kind = dataset.splits, modality_of(dataset)

    def sight(split: str, index: int) -> Sight:
        name = f"{split} {index}"
        if kind is None or split not in splits or not 0 <= index < len(splits[split]):
            return Sight(name)
        preview: Any = kind.preview(splits[split].inputs, index)
        return (
            Sight(name, text=preview) if preview is None or isinstance(preview, str) else Sight(name, data_uri(preview))
        )

    sections: list[AuditSection] = []
    for name, check in CHECKS.items():
        found = [each for each in findings if each.check == name]
        if found:
            shown = [(each, [sight(*place) for place in _places(each)]) for each in found[:most]]
            sections.append(AuditSection(run, check, len(found), shown, notes if not sections else ()))
    return sections


def _places(found: Finding) -> list[tuple[str, int]]:
    """The samples that show a finding: (split, index)."""
    own = [(found.split, found.index)] if found.split else []
    others = [each.rpartition(" ") for each in found.related]
    return own + [(split, int(index)) for split, _, index in others if index.isdecimal() and len(index) < 19]


#: So many classes are listed, those with the lowest accuracies; and so many transitions.
MOST_CLASSES, MOST_TRANSITIONS = 20, 12


@dataclass(frozen=True)
class Transition:
    """So many training samples are labeled `given` and flagged in favor of `suggested`.

    Attributes:
        given: class name of the given label.
        suggested: class name of the suggested label.
        count: number of training samples.
    """

    given: str
    suggested: str
    count: int


@dataclass(frozen=True)
class Confusions:
    """Of a group's first run: held-out labels against predictions, flagged transitions, estimated noise.

    `shares` holds in row i the shares of the held-out samples labeled i that are predicted as each class.

    Attributes:
        label: name of the group.
        run: its first run.
        shares: (classes, classes), NaN in rows without samples; `None` if the run did not record them.
        transitions: the most frequent ones first.
        noise: the estimated noise rate in a sentence; `None` without an estimate.
    """

    label: str
    run: RunFolder
    shares: npt.NDArray[np.float64] | None
    transitions: Sequence[Transition]
    noise: str | None


@dataclass(frozen=True)
class Classes:
    """Test accuracy of each class (rows) in each group (columns), and the confusions of each group.

    Attributes:
        names: the classes listed, at most 20, those with the lowest accuracies.
        accuracies: in percent, over the runs of a group; `None` where a group did not record it.
        left_out: number of classes not listed.
        confusions: one entry per group.
    """

    names: Sequence[str]
    accuracies: Sequence[Sequence[Spread | None]]
    left_out: int
    confusions: Sequence[Confusions]


def by_class(groups: Sequence[Group], names: Sequence[str] | None) -> Classes:
    """What the runs of the groups recorded of each class; empty where they recorded nothing.

    Args:
        groups: the groups of a report.
        names: class names in the order of the class numbers; `None` shows the numbers.
    """
    accuracies = [[_accuracies(run) for run in group.runs] for group in groups]
    size = max((len(found) for group in accuracies for found in group if found is not None), default=0)
    spreads = [
        [Spread.of(found[c] for found in group if found is not None and c < len(found)) for group in accuracies]
        for c in range(size)
    ]
    order = sorted(range(size), key=lambda c: min((s.mean for s in spreads[c] if s is not None), default=101.0))
    shown = sorted(order[:MOST_CLASSES])
    return Classes(
        [class_name(names, c) for c in shown],
        [spreads[c] for c in shown],
        size - len(shown),
        [_confusions(group, names) for group in groups],
    )


def _accuracies(run: RunFolder) -> list[float | None] | None:
    """Of each class on the test split, in percent; `None` for a class that has no samples there."""
    counts = read_by_class(run.folder).get("test")
    if counts is None:
        return None
    sizes = counts.sum(axis=1)
    return [100.0 * float(right) / int(n) if n else None for right, n in zip(counts.diagonal(), sizes, strict=True)]


def _confusions(group: Group, names: Sequence[str] | None) -> Confusions:
    run = group.runs[0]
    counts = read_by_class(run.folder).get("held_out")
    shares = None
    if counts is not None:
        with np.errstate(invalid="ignore"):
            shares = counts / counts.sum(axis=1, keepdims=True)
    transitions = [
        Transition(class_name(names, given), class_name(names, suggested), count)
        for (given, suggested), count in _flagged(run).most_common(MOST_TRANSITIONS)
    ]
    return Confusions(group.label, run, shares, transitions, noise_words(run.summary))


def _flagged(run: RunFolder) -> Counter[tuple[int, int]]:
    """How often each given label is flagged in favor of each suggested one."""
    if not (run.folder / layout.LABEL_ISSUES).is_file():
        return Counter()
    issues = run.label_issues()
    suggested = issues.numbers("suggested_label" if "suggested_label" in issues.columns else "predicted_label")
    given, flagged = issues.numbers("given_label"), issues.numbers("is_label_issue")
    pairs = zip(given[flagged].tolist(), suggested[flagged].tolist(), strict=True)
    return Counter(pair for pair in pairs if pair[0] != pair[1])


def noise_words(summary: dict[str, Any]) -> str | None:
    """The estimated noise rate in a sentence; `None` where the run made no estimate.

    Args:
        summary: the summary of a run; `noise_estimate` and, if known, the true `noise_rate` are used.
    """
    if "noise_estimate" not in summary:
        return None
    truth = summary.get("noise_rate")
    known = "" if truth is None else f"; actually {100 * truth:.1f} %"
    return noise_rate_words(summary["noise_estimate"]) + known


_COLUMNS = {
    "status": "status",
    "noisy_accuracy": "accuracy, given labels, %",
    "standard_error": "±",
    "noisy_balanced_accuracy": "balanced accuracy, %",
    "noisy_f1": "F1, %",
    "noisy_auc": "AUC, %",
    "seconds": "seconds",
}


@dataclass(frozen=True)
class Row:
    """A candidate and its cells; chosen ones are marked with an asterisk.

    Attributes:
        name: the candidate's name.
        cells: as text, in the order of the leaderboard's columns.
    """

    name: str
    cells: Sequence[str]


@dataclass(frozen=True)
class Leaderboard:
    """The candidates of a run, the best first, and what was estimated.

    Attributes:
        run: name of the run folder.
        summary: what was selected, with the estimated noise rate and accuracy, in sentences.
        columns: column titles after the candidate's name.
        rows: in the order of `leaderboard.json`.
    """

    run: str
    summary: str
    columns: Sequence[str]
    rows: Sequence[Row]


def leaderboard(run: RunFolder) -> Leaderboard | None:
    """The leaderboard of a run; `None` for a run that was not made by `ncsam auto`.

    Args:
        run: the run folder.

    Raises:
        ValueError: if `leaderboard.json` holds no list of candidates.
    """
    path = run.folder / layout.LEADERBOARD
    if not path.is_file():
        return None
    board = read_json(path)
    candidates = board.get("candidates")
    if not isinstance(candidates, list) or not all(isinstance(row, dict) for row in candidates):
        raise ValueError(f"{path} does not hold a list of candidates")
    names = [name for name in _COLUMNS if any(row.get(name) is not None for row in candidates)]
    rows = [
        Row(("* " if row.get("chosen") else "") + str(row.get("name")), [_text(row.get(name)) for name in names])
        for row in candidates
    ]
    return Leaderboard(run.folder.name, _summary(board), [_COLUMNS[name] for name in names], rows)


def _summary(board: Mapping[str, Any]) -> str:
    """The result of the selection and the estimates, with their intervals, in sentences."""
    chosen = board.get("chosen")
    chosen = chosen if isinstance(chosen, dict) else {}
    names = chosen.get("candidates") or []
    what = f"An ensemble of {len(names)}" if len(names) > 1 else f"The candidate {', '.join(map(str, names))}"
    accuracy = _text(chosen.get("noisy_accuracy"))
    said = [f"{what} was selected (*): it predicts {accuracy} % of the held-out given labels."]
    said.append(f"Noise rate: {noise_rate_words(board.get('noise_rate') if _known(board, 'noise_rate') else None)}.")
    if _known(board, "clean_accuracy"):
        middle, low, high = (board["clean_accuracy"][name] for name in ("estimate", "low", "high"))
        said.append(f"Accuracy on true labels: {middle:.0f} % (95 % interval {low:.0f} to {high:.0f} %).")
    else:
        said.append("The accuracy on true labels cannot be estimated without verified labels.")
    return " ".join(said)


def _known(board: Mapping[str, Any], key: str) -> bool:
    """Whether an estimate with an interval is there."""
    found = board.get(key)
    names = ("estimate", "low", "high")
    return isinstance(found, dict) and all(isinstance(found.get(name), (int, float)) for name in names)


def _text(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)
