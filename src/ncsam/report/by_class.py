"""Results by class: accuracies, confusions, flagged label pairs, and the estimated noise rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._statistics import Spread
from ncsam.issues.noise_rate import noise_rate_words
from ncsam.issues.table import class_name
from ncsam.report.groups import Group
from ncsam.runs import layout
from ncsam.runs.reader import RunFolder, read_by_class

#: So many classes are listed, those with the lowest accuracies; and so many transitions.
MOST_CLASSES, MOST_TRANSITIONS = 20, 12


@dataclass(frozen=True)
class Transition:
    """So many training samples are labeled `given` and flagged in favor of `suggested`."""

    given: str
    suggested: str
    count: int


@dataclass(frozen=True)
class Confusions:
    """Of a group's first run: held-out labels against predictions, flagged transitions, estimated noise.

    `shares` holds in row i the shares of the held-out samples labeled i that are predicted as each class.
    """

    label: str
    run: RunFolder
    shares: npt.NDArray[np.float64] | None
    transitions: Sequence[Transition]
    noise: str | None


@dataclass(frozen=True)
class Classes:
    """Test accuracy of each class (rows) in each group (columns), and the confusions of each group."""

    names: Sequence[str]
    accuracies: Sequence[Sequence[Spread | None]]
    left_out: int
    confusions: Sequence[Confusions]


def by_class(groups: Sequence[Group], names: Sequence[str] | None) -> Classes:
    """What the runs of the groups recorded of each class; empty where they recorded nothing."""
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
    """The estimated noise rate in a sentence; `None` where the run made no estimate."""
    if "noise_estimate" not in summary:
        return None
    truth = summary.get("noise_rate")
    known = "" if truth is None else f"; actually {100 * truth:.1f} %"
    return noise_rate_words(summary["noise_estimate"]) + known
