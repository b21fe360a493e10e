"""Hostile inputs from a grammar for each kind: every answer is a result or one sentence, soon, and runs nothing."""

from __future__ import annotations

import contextlib
import csv
import os
import random
import re
import signal
import stat
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

import uvicorn
from click.testing import CliRunner

from ncsam.cli.failures import MISTAKE
from ncsam.cli.main import main
from ncsam.jobs import local as batch
from stress import archives, cells, columns, commands, files, records, runs, values
from stress.tally import Tally

_PATIENCE = 120  # seconds
#: What no answer may contain: names of exceptions, a traceback, another library's advice to be less careful.
_FORBIDDEN = re.compile(
    r"Traceback|\b[A-Z]\w*(?:Error|Exception)\b|weights_only|allow_pickle|pickle_module|unexpected error"
)
#: What turns from a name into an instruction: of a terminal, of a browser.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Files that are hidden and stay: indices beside the data, and the lock of a run folder.
_KEPT = (".ncsam-files.npz", ".ncsam-shards.npz", ".lock")
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}(\..*)?")
_MARKUP = re.compile(r"<(script|img[^>]*\bonerror)", re.IGNORECASE)
#: Each kind writes what it needs into a folder and gives the command line, and a word on what was done.
KINDS: dict[str, Callable[[random.Random, Path], tuple[list[Any], str]]] = {
    "options": values.options,
    "commands": commands.wrong_options,
    "config": values.config,
    "npz": files.npz,
    "table": files.table,
    "images": files.images,
    "labels": files.labels,
    "weights": files.weights,
    "checkpoint": runs.checkpoint,
    "run folder": runs.folder,
    "named": runs.named,
    "predict": runs.predict,
    "shards": archives.shards,
    "parquet": archives.parquet,
    "index": archives.index,
    "annotators": archives.annotators,
    "decisions": records.decisions,
    "race": records.race,
    "predictions": records.predictions,
    "features": records.kept_features,
    "cells": cells.cells,
    "comparison": cells.comparison,
    "verified": columns.verified,
    "joined": columns.joined,
}


def run(tally: Tally, trials: int | None = None) -> None:
    counts: Counter[str] = Counter()
    number = 0
    names = list(KINDS)
    while tally.time_left if trials is None else number < trials:
        kind = names[number % len(names)]
        seed = f"{tally.seed}-{number}"
        with tempfile.TemporaryDirectory() as folder:
            problem = trial(KINDS[kind], random.Random(seed), Path(folder))
        tally.held(problem is None, f"inputs, {kind}, random.Random({seed!r}): {problem}")
        counts[kind] += 1
        number += 1
    tally.figures["of each kind"] = min(counts.values(), default=0)


def trial(make: Callable[[random.Random, Path], tuple[list[Any], str]], chance: random.Random, top: Path) -> str | None:
    """What is wrong with the answer to one hostile input; `None` if nothing is."""
    os.environ["STRESS_TRAP"] = str(top / "trap")  # what the attacks would make if they ran
    try:
        arguments, what = make(chance, top)
    except Exception as error:  # of what is made first: a run, a race
        return f"what is spoiled could not be made: {error!r}"
    before = _traces(top)
    try:
        with warnings.catch_warnings(), _Alarm(), _nothing_started(), _in_folder(top / "in" / "here"):
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="ncsam")
    except _Late:
        return f"{what}: no answer in {_PATIENCE} s"
    shown = result.output.strip()
    said = shown.splitlines()[-1] if shown else ""
    if (top / "trap").exists():
        return f"{what}: code was run"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{what}: {result.exception!r}"
    if result.exit_code not in (0, 1, 2):
        return f"{what}: exit code {result.exit_code}"
    if result.exit_code and (found := _FORBIDDEN.search(shown)):
        return f"{what}: {found[0]!r} in {said!r}"
    if result.exit_code and "Error: " not in shown:
        return f"{what}: no sentence, but {said!r}"
    if found := _CONTROL.search(shown):
        return f"{what}: {found[0]!r} is sent to the terminal in {shown[max(0, found.start() - 40) :][:80]!r}"
    for page in (*top.glob("r.html"), *top.glob("r.md"), *top.glob("theirs/*.html"), *top.glob("theirs/*.md")):
        if found := _MARKUP.search(page.read_text()):
            return f"{what}: {found[0]!r} in {page.name}"
    if "--csv" in arguments and result.exit_code == 0:
        cells = [cell for row in csv.reader(shown.splitlines()) for cell in row]
        if formulas := [cell for cell in cells if cell.startswith(("=", "+", "@"))]:
            return f"{what}: {formulas[0]!r} is a formula"
    found_there = _left(before, _traces(top), refused=result.exit_code == MISTAKE)
    return None if found_there is None else f"{what}: {found_there} after {said!r}"


class _Trace(NamedTuple):
    """What changes of a file when it is written, and of a folder when it is replaced."""

    kind: int
    size: int
    time: int


def _traces(top: Path) -> dict[Path, _Trace]:
    """What lies below a folder."""
    found = {}
    for path in top.rglob("*"):
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        found[path.relative_to(top)] = _Trace(kind, *(0, 0) if path.is_dir() else (status.st_size, status.st_mtime_ns))
    return found


def _left(before: dict[Path, _Trace], after: dict[Path, _Trace], *, refused: bool) -> str | None:
    """What should not have happened: after a mistake anything, else temporary files, and losses of what was read."""
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if was == now or path.name in _KEPT or path.parts in (("in",), ("in", "here")):
            continue
        lost = was is not None and (path.parts[0] == "given" or stat.S_ISFIFO(was.kind))
        if refused or lost or _TEMPORARY.fullmatch(path.name):
            return f"{str(path)!r} is {'new' if was is None else 'gone' if now is None else 'changed'}"
    return None


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """With a current folder to which relative paths lead, those with dots as well."""
    folder.mkdir(parents=True)
    previous = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(previous)


@contextlib.contextmanager
def _nothing_started() -> Iterator[None]:
    """A server asks itself instead of waiting, and workers are this process."""
    serving = mock.patch.object(uvicorn.Server, "run", records.visited)
    with serving, mock.patch.object(batch, "run_all", commands.in_this_process):
        yield


class _Late(BaseException):
    """No answer in time; nothing takes it for a failure that is foreseen."""


class _Alarm:
    """Raise `_Late` in the block when patience ends."""

    def __enter__(self) -> None:
        def ring(number: int, frame: FrameType | None) -> None:
            raise _Late

        self._before = signal.signal(signal.SIGALRM, ring)
        signal.alarm(_PATIENCE)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._before)
