"""What comes back from any tool: one answer of one person about one sample."""

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
    """A person's answer about the training sample `index`.

    `decision` is a class name or one of `WORDS`; a class of that name comes first. `given_label` is the label that
    they saw, by which the sample is recognized; "" where it is not known.
    """

    index: int
    decision: str
    reviewer: str
    time: float = 0.0
    given_label: str = ""


def answers_of_columns(table: Mapping[str, Sequence[Any]], where: str) -> list[Answer]:
    """The answers in the columns `index`, `decision`, `reviewer` and `given_label`; rows without a decision are open.

    Raises:
        UsageError: if a column is missing or an index is no whole number.
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
    """A cell as text, without the apostrophe that keeps a spreadsheet from computing it."""
    if cell is None or cell != cell:
        return ""
    text = str(cell)
    return text[1:] if text.startswith(("'=", "'+", "'-", "'@", "'\t", "'\r")) else text


def seconds(text: object) -> float:
    """An ISO 8601 time as seconds since 1970; 0 for anything else."""
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
