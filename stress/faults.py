"""Fault injection: full, broken or read-only disks and system limits: a clear error, and a run that can resume."""

from __future__ import annotations

import errno
import os
import pkgutil
import random
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from ncsam.engine import RunError
from stress.harness import Tally
from stress.tasks import TASKS

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EMFILE)
_OPERATIONS = ("builtins.open", "io.open", "os.fsync", "os.replace", "os.link", "os.mkdir")


def run(tally: Tally, trials: int | None = None) -> None:
    chance = random.Random(tally.seed)
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        for number in count():
            if not tally.goes_on(number, trials):
                break
            task = chance.choice(["train", "train", "train", "folds", "embed", "embed", "auto"])
            what, fault = _drawn(chance, top)
            tally.held(trial(top, task, top / str(number), fault), f"faults, {task}, {what}")
    for folder in ("/proc/x", "/dev/null", "/dev/null/x"):
        tally.held(refused(Path(folder)), f"faults, run folder {folder}")


def _drawn(chance: random.Random, top: Path) -> tuple[str, AbstractContextManager[None]]:
    kind = chance.choice(["operation", "operation", "operation", "size", "files"])
    if kind == "operation":
        place, code = chance.randrange(150), chance.choice(_ERRORS)
        return f"file operation {place} fails with {errno.errorcode[code]}", failing(top, place, code)
    if kind == "size":
        size = chance.randrange(1, 40_000)
        return f"files end at {size} bytes", limited(resource.RLIMIT_FSIZE, size)
    more = chance.randrange(0, 12)
    opened = max(map(int, os.listdir("/proc/self/fd")))
    return f"{more} more files may be open", limited(resource.RLIMIT_NOFILE, opened + more)


def trial(top: Path, name: str, out: Path, fault: AbstractContextManager[None]) -> str | None:
    """A task under a fault ends in a clear error or finishes; without the fault it finishes with the same bits."""
    task, whole = TASKS[name], top / f"whole {name}"
    if not whole.exists():
        task.do(whole)
    try:
        with fault:
            task.do(out)
    except BaseException as error:
        clear = isinstance(error, RunError) or (isinstance(error, OSError) and error.strerror)
        if not clear:
            return repr(error)
    try:
        task.do(out)
        found = task.difference(whole, out)
    except BaseException as error:
        return f"without the fault: {error!r}"
    return found and f"{found} differs"


def refused(folder: Path) -> str | None:
    """What is wrong with the answer to a run folder that cannot be created."""
    try:
        TASKS["train"].do(folder)
    except RunError:
        return None
    except BaseException as error:
        return repr(error)
    return "it was not rejected"


@contextmanager
def failing(top: Path, place: int, code: int) -> Iterator[None]:
    """The `place`-th opening for writing, flushing to disk or renaming below `top` fails, and all later ones.

    A disk that is full once stays full.
    """
    done = count(1)

    def counting(name: str, function: Any) -> Any:
        def called(path: Any, *args: Any, **options: Any) -> Any:
            mode = args[0] if args else options.get("mode", "r")
            writes = not name.endswith("open") or any(letter in mode for letter in "wax+")
            concerned = name == "os.fsync" or str(path).startswith(str(top))
            if writes and concerned and next(done) > place:
                raise OSError(code, os.strerror(code))
            return function(path, *args, **options)

        return called

    with ExitStack() as patches:
        for name in _OPERATIONS:
            patches.enter_context(mock.patch(name, counting(name, pkgutil.resolve_name(name))))
        yield


@contextmanager
def limited(what: int, value: int) -> Iterator[None]:
    """A system limit on this process."""
    soft, hard = resource.getrlimit(what)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))
        if handler is not None:  # one that was not installed by Python cannot be put back
            signal.signal(signal.SIGXFSZ, handler)
