"""Calls from Python with wrong values: every answer is a sound result, or one sentence of ours on what is wrong."""

from __future__ import annotations

import linecache
import random
import re
import resource
import signal
import traceback
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from stress.callables import Call, calls
from stress.tally import Tally
from stress.wrong_values import changed, is_same, refused, shown

_PATIENCE = 20  # seconds
_MEMORY = 4 << 30  # bytes that a call may take beyond what is taken already
#: What Python, numpy and torch say: true, but a puzzle to whoever did not write the line that failed.
_PUZZLE = re.compile(
    r"truth value of|Boolean value of|expected scalar type|unsupported operand|'?NoneType'? object|has no attribute|"
    r"object is not|cannot convert|could not convert|index .* out of bounds|out of range for|not supported between|"
    r"must be real number|invalid literal|inhomogeneous|has no len|mat1 and mat2|size of tensor|must match|broadcast"
)

#: Under which words an error may speak of an argument.
_ALIASES = {
    "logits": ("forward",),
    "target": ("rho_target",),
    "value": ("progress",),
    "loss": ("criterion",),
    "labels": ("targets",),
    "class_map": ("class map",),
    "y": ("label", "labels"),
    "x": ("tree",),
    "loggers": ("logger",),
    "choices": ("operation",),
    "data": ("targets", "labels", "clean", "forward"),
    "name": ("noise", "model", "members"),
}


def run(tally: Tally, trials: int | None = None) -> None:
    """Change one or two arguments of every call in turn, over and over."""
    known = calls()
    tally.figures["calls"] = len(known)
    number = 0
    with _limited():
        for call in known:
            problem = answer(call, call.right(), {})
            tally.held(problem is None, f"calls, {call.name} with right arguments: {problem}")
        while tally.time_left if trials is None else number < trials:
            call, seed = known[number % len(known)], f"{tally.seed}-{number}"
            problem = trial(call, random.Random(seed))
            tally.held(problem is None, f"calls, {call.name}, random.Random({seed!r}): {problem}")
            number += 1


def trial(call: Call, chance: random.Random) -> str | None:
    """What is wrong with the answer to one call with wrong arguments; `None` if nothing is."""
    given = call.right()
    if not call.hints:
        return None
    names = chance.sample(sorted(call.hints), k=min(len(call.hints), chance.choice((1, 1, 1, 2))))
    wrong = {name: changed(call, name, given.get(name), chance) for name in names}
    return answer(call, {**given, **wrong}, wrong)


def answer(call: Call, given: dict[str, Any], wrong: dict[str, Any]) -> str | None:
    """What is wrong with the answer to a call, of whose arguments some are `wrong`."""
    what = ", ".join(f"{name}={shown(value)}" for name, value in wrong.items())  # before a call changes them
    try:
        with warnings.catch_warnings(), _alarm():
            warnings.simplefilter("ignore")
            call.function(**given)
    except TimeoutError:
        return f"{what}: no answer in {_PATIENCE} s"
    except Exception as error:
        if all(is_same(call, name, value) for name, value in wrong.items()):
            return f"{what}: {_said(error)}"
        problem = puzzling(error, [*call.hints])
        return None if problem is None else f"{what}: {problem}"
    accepted = [name for name, value in wrong.items() if refused(call, name, value)]
    return f"{what}: {accepted[0]} is accepted" if accepted else None


def puzzling(error: Exception, names: list[str]) -> str | None:
    """Why an error is no sentence of ours on one of the arguments; `None` if it is."""
    text = _said(error)
    if _of_network(error):
        return None
    if not isinstance(error, (ValueError, TypeError, ImportError, RuntimeError, FileNotFoundError)):
        return text
    if not _raised_by_us(error):
        return f"not ours, {text}"
    if _PUZZLE.search(str(error)):
        return f"a puzzle, {text}"
    if not any(re.search(rf"\b{alias}\b", str(error)) for name in names for alias in (name, *_ALIASES.get(name, ()))):
        return f"it names no argument, {text}"
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:160]}".replace("\n", " ")


def _of_network(error: Exception) -> bool:
    """Whether a network of the user's could not take its inputs, which is for it to say."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    called = [place for place, file in enumerate(files) if file.match("torch/nn/modules/module.py")]
    return bool(called) and not any(file.match("ncsam/*/*.py") for file in files[called[-1] :])


def _raised_by_us(error: Exception) -> bool:
    """Whether the error comes from a `raise` of the package, and not from an operation that failed in it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if not isinstance(trace, types.TracebackType):
        return False
    frame = trace.tb_frame
    line = linecache.getline(frame.f_code.co_filename, trace.tb_lineno)
    return frame.f_globals.get("__name__", "").startswith("ncsam.") and line.lstrip().startswith("raise ")


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise `TimeoutError` in the block when patience ends."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _limited() -> Iterator[None]:
    """A limit on memory, so that a huge number is an error of the call and not the end of the machine."""
    before, state = resource.getrlimit(resource.RLIMIT_AS), Path("/proc/self/statm")
    if not state.exists():  # nor is the limit kept there
        yield
        return
    taken = int(state.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
