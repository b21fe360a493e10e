"""Calls from Python with wrong arguments: each answer is a result, or an error of ours that names the argument."""

from __future__ import annotations

import linecache
import re
import traceback
import types
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from stress.callables import Call, calls
from stress.harness import Draw, Late, Tally, Trial, fuzz, limited_memory, time_limit
from stress.tasks import few_candidates, tiny_backbones
from stress.wrong_values import is_same, refused, shown, wrong

_PATIENCE = 20  # seconds
#: What Python, numpy and torch say: true, but cryptic to whoever did not write the line that failed.
_CRYPTIC = re.compile(
    r"truth value of|Boolean value of|expected scalar type|unsupported operand|'?NoneType'? object|has no attribute|"
    r"object is not|cannot convert|could not convert|index .* out of bounds|out of range for|not supported between|"
    r"must be real number|invalid literal|inhomogeneous|has no len|mat1 and mat2|size of tensor|must match|broadcast"
)
#: Other words by which an error may name an argument.
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


def cases() -> dict[str, Trial]:
    return {call.name: partial(trial, call) for call in calls()}


def run(tally: Tally, trials: int | None = None) -> None:
    """Every call with right arguments, then with wrong ones."""
    tally.numbers["functions"] = len(calls())
    with limited_memory():
        for call in calls():
            tally.held(answer(call, call.right(), {}), f"calls, {call.name} with right arguments")
        fuzz(tally, cases(), trials)


def trial(call: Call, draw: Draw) -> str | None:
    """What is wrong with the answer to one call with wrong arguments; `None` if nothing is."""
    given = call.right()
    if not call.hints:
        return None
    names = draw(st.lists(st.sampled_from(sorted(call.hints)), min_size=1, max_size=2, unique=True))
    changed = {name: draw(wrong(name, given.get(name, call.defaults.get(name)))) for name in names}
    return answer(call, {**given, **changed}, changed)


def answer(call: Call, given: dict[str, Any], changed: dict[str, Any]) -> str | None:
    """What is wrong with the answer to a call, of whose arguments some are `changed`."""
    what = ", ".join(f"{name}={shown(value)}" for name, value in changed.items())  # before a call changes them
    right = {**call.defaults, **call.right()} if changed else {}
    strict = call.name.partition(".")[0] in ("optim", "losses", "models", "methods")
    try:
        with warnings.catch_warnings(), time_limit(_PATIENCE), few_candidates(), tiny_backbones():
            warnings.simplefilter("ignore")
            call.function(**given)
    except Late:
        return f"{what}: no answer in {_PATIENCE} s"
    except Exception as error:
        if all(is_same(right.get(name), value) for name, value in changed.items()):
            return f"{what}: {_said(error)}"
        problem = cryptic(error, [*call.hints])
        return problem and f"{what}: {problem}"
    accepted = [name for name, value in changed.items() if refused(call.hints[name], value, strict)]
    return f"{what}: {accepted[0]} is accepted" if accepted else None


def cryptic(error: Exception, names: list[str]) -> str | None:
    """Why an error is not one of ours about an argument; `None` if it is."""
    text = _said(error)
    if _of_model(error):
        return None
    if not isinstance(error, (ValueError, TypeError, ImportError, RuntimeError, FileNotFoundError)):
        return text
    if not _raised_by_us(error):
        return f"not ours, {text}"
    if _CRYPTIC.search(str(error)):
        return f"cryptic, {text}"
    if "samples" in names:
        return None  # in words that suit the kind of data
    if not any(re.search(rf"\b{alias}\b", str(error)) for name in names for alias in (name, *_ALIASES.get(name, ()))):
        return f"it names no argument, {text}"
    return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:160]}".replace("\n", " ")


def _of_model(error: Exception) -> bool:
    """Whether a user's model rejected its inputs: its error is the right one."""
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
