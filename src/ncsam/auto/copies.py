"""The copy of a race at a URL: what the race is about, each fold as soon as it is trained, and all of it in the end.

A machine that has no folder of the race takes it from there and goes on; a Ray node that shares no disk with the race
leaves its fold there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ncsam.auto.outcome import Fold, fold_file
from ncsam.errors import RunError
from ncsam.jobs.mirror import Mirror

ABOUT = "auto.json"
CANDIDATES = "candidates"


class Copies:
    """Of the race in `folder`; the URL stands for that folder."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.mirror = Mirror(url)

    def fetch(self) -> None:
        """Bring the race here, unless there is one."""
        self.mirror.fetch("", self.folder)

    def claim(self) -> None:
        """Leave what the race is about, or refuse a URL that has another one."""
        there = self.mirror.read("", ABOUT)
        if there is None:
            self.mirror.put("", self.folder, [ABOUT])
        elif there != (self.folder / ABOUT).read_bytes():
            raise RunError(f"{self.url} holds the copy of another race than {self.folder}: choose another URL")

    def keep(self, candidate: str, number: int) -> None:
        """Leave a fold there, unless it is. A failure is none of the race, which leaves all again in the end."""
        file = f"{CANDIDATES}/{fold_file(candidate, number)}"
        with contextlib.suppress(Exception):  # whatever a network raises
            if not self.mirror.has("", file):
                self.mirror.put("", self.folder, [file])

    def bring(self, candidate: str, number: int) -> None:
        """A fold that another machine left there, if it did."""
        self.mirror.get("", self.folder, f"{CANDIDATES}/{fold_file(candidate, number)}")

    def keeping(self, train: Callable[..., Fold]) -> Callable[..., Fold]:
        """A way to train folds that leaves each there."""

        def trained(problem: Any, candidate: Any, number: int, *rest: Any) -> Fold:
            fold = train(problem, candidate, number, *rest)
            self.keep(candidate.name, number)
            return fold

        return trained

    @property
    def is_whole(self) -> bool:
        """Whether the finished race is there."""
        return self.mirror.is_finished("")

    def keep_all(self) -> None:
        self.mirror.store("", self.folder)
