"""The label issues of a run in the order of review, filtered and split into pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, unknown_name
from ncsam.auditing.findings import CHECKS, Finding
from ncsam.runs import layout
from ncsam.runs.decisions import CHOICES, Decisions
from ncsam.runs.findings import load_findings
from ncsam.runs.reader import RunFolder

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ORDERS = ("worst", "pair")
STATUSES = ("undecided", "mine", "all", "decided", "disputed", *CHOICES)
LAYOUTS = ("one", "grid")
MOST = 200  # items of a page


@dataclass(frozen=True)
class View:
    """The settings of a reviewer's page, which are restored when it is opened again.

    Attributes:
        order: "worst" or "pair" (most frequent pair of classes first).
        status: one of `STATUSES`. "undecided": no reviewer has decided; "mine": this reviewer has not.
        given_label: show only this given label, a class number. `None`: all.
        suggested_label: show only this suggested label, a class number. `None`: all.
        search: show only samples whose path or text contains this.
        finding: show only samples with a finding of this check. "": all.
        layout: "one" sample or a "grid".
        place: place of the current sample in the order.
        reviewer: name of the reviewer.
    """

    order: str = "worst"
    status: str = "undecided"
    given_label: int | None = None
    suggested_label: int | None = None
    search: str = ""
    finding: str = ""
    layout: str = "one"
    place: int = 0
    reviewer: str = "reviewer"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> View:
        """Validate the settings that a page sent.

        Args:
            given: fields of `View`; missing ones get their defaults.

        Raises:
            UsageError: if a field is unknown or invalid.
        """
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise unknown_name("setting of the view", name, known)
        view = cls(**given)
        for name, allowed in (("order", ORDERS), ("status", STATUSES), ("layout", LAYOUTS)):
            if getattr(view, name) not in allowed:
                raise unknown_name(name, getattr(view, name), allowed)
        if view.finding not in ("", *CHECKS):
            raise unknown_name("finding", view.finding, CHECKS)
        for name in ("given_label", "suggested_label"):
            if not isinstance(getattr(view, name), (int, type(None))):
                raise bad_value(name, getattr(view, name), "a class number or null")
        if not isinstance(view.place, int) or view.place < 0:
            raise bad_value("place", view.place, "a whole number from 0")
        if not isinstance(view.search, str) or len(view.search) > 200:
            raise bad_value("search", view.search, "text of up to 200 characters")
        check_reviewer(view.reviewer)
        return view


def check_reviewer(name: object) -> str:
    """Validate a reviewer's name.

    Args:
        name: 1 to 80 printable characters in one line, not only spaces.

    Returns:
        The name.

    Raises:
        UsageError: if it is anything else.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > 80 or not name.isprintable():
        raise bad_value("reviewer", name, "a name of 1 to 80 printable characters")
    return name


