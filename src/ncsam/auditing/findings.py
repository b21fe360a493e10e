"""What an audit finds: the checks with their thresholds, the findings, and the file that holds them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ncsam._errors import unknown_name
from ncsam._files import read_json
from ncsam.errors import DamagedFileError
from ncsam.runs import layout
from ncsam.runs.writer import write_json

#: What `clean` does with a finding. "review" changes nothing by itself: it is a filter on the review page.
DECISIONS = ("relabel", "drop", "merge", "drop column", "review")


class Check(NamedTuple):
    """A check: what it finds, what its score is (higher is worse), from which score on it counts, and what to do."""

    title: str
    finds: str
    score: str
    threshold: float
    decision: str


#: The checks by name, in the order of reports.
CHECKS: dict[str, Check] = {
    "label_issue": Check(
        "Label issues",
        "labels that are probably wrong",
        "p_wrong; 1 - label_quality where p_wrong cannot be estimated",
        0.5,
        "relabel",
    ),
    "exact_duplicate": Check(
        "Exact duplicates",
        "samples with the same content as an earlier one",
        "1: the content is identical",
        1.0,
        "drop",
    ),
    "near_duplicate": Check(
        "Near duplicates",
        "samples almost identical to an earlier one",
        "1 - distance / median distance of nearest neighbors",
        0.8,
        "drop",
    ),
    "conflicting_duplicate": Check(
        "Duplicates with different labels",
        "identical or almost identical samples whose labels differ",
        "as for duplicates",
        0.8,
        "drop",
    ),
    "train_test_duplicate": Check(
        "Duplicates across train and test",
        "training samples that are in the test or validation split, too",
        "as for duplicates",
        0.8,
        "drop",
    ),
    "outlier": Check(
        "Outliers",
        "samples far from all others",
        "interquartile ranges by which log mean distance to the 10 nearest neighbors exceeds its third quartile",
        3.0,
        "drop",
    ),
    "rare_class": Check(
        "Rare classes",
        "classes with few samples",
        "mean number of samples per class / samples of this class",
        10.0,
        "drop",
    ),
    "overlapping_classes": Check(
        "Overlapping classes",
        "pairs of classes that out-of-fold predictions cannot tell apart",
        "2 (1 - AUC) of one class against the other",
        0.5,
        "merge",
    ),
    "heterogeneous_class": Check(
        "Heterogeneous classes",
        "classes that fall into separate groups",
        "share of a class outside the largest component of its 5-nearest-neighbor graph",
        0.1,
        "review",
    ),
    "annotator": Check(
        "Disagreeing annotators",
        "annotators whose answers are closer to chance than to those of the others",
        "0 for the median accuracy, 1 for that of guessing",
        0.5,
        "review",
    ),
    "disagreement": Check(
        "Samples without a majority",
        "samples on which annotators disagree",
        "1 - share of the most frequent answer, of at least two",
        0.5,
        "drop",
    ),
    "dark_image": Check(
        "Dark images", "images without a bright pixel", "1 - 95th percentile of luminance", 0.8, "drop"
    ),
    "blurred_image": Check(
        "Blurred images", "images without fine detail", "blur effect (Crete et al. 2007)", 0.7, "drop"
    ),
    "truncated_image": Check(
        "Truncated images", "files that cannot be decoded to the end", "1: decoding fails", 1.0, "drop"
    ),
    "odd_size": Check(
        "Oddly sized images",
        "images much larger, smaller, wider or higher than the others",
        "ratio of side length or aspect ratio to the median, or its inverse",
        4.0,
        "drop",
    ),
    "empty_text": Check("Empty texts", "texts without a letter or digit", "1: nothing to read", 1.0, "drop"),
    "bad_encoding": Check(
        "Badly encoded texts",
        "texts that were decoded with the wrong encoding",
        "share of characters that are replacements, controls or UTF-8 read as Windows-1252",
        0.005,
        "drop",
    ),
    "other_language": Check(
        "Texts in another language",
        "texts unlike the others in their sequences of letters",
        "interquartile ranges by which bits per trigram exceed their third quartile",
        3.0,
        "drop",
    ),
    "id_column": Check(
        "ID-like columns",
        "columns that number or name the rows",
        "share of values that are distinct",
        0.95,
        "drop column",
    ),
    "leaking_column": Check(
        "Label-leaking columns",
        "columns that give the label away by themselves",
        "AUC of the label, predicted from this column alone out of fold",
        0.99,
        "drop column",
    ),
    "shifted_column": Check(
        "Shifted columns",
        "columns whose values are distributed differently in train and test",
        "Kolmogorov-Smirnov statistic; total variation for categories",
        0.2,
        "drop column",
    ),
    "distribution_shift": Check(
        "Distribution shift",
        "training and test samples, or their labels, that differ as a whole",
        "AUC of a classifier of train against test; 0.5 + half the total variation of labels",
        0.7,
        "review",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One problem.

    Attributes:
        check: a name of `CHECKS`.
        score: as the check defines it; higher is worse.
        threshold: from which score on it counts.
        decision: one of `DECISIONS`, which `clean` can apply.
        split: of the sample; "" for a class, column or annotator.
        index: position of the sample in its split; the number of a class; -1 for a column or annotator.
        name: of the sample, class, column or annotator.
        evidence: a sentence.
        related: other samples that show it, such as the duplicate, as "split index".
        target: the class that `clean` would give, or the other one of a pair, as a number; -1 where there is none.
    """

    check: str
    score: float
    threshold: float
    decision: str
    split: str = ""
    index: int = -1
    name: str = ""
    evidence: str = ""
    related: tuple[str, ...] = ()
    target: int = -1

    @property
    def sample(self) -> int | None:
        """The training sample it is about, if it is about one."""
        return self.index if self.split == "train" and self.index >= 0 else None

    def affects(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The training samples it is about: the sample itself, or all of its class or pair of classes."""
        if self.split == "train":
            return np.array([self.index]) if 0 <= self.index < len(labels) else np.zeros(0, dtype=np.int64)
        of_class = not self.split and self.index >= 0
        return np.flatnonzero(of_class & ((labels == self.index) | ((labels == self.target) & (self.target >= 0))))


def finding(check: str, score: float, **about: Any) -> Finding:
    """A finding with the threshold and the decision of its check."""
    return Finding(check, float(score), CHECKS[check].threshold, **{"decision": CHECKS[check].decision, **about})


def samples(check: str, scores: Any, split: str = "train", evidence: str = "", **about: Any) -> list[Finding]:
    """A finding for every sample whose score reaches the threshold of the check, the worst first.

    `evidence` may name the score: "{score:.2f}".
    """
    reached = np.flatnonzero(np.asarray(scores) >= CHECKS[check].threshold)
    order = reached[np.argsort(-np.asarray(scores)[reached], kind="stable")]
    return [
        finding(check, scores[i], split=split, index=int(i), evidence=evidence.format(score=scores[i]), **about)
        for i in order
    ]


def known_checks(names: Iterable[str] | None) -> tuple[str, ...]:
    """Names of checks, in their order; all by default."""
    if names is None:
        return tuple(CHECKS)
    wanted = [names] if isinstance(names, str) else [*names]
    for name in wanted:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS)
    return tuple(name for name in CHECKS if name in wanted)


# --- in a run folder


def save_findings(folder: Path, findings: Sequence[Finding], notes: Sequence[str] = ()) -> None:
    """Write `audit.json`: the findings, and notes on checks that were not possible."""
    write_json(folder / layout.AUDIT, {"notes": list(notes), "findings": [asdict(each) for each in findings]})


def load_findings(folder: Path) -> tuple[list[Finding], list[str]] | None:
    """The findings and notes of a run folder; `None` if it was not audited.

    Raises:
        DamagedFileError: if the file is not what `save_findings` writes.
    """
    path = folder / layout.AUDIT
    if not path.is_file():
        return None
    content = read_json(path)
    rows, notes = content.get("findings"), content.get("notes")
    if not isinstance(rows, list) or not isinstance(notes, list) or not all(isinstance(each, str) for each in notes):
        raise DamagedFileError(f"{path} is damaged: it does not hold findings and notes")
    for number, row in enumerate(rows):
        if not _is_finding(row):
            shown = json.dumps(row)[:80]
            raise DamagedFileError(f"{path} is damaged: finding {number} is not one that an audit writes: {shown}")
    return [Finding(**{**row, "related": tuple(row["related"])}) for row in rows], notes


def _is_finding(row: Any) -> bool:
    kinds: Mapping[str, Any] = {"score": (int, float), "threshold": (int, float), "index": int, "target": int}
    kinds = {**kinds, "related": list}
    if not isinstance(row, dict) or set(row) != {field.name for field in fields(Finding)}:
        return False
    if any(isinstance(row[name], bool) or not isinstance(row[name], kinds.get(name, str)) for name in row):
        return False
    if (
        row["check"] not in CHECKS
        or row["decision"] not in DECISIONS
        or row["split"] not in ("", "train", "val", "test")
    ):
        return False
    whole = all(-1 <= row[name] < 2**63 for name in ("index", "target"))
    return whole and math.isfinite(row["score"]) and all(isinstance(each, str) for each in row["related"])
