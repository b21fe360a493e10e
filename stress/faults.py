"""Fault injection: full, broken or read-only disks and system limits: a clear error, and a run that can resume."""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ncsam.engine import RunError
from stress.tally import Tally
from stress.tasks import TASKS

_ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EMFILE)


def run(tally: Tally, trials: int | None = None) -> None:
    chance = random.Random(tally.seed)
    with tempfile.TemporaryDirectory() as place_of_all:
        top = Path(place_of_all)
        number = 0
        while tally.time_left if trials is None else number < trials:
            name = chance.choice(["train", "train", "train", "folds", "embed", "embed", "auto"])
            kind = chance.choice(["operation", "operation", "operation", "size", "files"])
            if kind == "operation":
                place, code = chance.randrange(150), chance.choice(_ERRORS)
                what, fault = f"file operation {place} fails with {errno.errorcode[code]}", failing(top, place, code)
            elif kind == "size":
                size = chance.randrange(1, 40_000)
                what, fault = f"files end at {size} bytes", limited(resource.RLIMIT_FSIZE, size)
            else:
                more = chance.randrange(0, 12)
                what, fault = f"{more} more files may be open", limited(resource.RLIMIT_NOFILE, _open_files() + more)
            tally.held(*trial(top, name, top / str(number), what, fault))
            number += 1
    for folder in ("/proc/x", "/dev/null", "/dev/null/x"):
        tally.held(*refused(Path(folder)))


def trial(top: Path, name: str, out: Path, what: str, fault: Any) -> tuple[bool, str]:
    """A task under a fault ends in a clear error or finishes; without the fault it finishes with the same bits."""
    task, what = TASKS[name], f"{name}, {what}"
    whole = top / f"whole {name}"
    if not whole.exists():
        task.do(whole)
    try:
        with fault:
            task.do(out)
    except RunError:
        pass
    except OSError as error:
        if not error.strerror:
            return False, f"faults, {what}: {error!r}"
    except BaseException as error:
        return False, f"faults, {what}: {error!r}"
    try:
        task.do(out)
        found = task.difference(whole, out)
    except BaseException as error:
        return False, f"faults, {what}, then without it: {error!r}"
    return found is None, f"faults, {what}: {found} differs"


def refused(folder: Path) -> tuple[bool, str]:
    try:
        TASKS["train"].do(folder)
    except RunError:
        return True, ""
    except BaseException as error:
        return False, f"faults, run folder {folder}: {error!r}"
    return False, f"faults, run folder {folder}: it was not rejected"


@contextmanager
def failing(top: Path, place: int, code: int) -> Iterator[None]:
    """The `place`-th opening for writing, writing, flushing to disk or renaming below `top` fails, and all later ones.

    A disk that is full once stays full.
    """
    count = [0]

    def tick() -> None:
        count[0] += 1
        if count[0] > place:
            raise OSError(code, os.strerror(code))

    def counting(function: Callable[..., Any], concerns: Callable[..., bool]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            if concerns(*args, **options):
                tick()
            return function(*args, **options)

        return called

    def writes(path: Any, mode: str = "r", *_: Any, **__: Any) -> bool:
        return str(path).startswith(str(top)) and any(letter in mode for letter in "wax+")

    def below(path: Any, *_: Any, **__: Any) -> bool:
        return str(path).startswith(str(top))

    patched: list[tuple[Any, str, Any]] = [
        (builtins, "open", counting(builtins.open, writes)),
        (io, "open", counting(io.open, writes)),
        (os, "fsync", counting(os.fsync, lambda *_: True)),
        (os, "replace", counting(os.replace, below)),
        (os, "link", counting(os.link, below)),
        (os, "mkdir", counting(os.mkdir, below)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in patched]
    for module, name, function in patched:
        setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


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
        with suppress(TypeError):
            signal.signal(signal.SIGXFSZ, handler)


def _open_files() -> int:
    return max(map(int, os.listdir("/proc/self/fd")))