class Queue:
    """The rows of `label_issues.csv` as columns, worst first. A sample's place is its row.

    Args:
        run: the run folder.

    Raises:
        ValueError: if the file does not contain every training sample exactly once.
    """

    def __init__(self, run: RunFolder) -> None:
        issues = run.label_issues()
        count, columns = len(issues), issues.columns
        self.index: Indices = issues.numbers("index")
        self.given_label: Indices = issues.numbers("given_label")
        self.predicted_label: Indices = issues.numbers("predicted_label")
        suggested = "suggested_label" if "suggested_label" in columns else "predicted_label"
        self.suggested_label: Indices = issues.numbers(suggested)
        self.label_quality: Floats = issues.numbers("label_quality")
        self.is_label_issue: npt.NDArray[np.bool_] = issues.numbers("is_label_issue")
        known = issues.reliable and not np.isnan(issues.numbers("p_wrong")).any()
        self.p_wrong: Floats | None = issues.numbers("p_wrong") if known else None
        self.p_suggested: Floats | None = issues.numbers("p_suggested") if known else None
        self.expected_wrong = 0.0 if self.p_wrong is None else float(self.p_wrong.sum())
        paths = issues.numbers("path") if "path" in columns else [""] * count
        texts = issues.numbers("text") if "text" in columns else [""] * count
        self.names = [str(path or index) for path, index in zip(paths, self.index.tolist(), strict=True)]
        self._searched = [f"{name} {text}".casefold() for name, text in zip(self.names, texts, strict=True)]
        if not np.array_equal(np.sort(self.index), np.arange(count)):
            raise ValueError(f"{run.folder / layout.LABEL_ISSUES} does not hold every training sample once")
        self.row_of: Indices = np.empty(count, dtype=np.int64)
        self.row_of[self.index] = np.arange(count)
        audited = load_findings(run.folder)
        self.findings: list[Finding] = [] if audited is None else audited[0]
        self._of_sample: dict[int, list[Finding]] = {}
        for each in self.findings:
            if each.sample is not None:
                self._of_sample.setdefault(each.sample, []).append(each)
        self._by_pair = self._ordered_by_pair()
        self._pair_place: Indices = np.empty(count, dtype=np.int64)
        self._pair_place[self._by_pair] = np.arange(count)

    def __len__(self) -> int:
        return len(self.index)

    def pairs(self) -> list[dict[str, int]]:
        """Count the flagged labels of each pair of given and suggested label, most frequent first."""
        differ = self.is_label_issue & (self.given_label != self.suggested_label)
        found, counts = np.unique(
            np.stack([self.given_label[differ], self.suggested_label[differ]], axis=1), axis=0, return_counts=True
        )
        most = np.lexsort((found[:, 1], found[:, 0], -counts))
        return [
            {"given_label": int(given), "suggested_label": int(suggested), "count": int(count)}
            for (given, suggested), count in zip(found[most], counts[most], strict=True)
        ]

    def findings_of(self, index: int) -> list[Finding]:
        """Return the findings of an audit about a sample, other than label issues.

        Args:
            index: position in the training split.
        """
        return [each for each in self._of_sample.get(index, []) if each.check != "label_issue"]

    def checks(self) -> dict[str, int]:
        """Return the number of samples that each check of an audit is about, by name, without zeros."""
        counts = {name: int(self._found(name).sum()) for name in CHECKS}
        return {name: count for name, count in counts.items() if count}

    def _found(self, check: str) -> npt.NDArray[np.bool_]:
        """Which rows a check of an audit is about."""
        given = self.given_label[self.row_of]  # in the order of the data
        keep = np.zeros(len(self), dtype=bool)
        for each in self.findings:
            if each.check == check:
                keep[self.row_of[each.affects(given)]] = True
        return keep

    def rows(self, view: View, decisions: Decisions) -> Indices:
        """Return the rows that a view shows, in its order.

        Args:
            view: order and filters.
            decisions: reviewers' decisions.
        """
        keep = self._of_status(view, decisions)
        if view.given_label is not None:
            keep &= self.given_label == view.given_label
        if view.suggested_label is not None:
            keep &= self.suggested_label == view.suggested_label
        if view.finding:
            keep &= self._found(view.finding)
        if view.search:
            wanted = view.search.casefold()
            keep &= np.fromiter((wanted in text for text in self._searched), dtype=bool, count=len(self))
        order = self._by_pair if view.order == "pair" else np.arange(len(self))
        return order[keep[order]]

    def page(self, view: View, decisions: Decisions, limit: int, *, back: bool = False) -> tuple[Indices, int, int]:
        """Return a page of rows, starting at the view's place.

        A place is a position in the order of all samples, so it does not change with filters or decisions. After the
        last row the page starts again from the top.

        Args:
            view: order, filters and place.
            decisions: reviewers' decisions.
            limit: maximum number of rows, at most 200.
            back: return the rows before the place instead.

        Returns:
            The rows, the number of all rows that the view shows, and the number of rows before the page.
        """
        rows = self.rows(view, decisions)
        limit = min(limit, MOST)
        before = int(np.searchsorted(self._pair_place[rows] if view.order == "pair" else rows, view.place))
        if back:
            first = max(0, before - limit)
            return rows[first:before], len(rows), first
        if before == len(rows):
            before = 0
        return rows[before : before + limit], len(rows), before

    def place(self, row: int, order: str) -> int:
        """Return the place of a row in an order.

        Args:
            row: row of the queue.
            order: "worst" or "pair".
        """
        return row if order == "worst" else int(self._pair_place[row])

    def typical(self, label: int, count: int) -> Indices:
        """Return samples of a class whose labels are most likely right.

        Args:
            label: class number.
            count: maximum number; at most half of the class is returned, so that few labels are wrong.

        Returns:
            Positions in the training split, best first.
        """
        rows = np.flatnonzero(self.given_label == label)
        return self.index[rows[::-1][: min(count, (len(rows) + 1) // 2)]]

    def _ordered_by_pair(self) -> Indices:
        """Pairs of different classes first, the most frequent first; within a pair the worst first."""
        ranks = {(pair["given_label"], pair["suggested_label"]): rank for rank, pair in enumerate(self.pairs())}
        pairs = zip(self.given_label.tolist(), self.suggested_label.tolist(), strict=True)
        rank = np.fromiter((ranks.get(pair, len(ranks)) for pair in pairs), dtype=np.int64, count=len(self))
        return np.argsort(rank, kind="stable")

    def _of_status(self, view: View, decisions: Decisions) -> npt.NDArray[np.bool_]:
        if view.status == "all":
            return np.ones(len(self), dtype=bool)
        if view.status in ("undecided", "mine"):
            done = decisions.decided() if view.status == "undecided" else list(decisions.by(view.reviewer))
            keep = np.ones(len(self), dtype=bool)
            keep[self.row_of[done]] = False
            return keep
        wanted = []
        for index in decisions.decided():
            verdict = decisions.verdict(index)
            said = {decision.choice for decision in decisions.of(index)}
            disputed = verdict is not None and verdict.disputed
            if view.status == "decided" or view.status in said or (disputed and view.status == "disputed"):
                wanted.append(index)
        keep = np.zeros(len(self), dtype=bool)
        keep[self.row_of[wanted]] = True
        return keep
