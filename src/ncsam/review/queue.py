"""The label issues of a run in the order in which they are reviewed, filtered and cut into pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value, unknown_name
from ncsam.review.decisions import CHOICES, Decisions
from ncsam.runs.reader import Run

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ORDERS = ("worst", "pair")
STATUSES = ("undecided", "mine", "all", "decided", "disputed", *CHOICES)
LAYOUTS = ("one", "grid")
MOST = 200  # items of a page


@dataclass(frozen=True)
class View:
    """What a reviewer looks at; the page reopens with it.

    `status` "undecided" is what no reviewer has decided on, "mine" what this reviewer has not; `place` is the place, in
    the order, of the sample that is looked at.
    """

    order: str = "worst"
    status: str = "undecided"
    observed: int | None = None
    suggested: int | None = None
    search: str = ""
    layout: str = "one"
    place: int = 0
    reviewer: str = "reviewer"

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> View:
        """From what a page sent; anything out of place is refused."""
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise unknown_name("setting of the view", name, known)
        view = cls(**given)
        for name, allowed in (("order", ORDERS), ("status", STATUSES), ("layout", LAYOUTS)):
            if getattr(view, name) not in allowed:
                raise unknown_name(name, getattr(view, name), allowed)
        for name in ("observed", "suggested"):
            if not isinstance(getattr(view, name), (int, type(None))):
                raise bad_value(name, getattr(view, name), "a class number or null")
        if not isinstance(view.place, int) or view.place < 0:
            raise bad_value("place", view.place, "a whole number from 0")
        if not isinstance(view.search, str) or len(view.search) > 200:
            raise bad_value("search", view.search, "text of up to 200 characters")
        check_reviewer(view.reviewer)
        return view


def check_reviewer(name: object) -> str:
    """A reviewer's name: text that is not empty, in one line."""
    if not isinstance(name, str) or not name.strip() or len(name) > 80 or not name.isprintable():
        raise bad_value("reviewer", name, "a name of 1 to 80 printable characters")
    return name


class Queue:
    """The rows of `label_issues.csv` as columns, the worst first. A sample's place is its row."""

    def __init__(self, run: Run) -> None:
        rows = run.issue_rows()
        if not rows:
            raise ValueError(f"{run.folder} has no label_issues.csv yet; a run writes it when it ends")
        self.index: Indices = np.array([row["index"] for row in rows], dtype=np.int64)
        self.observed: Indices = np.array([row["observed"] for row in rows], dtype=np.int64)
        self.suggested: Indices = np.array([row["suggested"] for row in rows], dtype=np.int64)
        self.suspicion: Floats = np.array([row["suspicion"] for row in rows], dtype=np.float64)
        self.p_wrong = _probabilities(rows, "p_wrong")
        self.p_suggested = _probabilities(rows, "p_suggested")
        self.expected_wrong = 0.0 if self.p_wrong is None else float(self.p_wrong.sum())
        self.names = [str(row.get("path") or row["index"]) for row in rows]
        self._searched = [
            f"{name} {row.get('text') or ''}".casefold() for name, row in zip(self.names, rows, strict=True)
        ]
        if not np.array_equal(np.sort(self.index), np.arange(len(rows))):
            raise ValueError(f"{run.folder / 'label_issues.csv'} does not hold every training sample once")
        self.row_of: Indices = np.empty(len(rows), dtype=np.int64)
        self.row_of[self.index] = np.arange(len(rows))
        self._by_pair = self._ordered_by_pair()
        self._pair_place: Indices = np.empty(len(rows), dtype=np.int64)
        self._pair_place[self._by_pair] = np.arange(len(rows))

    def __len__(self) -> int:
        return len(self.index)

    def pairs(self) -> list[dict[str, int]]:
        """Each (observed, suggested) that is doubted, with how often it is, the most frequent first.

        A label is doubted where it is more likely wrong than right; where probabilities are not known, where another
        class is suggested.
        """
        differ = self.observed != self.suggested if self.p_wrong is None else self.p_wrong > 0.5
        found, counts = np.unique(
            np.stack([self.observed[differ], self.suggested[differ]], axis=1), axis=0, return_counts=True
        )
        most = np.lexsort((found[:, 1], found[:, 0], -counts))
        return [{"observed": int(found[i, 0]), "suggested": int(found[i, 1]), "count": int(counts[i])} for i in most]

    def rows(self, view: View, decisions: Decisions) -> Indices:
        """The rows that a view shows, in its order."""
        keep = self._of_status(view, decisions)
        if view.observed is not None:
            keep &= self.observed == view.observed
        if view.suggested is not None:
            keep &= self.suggested == view.suggested
        if view.search:
            wanted = view.search.casefold()
            keep &= np.fromiter((wanted in text for text in self._searched), dtype=bool, count=len(self))
        order = self._by_pair if view.order == "pair" else np.arange(len(self))
        return order[keep[order]]

    def page(self, view: View, decisions: Decisions, limit: int, *, back: bool = False) -> tuple[Indices, int, int]:
        """Up to `limit` rows from the view's place on; how many rows there are in all; and how many came before.

        A place is a position in the order of all samples, so it stays where it is when filters or decisions change. At
        the end of the order it starts again from the top. `back` gives the rows before the place instead.
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
        """The place of a row in an order."""
        return row if order == "worst" else int(self._pair_place[row])

    def typical(self, label: int, count: int) -> Indices:
        """The samples labeled so that are the least suspicious: at most half of them, so that few are wrong."""
        rows = np.flatnonzero(self.observed == label)
        return self.index[rows[::-1][: min(count, (len(rows) + 1) // 2)]]

    def _ordered_by_pair(self) -> Indices:
        """Pairs of different classes first, the most frequent first; within a pair the worst first."""
        ranks = {(pair["observed"], pair["suggested"]): rank for rank, pair in enumerate(self.pairs())}
        pairs = zip(self.observed.tolist(), self.suggested.tolist(), strict=True)
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


def _probabilities(rows: list[dict[str, Any]], name: str) -> Floats | None:
    values = [row.get(name) for row in rows]
    return None if any(value is None for value in values) else np.array(values, dtype=np.float64)
