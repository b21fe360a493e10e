"""Fuzzed inputs of every command: each answer is a result or a one-sentence error, soon, and no code is executed."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import uvicorn
from click.testing import CliRunner
from hypothesis.errors import UnsatisfiedAssumption

from ncsam.cli.main import MISTAKE, main
from ncsam.embed.cache import VARIABLE
from ncsam.jobs import local
from stress import commands, page
from stress.data_files import DATA
from stress.exchange import EXCHANGE
from stress.harness import Draw, Late, Tally, Trial, fuzz, limited_memory, time_limit
from stress.run_folders import FOLDERS, Case, named_code, strange_names
from stress.tasks import few_candidates, tiny_backbones

_PATIENCE = 120  # seconds
#: What no error may contain: names of exceptions, a traceback, another library's advice to be less careful.
_FORBIDDEN = re.compile(
    r"Traceback|\b[A-Z]\w*(?:Error|Exception)\b|weights_only|allow_pickle|pickle_module|unexpected error"
)
#: Text that acts as an instruction: to a terminal, to a browser.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MARKUP = re.compile(r"<(script|img[^>]*\bonerror)", re.IGNORECASE)
#: Hidden files that stay: index files beside the data, and the lock of a run folder.
_KEPT = (".ncsam-files.npz", ".ncsam-shards.npz", ".lock")
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}(\..*)?")
#: Each kind writes what it needs below a folder and returns the command line, and what is wrong with it.
KINDS: dict[str, Callable[[Draw, Path], Case]] = {
    "commands": commands.wrong_options,
    **DATA,
    **FOLDERS,
    **EXCHANGE,
    "names": strange_names,
    "named code": named_code,
}


def cases() -> dict[str, Trial]:
    return {kind: partial(trial, make) for kind, make in KINDS.items()}


def run(tally: Tally, trials: int | None = None) -> None:
    with limited_memory():
        fuzz(tally, cases(), trials)
    tally.numbers["kinds"] = len(KINDS)


def trial(make: Callable[[Draw, Path], Case], draw: Draw) -> str | None:
    """What is wrong with the answer to one fuzzed input; `None` if nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        os.environ |= {"STRESS_TRAP": str(top / "trap"), VARIABLE: str(top / "cache")}  # the trap: what attacks create
        try:
            arguments, what = make(draw, top)
        except UnsatisfiedAssumption:  # Hypothesis draws another one
            raise
        except Exception as error:  # of what is made first: a run, a selection of `auto`
            return f"the input could not be made: {error!r}"
        problem = answer([str(word) for word in arguments], top)
    return problem and f"{what}: {problem}"


def answer(arguments: list[str], top: Path) -> str | None:
    """What is wrong with the answer to a command line."""
    before = _traces(top)
    try:
        with warnings.catch_warnings(), time_limit(_PATIENCE), _nothing_started(), _in_folder(top / "in" / "here"):
            warnings.simplefilter("ignore")
            result = CliRunner().invoke(main, arguments, prog_name="ncsam")
    except Late:
        return f"no answer in {_PATIENCE} s"
    shown = result.output.strip()
    said = shown.splitlines()[-1] if shown else ""
    if (top / "trap").exists():
        return "code was run"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{result.exception!r}"
    if result.exit_code not in (0, 1, 2):
        return f"exit code {result.exit_code}"
    if result.exit_code and (found := _FORBIDDEN.search(shown)):
        return f"{found[0]!r} in {said!r}"
    if result.exit_code and "Error: " not in shown:
        return f"no error message, but {said!r}"
    echoed = [word for word in arguments if _CONTROL.search(word)]  # click repeats what was typed
    if not any(word in shown for word in echoed) and (found := _CONTROL.search(shown)):
        return f"{found[0]!r} is sent to the terminal in {shown[max(0, found.start() - 40) :][:80]!r}"
    for file in (*top.glob("r.html"), *top.glob("r.md"), *top.glob("theirs/*.html"), *top.glob("theirs/*.md")):
        if found := _MARKUP.search(file.read_text()):
            return f"{found[0]!r} in {file.name}"
    if "--csv" in arguments and result.exit_code == 0:
        cells = [cell for row in csv.reader(shown.splitlines()) for cell in row]
        if formulas := [cell for cell in cells if cell.startswith(("=", "+", "@"))]:
            return f"{formulas[0]!r} is a formula"
    found_there = _left(before, _traces(top), refused=result.exit_code == MISTAKE)
    return found_there and f"{found_there} after {said!r}"


class _Trace(NamedTuple):
    """What changes when a file is written or a folder is replaced."""

    kind: int
    size: int
    time: int


def _traces(top: Path) -> dict[Path, _Trace]:
    """All files and folders below a folder."""
    found = {}
    for path in top.rglob("*"):
        status = path.lstat()
        kind = stat.S_IFMT(status.st_mode)
        found[path.relative_to(top)] = _Trace(kind, *(0, 0) if path.is_dir() else (status.st_size, status.st_mtime_ns))
    return found


def _left(before: dict[Path, _Trace], after: dict[Path, _Trace], *, refused: bool) -> str | None:
    """What should not have happened: any change after a usage error, else temporary files and lost input."""
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if was == now or path.name in _KEPT or path.parts[0] == "cache" or path.parts in (("in",), ("in", "here")):
            continue
        lost = was is not None and (path.parts[0] == "given" or stat.S_ISFIFO(was.kind))
        if refused or lost or _TEMPORARY.fullmatch(path.name):
            return f"{str(path)!r} is {'new' if was is None else 'gone' if now is None else 'changed'}"
    return None


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """With a current folder for relative paths, including those with dots."""
    folder.mkdir(parents=True)
    previous = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(previous)


@contextlib.contextmanager
def _nothing_started() -> Iterator[None]:
    """Requests to the review page instead of a server, this process instead of workers, few candidates of `auto`."""
    serving = mock.patch.object(uvicorn.Server, "run", page.visit)
    with few_candidates(), tiny_backbones(), serving, mock.patch.object(local, "run_all", commands.in_this_process):
        yield
