"""Import answers from other tools as decisions of a review."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ncsam._errors import bad_value, known_name
from ncsam.exchange import hugging_face, label_studio, spreadsheet
from ncsam.exchange.answers import Answer
from ncsam.review.queue import Queue, check_reviewer
from ncsam.runs.decisions import Decision, Decisions
from ncsam.runs.reader import RunFolder

#: The tools by name, and what reads their files.
TOOLS: dict[str, Callable[[Any], list[Answer]]] = {
    "label-studio": label_studio.read,
    "huggingface": hugging_face.read,
    "csv": spreadsheet.read,
}


def imported(folder: Path, tool: str, source: Any) -> list[Decision]:
    """Read decisions about a run's samples from a file of another tool. Nothing is written.

    Args:
        folder: the run folder that the label issues were exported from.
        tool: a name from `TOOLS`.
        source: the file; for "huggingface" also a `datasets.Dataset`, for "label-studio" also the parsed JSON.

    Returns:
        A decision per answer.

    Raises:
        UsageError: if an answer refers to a sample, label or class that the run does not have.
    """
    known_name("tool", tool, TOOLS)
    run = RunFolder.read(folder)
    queue, classes = Queue(run), run.classes
    return [_decision(answer, queue, classes) for answer in TOOLS[tool](source)]


def take_decisions(decisions: Decisions, new: Sequence[Decision]) -> int:
    """Record the decisions that are not recorded yet.

    Args:
        decisions: the decisions of a run, opened for writing.
        new: decisions to add.

    Returns:
        The number of decisions that were new.
    """
    standing = {(name, index): word for name in decisions.reviewers for index, word in decisions.by(name).items()}
    added = []
    for each in new:
        known = standing.get((each.reviewer, each.index))
        if known is None or (known.choice, known.label) != (each.choice, each.label):
            added.append(each)
            standing[each.reviewer, each.index] = each
    decisions.extend(added)
    return len(added)


def _decision(answer: Answer, queue: Queue, classes: Sequence[str] | None) -> Decision:
    if answer.index >= len(queue):
        raise bad_value("index", answer.index, f"a sample of the run, from 0 to {len(queue) - 1}")
    row = int(queue.row_of[answer.index])
    given, suggested = int(queue.given_label[row]), int(queue.suggested_label[row])
    number = {name: i for i, name in enumerate(classes)} if classes else {}
    seen = number.get(answer.given_label, answer.given_label)
    if answer.given_label and str(seen) != str(given):
        said = f"sample {answer.index} with the label {answer.given_label!r}"
        raise bad_value("given_label", said, f"the run's own labels; there it is {_named(classes, given)!r}")
    label, choice = _label(answer, number, given, suggested, len(queue))
    return Decision(answer.index, choice, label, given, suggested, check_reviewer(answer.reviewer), answer.time)


def _label(answer: Answer, number: dict[str, int], given: int, suggested: int, size: int) -> tuple[int | None, str]:
    """The class that an answer names, and the corresponding choice."""
    word = answer.decision
    label = number.get(word)
    if label is None and not number and word.isdecimal() and int(word) < size:
        label = int(word)
    if label is None:
        if word in ("unsure", "drop"):
            return None, word
        if word not in ("keep", "accept"):
            raise bad_value(
                "decision", word, f"a class of the run, keep, accept, unsure or drop (sample {answer.index})"
            )
        label = given if word == "keep" else suggested
    return label, "keep" if label == given else "accept" if label == suggested else "other"


def _named(classes: Sequence[str] | None, label: int) -> str:
    return str(label) if classes is None else classes[label]
