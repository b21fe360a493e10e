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
from stress.harness import Tally

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


class Case(NamedTuple):
    """An optimizer, whether its step is `whole` or in `phases`, and its options."""

    name: str
    how: str
    options: str


def run(tally: Tally, trials: int | None = None) -> None:
    """Interrupt whole and two-phase steps of every optimizer at all lines, in random order; then at instructions."""
    chance = random.Random(tally.seed)
    cases = [
        Case(name, how, options)
        for name in optim.names()
        for how in ("whole", "phases")
        for options in (*_ALL, *_OWN.get(name, ()))
    ]
    if trials is not None:  # counting the events of a case takes longer than some trials
        cases = chance.sample(cases, 4)
    for event, share in (("line", 0.8), ("opcode", 0.2)):  # the shares of a limited number of trials
        places = [(case, place) for case in cases for place in range(1, events_of(case, event) + 1)]
        tally.numbers[f"{event} events"] = len(places)
        chance.shuffle(places)
        for number, (case, place) in enumerate(places):
            if not tally.goes_on(number, None if trials is None else round(share * trials)):
                break
            tally.held(interrupted(case, place, event), f"interrupts, {tuple(case)}, {event} event {place}")


def make(case: Case) -> tuple[nn.Module, Any, Callable[[], None]]:
    """A model with BatchNorm, its optimizer after two steps, and a step to interrupt."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kind: Any = optim.get(case.name)
    optimizer = kind(base, **{"model": model, "total_steps": 10, **_OPTIONS[case.options]})
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
    return model, optimizer, whole if case.how == "whole" else phases


def events_of(case: Case, event: str = "line") -> int:
    """How many line or instruction events of the package a step has."""
    return watched(make(case)[2], None, event)


def watched(
    step: Callable[[], None],
    stop: int | None,
    event: str = "line",
    seen: Callable[[FrameType, int], None] | None = None,
) -> int:
    """Run a step and count such events, `seen` with their frames; raise `KeyboardInterrupt` at number `stop`."""
    count = 0

    def trace(frame: FrameType, happened: str, _: Any) -> Any:
        nonlocal count
        if not any(where in frame.f_code.co_filename for where in _WHERE):
            return None
        frame.f_trace_opcodes = event == "opcode"
        if happened == event:
            count += 1
            if seen is not None:
                seen(frame, count)
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
def expected(case: Case) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Parameters and statistics before and after the step."""
    model, _, step = make(case)
    before = _tensors(model)
    step()
    return before, _tensors(model)


def interrupted(case: Case, place: int, event: str = "line") -> str | None:
    """What is wrong after a step that is interrupted at an event, and another call."""
    before, after = expected(case)
    model, optimizer, step = make(case)
    try:
        watched(step, place, event)
    except KeyboardInterrupt:
        if not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
            return "gradients stay disabled"
    except RuntimeError:  # the interrupt was lost, in a generator that was being deleted, and gradients stayed disabled
        torch.set_grad_enabled(True)
        return "gradients stay disabled"
    optimizer.zero_grad()
    for here, old, new in zip(_tensors(model), before, after, strict=True):
        if not (all(map(torch.equal, here, old)) or all(map(torch.equal, here, new))):
            return "parameters or statistics stay perturbed"
    return None


def _tensors(model: nn.Module) -> list[list[Tensor]]:
    """Copies of the parameters, and of the statistics."""
    return [[p.detach().clone() for p in some] for some in (model.parameters(), model.buffers())]
