"""Reviewers' decisions: one line of JSON each, only ever appended, and on disk before the page is told."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ncsam._errors import bad_value, unknown_name
from ncsam._files import is_open_file, json_lines
from ncsam.errors import RunError
from ncsam.runs import layout

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

#: The suggested label is correct; the given one is; another class is; the reviewer cannot tell; no class is.
CHOICES = ("accept", "keep", "other", "unsure", "drop")
_WITHOUT_LABEL = ("unsure", "drop")
_UNDO = "undo"


@dataclass(frozen=True)
class Decision:
    """One reviewer's decision on a sample; `label` is the class they consider correct, `None` if unsure or dropped.

    Attributes:
        index: position of the sample in the training split.
        choice: one of `CHOICES`.
        label: the class number that the reviewer considers correct; `None` if unsure or dropped.
        given_label: class number of the label under review.
        suggested_label: class number that was proposed instead.
        reviewer: the reviewer's name.
        time: seconds since the epoch (Unix time).
    """

    index: int
    choice: str
    label: int | None
    given_label: int
    suggested_label: int
    reviewer: str
    time: float


@dataclass(frozen=True)
class Verdict:
    """What the reviewers of a sample say together.

    `label` is the class that most of them hold for right; `None` where all are unsure, or where two classes have as
    many voices (`disputed`), or where most want the sample left out (`drop`).

    Attributes:
        label: the class number of the majority, or `None`.
        disputed: whether the two most frequent answers have equally many votes.
        reviewers: names of all who decided, sorted.
        drop: whether most want the sample left out.
    """

    label: int | None
    disputed: bool
    reviewers: tuple[str, ...]
    drop: bool = False


class Decisions:
    """The decisions of a run folder. `write=True` opens the file for more, and keeps other writers out.

    A line that was cut off by a kill is not a decision: it is left where it is, and the next one starts a new line.

    Args:
        folder: the run folder; the file in it need not exist yet.
        write: open the file for appending and lock it against other writers; by default it is only read.

    Raises:
        RunError: if `write` is set and the file cannot be written, or another process has it open.
        ValueError: if a line of the file is not a decision.
    """

    def __init__(self, folder: Path, *, write: bool = False) -> None:
        self.path = folder / layout.DECISIONS
        self._standing: dict[str, dict[int, Decision]] = {}  # reviewer, index: their last word
        self._done: dict[str, list[tuple[Decision, Decision | None]]] = {}  # reviewer: what they did, what stood before
        self._verdicts: dict[int, Verdict] = {}  # of the samples that were asked for since they changed
        self._file: IO[bytes] | None = _open(self.path) if write else None
        for line in _lines(self.path):
            if line.get("choice") == _UNDO:
                self._take_back(str(line["reviewer"]))
            else:
                self._put(Decision(**line))

    def check(self, samples: int, classes: int) -> None:
        """Raise `RunError` for decisions about samples or classes that the data does not have.

        Args:
            samples: size of the training split.
            classes: number of classes.
        """
        for words in self._standing.values():
            for word in words.values():
                if word.index >= samples or max(word.label or 0, word.given_label, word.suggested_label) >= classes:
                    raise RunError(
                        f"{self.path} decides about sample {word.index}, class {word.label}, and the data has "
                        f"{samples:,} samples of {classes:,} classes: it is of other data"
                    )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def add(
        self, index: int, choice: str, label: int | None, given_label: int, suggested_label: int, reviewer: str
    ) -> Decision:
        """Note a decision. It replaces the same reviewer's earlier one on that sample.

        Args:
            index: position of the sample in the training split.
            choice: one of `CHOICES`.
            label: class number for the choice "other"; elsewhere `None` or the label that the choice implies.
            given_label: class number of the label under review.
            suggested_label: class number that was proposed instead.
            reviewer: the reviewer's name.

        Returns:
            The decision, with the current time.

        Raises:
            UsageError: if the choice is not known, or the label does not fit it.
            RunError: if the file was removed or cannot be written.
        """
        if choice not in CHOICES:
            raise unknown_name("choice", choice, CHOICES)
        meant = {"accept": suggested_label, "keep": given_label, "other": label}.get(choice)
        if (meant is None) != (choice in _WITHOUT_LABEL) or (choice != "other" and label not in (None, meant)):
            raise bad_value("label", label, f"with choice={choice!r} it is {meant!r}")
        decision = Decision(index, choice, meant, given_label, suggested_label, reviewer, round(time.time(), 3))
        assert self._file is not None, "opened for reading"
        self.extend([decision])
        return decision

    def extend(self, decisions: Sequence[Decision]) -> None:
        """Note decisions: on disk, if the file is open for more, and all at once.

        Args:
            decisions: any number of decisions, in the order in which they were made.
        """
        if self._file is not None:
            self._append(*map(asdict, decisions))
        for decision in decisions:
            self._put(decision)

    def undo(self, reviewer: str) -> Decision | None:
        """Take back the reviewer's last decision; what stood before it stands again. `None` if there is none.

        Args:
            reviewer: whose decision is taken back; those of others stand.
        """
        if not self._done.get(reviewer):
            return None
        self._append({"choice": _UNDO, "reviewer": reviewer, "time": round(time.time(), 3)})
        return self._take_back(reviewer)

    # --- what stands

    def of(self, index: int) -> list[Decision]:
        """The last word of every reviewer on a sample.

        Args:
            index: position of the sample in the training split.
        """
        return [words[index] for words in self._standing.values() if index in words]

    def by(self, reviewer: str) -> Mapping[int, Decision]:
        """A reviewer's last words, by sample.

        Args:
            reviewer: the reviewer's name; one who decided nothing has an empty mapping.
        """
        return self._standing.get(reviewer, {})

    def verdict(self, index: int) -> Verdict | None:
        """What the reviewers say together; `None` if none has looked.

        Args:
            index: position of the sample in the training split.
        """
        if index in self._verdicts:
            return self._verdicts[index]
        words = self.of(index)
        if not words:
            return None
        drop = -1  # in place of a class
        votes = Counter(drop if w.choice == "drop" else w.label for w in words if w.choice != "unsure").most_common(2)
        tied = len(votes) == 2 and votes[0][1] == votes[1][1]
        most = None if tied or not votes else votes[0][0]
        people = tuple(sorted(word.reviewer for word in words))
        self._verdicts[index] = Verdict(None if most == drop else most, tied, people, most == drop)
        return self._verdicts[index]

    @property
    def reviewers(self) -> list[str]:
        return sorted(name for name, words in self._standing.items() if words)

    def decided(self) -> list[int]:
        """Every sample that somebody has looked at, in rising order."""
        return sorted({index for words in self._standing.values() for index in words})

    # --- the file

    def _append(self, *lines: Mapping[str, Any]) -> None:
        assert self._file is not None, "opened for reading"
        if not is_open_file(self._file, self.path):
            raise RunError(
                f"{self.path} was removed, moved or replaced while the page was open: this decision is not kept. Stop "
                "the page, put the folder back, and start again"
            )
        try:
            self._file.write(b"".join(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n" for line in lines))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise RunError(f"{self.path} could not be written: {error.strerror or error}") from error

    def _put(self, decision: Decision) -> None:
        words = self._standing.setdefault(decision.reviewer, {})
        self._done.setdefault(decision.reviewer, []).append((decision, words.get(decision.index)))
        words[decision.index] = decision
        self._verdicts.pop(decision.index, None)

    def _take_back(self, reviewer: str) -> Decision | None:
        done = self._done.get(reviewer)
        if not done:
            return None
        decision, before = done.pop()
        self._verdicts.pop(decision.index, None)
        if before is None:
            del self._standing[reviewer][decision.index]
        else:
            self._standing[reviewer][decision.index] = before
        return decision


def _open(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = open(path, "ab+", opener=_open_plain)  # noqa: SIM115 - closed by its holder
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from error
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise RunError(f"{path.parent} is being reviewed by another process: its page is open already") from None
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def _open_plain(path: str, flags: int) -> int:
    """Never through a link, whose target would be written to; and a pipe does not block."""
    handle = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return handle


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, raw, line in json_lines(path):
        if not _is_decision(line):
            raise ValueError(f"{path}, line {number}, is not a decision: {raw[:80]!r}")
        yield line


def _is_decision(line: Any) -> bool:
    """Whether a line is one that `add` or `undo` may have written."""
    if not isinstance(line, dict) or not isinstance(line.get("reviewer"), str):
        return False
    if line.get("choice") == _UNDO:
        return True
    if set(line) != set(Decision.__dataclass_fields__) or line["choice"] not in CHOICES:
        return False
    named = ("index", "given_label", "suggested_label", *(() if line["label"] is None else ("label",)))
    numbers = [line[name] for name in named]
    return all(type(number) is int and number >= 0 for number in numbers) and isinstance(line["time"], (int, float))
