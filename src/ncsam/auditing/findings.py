"""The checks of an audit with their thresholds, and the findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ncsam._errors import unknown_name

#: What `clean` does with a finding. "review" changes nothing by itself: it is a filter on the review page.
DECISIONS = ("relabel", "drop", "merge", "drop column", "review")


class Check(NamedTuple):
    """A check.

    Attributes:
        title: heading in reports.
        finds: what it finds.
        score: definition of its score; higher is worse.
        threshold: the smallest score that is reported.
        decision: one of `DECISIONS`, the default for its findings.
    """

    title: str
    finds: str
    score: str
    threshold: float
    decision: str = "drop"


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
        "Exact duplicates", "samples with the content of an earlier one", "1: the content is identical", 1.0
    ),
    "near_duplicate": Check(
        "Near duplicates",
        "samples almost identical to an earlier one",
        "1 - distance / median distance of nearest neighbors",
        0.8,
    ),
    "conflicting_duplicate": Check(
        "Duplicates with different labels", "the same, or almost, with other labels", "as for duplicates", 0.8
    ),
    "train_test_duplicate": Check(
        "Duplicates across train and test", "training samples that other splits hold, too", "as for duplicates", 0.8
    ),
    "outlier": Check(
        "Outliers",
        "samples far from all others",
        "interquartile ranges by which log mean distance to the 10 nearest neighbors exceeds its third quartile",
        3.0,
    ),
    "rare_class": Check(
        "Rare classes", "classes with few samples", "mean number of samples per class / samples of this class", 10.0
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
        "classes in separate groups",
        "share outside the largest component of its 5-nearest-neighbor graph",
        0.1,
    ),
    "annotator": Check(
        "Disagreeing annotators",
        "annotators whose answers are closer to chance than to those of the others",
        "0 for the median accuracy, 1 for that of guessing",
        0.5,
        "relabel",
    ),
    "disagreement": Check(
        "Samples without a majority",
        "samples on which annotators disagree",
        "1 - share of the most frequent answer, of at least two",
        0.5,
    ),
    "dark_image": Check("Dark images", "images without a bright pixel", "1 - 95th percentile of luminance", 0.8),
    "blurred_image": Check("Blurred images", "images without fine detail", "blur effect (Crete et al. 2007)", 0.7),
    "truncated_image": Check("Truncated images", "files that cannot be decoded to the end", "1: decoding fails", 1.0),
    "odd_size": Check(
        "Oddly sized images",
        "images much larger, smaller, wider or higher than the others",
        "ratio of side length or aspect ratio to the median, or its inverse",
        4.0,
    ),
    "empty_text": Check("Empty texts", "texts without a letter or digit", "1: nothing to read", 1.0),
    "bad_encoding": Check(
        "Badly encoded texts",
        "texts that were decoded with the wrong encoding",
        "share of characters that are replacements, controls or UTF-8 read as Windows-1252",
        0.005,
    ),
    "other_language": Check(
        "Texts in another language",
        "texts unlike the others in their sequences of letters",
        "interquartile ranges by which bits per trigram exceed their third quartile",
        3.0,
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
        "columns that give the label away",
        "AUC of the label, from this column alone, out of fold",
        0.99,
        "drop column",
    ),
    "shifted_column": Check(
        "Shifted columns",
        "columns with other values in the test split",
        "Kolmogorov-Smirnov statistic; total variation for categories",
        0.2,
        "drop column",
    ),
    "distribution_shift": Check(
        "Distribution shift",
        "training and test samples, or their labels, that differ as a whole",
        "AUC of a classifier of train against test; 0.5 + half the total variation of labels",
        0.7,
    ),
}


@dataclass(frozen=True)
class Finding:
    """One problem in the data.

    Attributes:
        check: a name from `CHECKS`.
        score: as the check defines it; higher is worse.
        threshold: the smallest score that is reported.
        decision: one of `DECISIONS`, which `clean` can apply.
        split: split of the sample; "" for a class, column or annotator.
        index: position of the sample in its split, or number of the class; -1 for a column or annotator.
        name: name of the sample, class, column or annotator.
        evidence: a sentence.
        related: other samples that show it, such as the duplicate, as "split index".
        target: number of the class that `clean` would assign, or of the other class of a pair; -1 if there is none.
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
        """The position of the training sample it is about; `None` if it is not about one."""
        return self.index if self.split == "train" and self.index >= 0 else None

    def affects(self, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the training samples it is about: one sample, all of a class or pair of classes, or all for a column.

        Args:
            labels: given labels of the training split (n,).

        Returns:
            Positions in the training split.
        """
        if self.decision == "drop column":
            return np.arange(len(labels))
        if self.split == "train":
            return np.array([self.index]) if 0 <= self.index < len(labels) else np.zeros(0, dtype=np.int64)
        of_class = not self.split and self.index >= 0
        return np.flatnonzero(of_class & ((labels == self.index) | ((labels == self.target) & (self.target >= 0))))


def finding(check: str, score: float, **about: Any) -> Finding:
    """Make a finding with the threshold and the decision of its check.

    Args:
        check: a name from `CHECKS`.
        score: as the check defines it.
        **about: other fields of `Finding`; `decision` overrides that of the check.
    """
    return Finding(check, float(score), CHECKS[check].threshold, **{"decision": CHECKS[check].decision, **about})


def reached(check: str, scores: npt.NDArray[np.floating]) -> list[int]:
    """Return where scores reach the threshold of the check.

    Args:
        check: a name from `CHECKS`.
        scores: scores (n,).

    Returns:
        Positions, worst first.
    """
    found = np.flatnonzero(scores >= CHECKS[check].threshold)
    return found[np.argsort(-scores[found], kind="stable")].tolist()  # type: ignore[no-any-return]


def known_checks(names: Iterable[str] | None) -> tuple[str, ...]:
    """Validate names of checks and sort them.

    Args:
        names: names from `CHECKS`, or one of them. `None`: all.

    Returns:
        The names in the order of `CHECKS`, each once.

    Raises:
        UsageError: if a name is unknown.
    """
    if names is None:
        return tuple(CHECKS)
    wanted = [names] if isinstance(names, str) else [*names]
    for name in wanted:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS)
    return tuple(name for name in CHECKS if name in wanted)
