"""Ctrl-C at every line of `ncsam.optim` during a step, then at instructions: gradients are enabled as before, and
after the next call no parameter stays perturbed.

Lines of torch's `no_grad` count as well: it has a gap between its switch and its block.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ncsam import optim
from stress.tally import Tally

_WHERE = ("ncsam/optim/", "ncsam/vectors/", "torch/autograd/grad_mode.py", "torch/utils/_contextlib.py")
_OPTIONS: dict[str, dict[str, Any]] = {
    "rho": {"rho": 0.5},
    "auto": {"rho": "auto"},
    "validation": {"rho": "validation"},
    "measured": {"rho": 0.5, "telemetry_every": 1, "same_dropout": True},
    "adaptive": {"rho": 0.5, "adaptive": True},
    "fused": {"rho": 0.5, "estimator": "fused"},
    "looksam": {"rho": 0.5, "estimator": "looksam"},
    "relative": {"rho": 0.5, "compensation": "relative", "adaptive": True, "eta": 0.01},
}
_ALL = ("rho", "auto", "validation", "measured")
_OWN = {"sam": ("adaptive",), "ncsam": ("fused", "looksam", "relative")}


def run(tally: Tally, trials: int | None = None) -> None:
    """Interrupt whole and two-phase steps of every optimizer at all lines, in random order; then at instructions."""
    cases = [
        (name, how, options)
        for name in optim.names()
        for how in ("whole", "phases")
        for options in (*_ALL, *_OWN.get(name, ()))
    ]
    chance = random.Random(tally.seed)
    if trials is not None:  # counting the events of a case takes longer than some trials
        cases = chance.sample(cases, 8)
    moved = 0
    for event, share in (("line", 0.8), ("opcode", 0.2)):  # the shares of a limited number of trials
        places = [(case, place) for case in cases for place in range(1, events_of(*case, event) + 1)]
        tally.numbers[f"{event} events"] = len(places)
        chance.shuffle(places)
        for case, place in places if trials is None else places[: round(share * trials)]:
            if trials is None and not tally.time_left:
                break
            after = interrupted(*case, place, event)
            moved += not after.at_once
            wrong = "gradients stay disabled" if not after.gradients else "parameters or statistics stay perturbed"
            tally.held(after.gradients and after.later, f"interrupts, {case}, {event} event {place}: {wrong}")
    tally.numbers["perturbed until the next call"] = moved


def make(name: str, how: str, radius: str) -> tuple[nn.Module, Any, Callable[[], None]]:
    """A model with BatchNorm, its optimizer after two steps, and a step to interrupt."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    kind = optim.get(name)
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"model": model, "total_steps": 10, **_OPTIONS[radius]}
    optimizer: Any = kind(base, **options)
    x, y = torch.randn(12, 5), torch.arange(12) % 3

    def whole() -> None:
        optimizer.step(lambda: model(x), y, clean_targets=y)

    def phases() -> None:
        optimizer.zero_grad()
        with optimizer.first_pass():
            logits = model(x)
            optimizer.backward(nn.functional.cross_entropy(logits, y), logits, y, clean_targets=y)
        for perturbed in optimizer.perturbations():
            with perturbed:
                optimizer.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()

    for _ in range(2):
        whole()
    return model, optimizer, whole if how == "whole" else phases


def events_of(name: str, how: str, radius: str, event: str = "line") -> int:
    """How many line or instruction events of the package a step has."""
    _, _, step = make(name, how, radius)
    return watched(step, None, event)


def watched(step: Callable[[], None], stop: int | None, event: str = "line") -> int:
    """Run a step and count such events; raise `KeyboardInterrupt` at number `stop`."""
    count = 0

    def trace(frame: FrameType, happened: str, _: Any) -> Any:
        nonlocal count
        if not any(where in frame.f_code.co_filename for where in _WHERE):
            return None
        frame.f_trace_opcodes = event == "opcode"
        if happened == event:
            count += 1
            if count == stop:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(before)
    return count


@cache
def expected(name: str, how: str, radius: str) -> tuple[list[Tensor], ...]:
    """Parameters before and after the step, statistics before and after it."""
    model, _, step = make(name, how, radius)
    before, statistics = weights(model), buffers(model)
    step()
    return before, weights(model), statistics, buffers(model)


class After(NamedTuple):
    """Whether gradients are enabled, and whether parameters and statistics are those before or after the step:
    immediately, and after the next call."""

    gradients: bool
    at_once: bool
    later: bool


def interrupted(name: str, how: str, radius: str, place: int, event: str = "line") -> After:
    """Interrupt a step at an event."""
    before, after, old, new = expected(name, how, radius)
    model, optimizer, step = make(name, how, radius)

    def sound() -> bool:
        here, there = weights(model), buffers(model)
        return (equal(here, before) or equal(here, after)) and (equal(there, old) or equal(there, new))

    gradients = at_once = True
    try:
        watched(step, place, event)
    except KeyboardInterrupt:
        gradients, at_once = torch.is_grad_enabled(), sound()
        torch.set_grad_enabled(True)
    except RuntimeError:  # the interrupt was lost, in a generator that was being deleted, and gradients stayed disabled
        torch.set_grad_enabled(True)
        return After(False, False, False)
    optimizer.zero_grad()
    return After(gradients, at_once, sound())


def buffers(model: nn.Module) -> list[Tensor]:
    return [b.clone() for b in model.buffers()]


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))
