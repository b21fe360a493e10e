"""The progress of a review, and how many wrong labels are probably left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ncsam.issues.posterior import noise_rate_words
from ncsam.issues.table import expectation, unreliable
from ncsam.review.queue import Queue
from ncsam.runs.decisions import Decisions

_LEAST = 20  # decisions before they are extrapolated
_WEIGHT = 10.0  # wrong labels of the prior: how strongly the first decisions lean on the estimate


def progress(
    queue: Queue, decisions: Decisions, posterior: Mapping[str, Any], noise: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return numbers and sentences for the page.

    If p_wrong is known, the number of wrong labels left is its sum over the samples not reviewed, times (found + 10) /
    (expected + 10), which adjusts it to the samples reviewed so far. Otherwise the share of wrong labels among the last
    50 decisions is an upper bound, since the most likely wrong labels come first.

    Args:
        queue: the label issues of the run.
        decisions: reviewers' decisions.
        posterior: how p_wrong was estimated, or why it could not be (`RunFolder.posterior`).
        noise: the run's estimate of the noise rate, to which p_wrong is scaled. `None`: p_wrong is used as it is.

    Returns:
        Counts (`total`, `decided`, `wrong`, `right`, `unsure`, `left`) and text (`sentence`, `expected`).
    """
    decided = decisions.decided()
    verdicts = {index: decisions.verdict(index) for index in decided}
    rows = queue.row_of[decided]
    given = dict(zip(decided, queue.given_label[rows].tolist(), strict=True))
    sure = [index for index, verdict in verdicts.items() if verdict is not None and verdict.label is not None]
    wrong = [index for index in sure if verdicts[index].label != given[index]]  # type: ignore[union-attr]
    dropped = sum(verdict is not None and verdict.drop for verdict in verdicts.values())
    open_ = len(decided) - len(sure) - dropped
    scale = noise["estimate"] * len(queue) / queue.expected_wrong if noise and queue.expected_wrong else 1.0
    left = _left(queue, decided, sure, wrong, scale)
    said = f"{len(decided):,} of {len(queue):,} reviewed: {len(wrong):,} wrong, {len(sure) - len(wrong):,} correct"
    said += f", {dropped:,} to leave out" if dropped else ""
    said += f", {open_:,} unsure or disputed" if open_ else ""
    if left is not None:
        said += f". About {left:,.0f} wrong labels are left"
    elif len(sure) >= _LEAST:
        bound = _bound(queue, decisions, sure, set(wrong))
        said += f". At most about {bound:,.0f} wrong labels are left, since the most likely wrong come first"
    return {
        "total": len(queue),
        "decided": len(decided),
        "wrong": len(wrong),
        "right": len(sure) - len(wrong),
        "unsure": open_,
        "left": left,
        "sentence": said + ".",
        "expected": f"{_expected(queue, decided, posterior)} {_rate(noise)}".strip(),
    }


def _rate(noise: Mapping[str, Any] | None) -> str:
    words = noise_rate_words(noise) if noise else ""
    return f"Of all, {words}." if words else ""


def _left(queue: Queue, decided: list[int], sure: list[int], wrong: list[int], scale: float) -> float | None:
    if queue.p_wrong is None:
        return None
    expected = scale * float(queue.p_wrong[queue.row_of[sure]].sum())
    rest = scale * (queue.expected_wrong - float(queue.p_wrong[queue.row_of[decided]].sum()))
    return rest * (len(wrong) + _WEIGHT) / (expected + _WEIGHT)


def _bound(queue: Queue, decisions: Decisions, sure: list[int], wrong: set[int]) -> float:
    last = sorted(sure, key=lambda index: max(d.time for d in decisions.of(index)))[-50:]
    share = sum(index in wrong for index in last) / len(last)
    return share * (len(queue) - len(sure))


def _expected(queue: Queue, decided: list[int], posterior: Mapping[str, Any]) -> str:
    if queue.p_wrong is None or queue.p_suggested is None:
        return unreliable(posterior)
    head = np.arange(min(len(queue), len(decided) + 100))  # at least 100 of these are undecided, if there are so many
    rest = np.setdiff1d(head, queue.row_of[decided])[:100]
    if not len(rest):
        return ""
    return expectation(f"the next {len(rest)} labels", queue.p_wrong[rest].sum(), queue.p_suggested[rest].sum())
