"""Answers from any tool: one person's answer about one sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ncsam._errors import bad_value

#: Words in place of a class: the given label is right, the suggested one is, the reviewer cannot tell, no class is.
WORDS = ("keep", "accept", "unsure", "drop")
#: Columns of every table that leaves for a tool and comes back.
DECISION, REVIEWER = "decision", "reviewer"


@dataclass(frozen=True)
class Answer:
    """A person's answer about a training sample.

    Attributes:
        index: position in the training split.
        decision: a class name or one of `WORDS`. If a class has the name of a word, the class is meant.
        reviewer: name of the person.
        time: seconds since 1970; 0 if unknown.
        given_label: the label that the person saw, to detect changed data; "" if unknown.
    """

    index: int
    decision: str
    reviewer: str
    time: float = 0.0
    given_label: str = ""


def answers_of_columns(table: Mapping[str, Sequence[Any]], where: str) -> list[Answer]:
    """Read answers from the columns `index`, `decision`, `reviewer` and `given_label`.

    Args:
        table: columns by name. `reviewer` and `given_label` are optional.
        where: name of the source, for messages and as the reviewer if none is given.

    Returns:
        An answer per row; rows without a decision are skipped.

    Raises:
        UsageError: if a column is missing or an index is not a whole number of at least 0.
    """
    for name in ("index", DECISION):
        if name not in table:
            raise bad_value("columns", list(table), f"a column {name!r} in {where}")
    empty = [""] * len(table["index"])
    people, given = table.get(REVIEWER, empty), table.get("given_label", empty)
    found = []
    for row, (index, decision, reviewer, label) in enumerate(
        zip(table["index"], table[DECISION], people, given, strict=True)
    ):
        said = plain(decision)
        if not said.strip():
            continue
        found.append(Answer(_whole(index, f"{where}, row {row}"), said, plain(reviewer) or where, 0.0, plain(label)))
    return found


def plain(cell: Any) -> str:
    """Return a cell as text, without the apostrophe that keeps spreadsheets from evaluating it.

    Args:
        cell: any value; `None` and NaN become "".
    """
    if cell is None or cell != cell:
        return ""
    text = str(cell)
    return text[1:] if text.startswith(("'=", "'+", "'-", "'@", "'\t", "'\r")) else text


def seconds(text: object) -> float:
    """Convert an ISO 8601 time to seconds since 1970.

    Args:
        text: the time; UTC if it has no time zone.

    Returns:
        Seconds; 0 if it is not a time.
    """
    try:
        found = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


def _whole(value: Any, where: str) -> int:
    try:
        number = int(str(value).strip().removesuffix(".0"))
    except ValueError:
        raise bad_value("index", value, f"the position of a sample ({where})") from None
    if not 0 <= number < 2**63:
        raise bad_value("index", value, f"the position of a sample ({where})")
    return number
