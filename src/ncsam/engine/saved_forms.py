"""Whether what a checkpoint holds has the form of what a run writes.

torch loads an optimizer's groups and momenta of any kind and fails in the next step. These checks are cheap compared
with reading the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ncsam._checks import LARGEST
from ncsam.errors import UsageError


def matches_structure(saved: Any, own: Any) -> bool:
    """Whether a saved value may stand in the place of our own: a tensor of that shape and type, a number for a number.

    A mapping may hold more than ours. Where we have nothing, any single value may stand.
    """
    if isinstance(own, Tensor):
        return isinstance(saved, Tensor) and saved.shape == own.shape and saved.dtype == own.dtype
    if isinstance(own, Mapping):
        return isinstance(saved, Mapping) and all(
            name in saved and matches_structure(saved[name], own[name]) for name in own
        )
    if isinstance(own, (list, tuple)):
        return isinstance(saved, (list, tuple)) and len(saved) == len(own) and all(map(matches_structure, saved, own))
    if own is None:
        return saved is None or isinstance(saved, (bool, str)) or _is_number(saved)
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        return _is_number(saved)
    return type(saved) is type(own)


def _is_number(value: Any) -> bool:
    """A number that torch can compute with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < (2**63 if isinstance(value, int) else LARGEST)


def is_plain(value: Any) -> bool:
    """Whether there is no tensor in a value: in options and records there is none."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            return False
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple)):
            waiting += each
    return True


def refuse_other_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Raise `UsageError` for groups of other parameters; with SGD and AdamW also for options and states of other forms.

    The state of your own optimizer is not checked.
    """
    groups, own = state["param_groups"], optimizer.state_dict()["param_groups"]
    if any(a["params"] != b["params"] for a, b in zip(groups, own, strict=True)):
        raise UsageError("the groups are of other parameters")
    base = getattr(optimizer, "base_optimizer", optimizer)
    if not isinstance(base, (torch.optim.SGD, torch.optim.AdamW)):
        return
    if not matches_structure(groups, own):
        raise UsageError("the groups have other options")
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for number, entry in state["state"].items():
        if not isinstance(entry, Mapping) or not _is_entry(base, params[number], entry):
            raise UsageError(f"the state of parameter {number} is of another form")


def _is_entry(base: torch.optim.Optimizer, parameter: Tensor, entry: Mapping[str, Any]) -> bool:
    if isinstance(base, torch.optim.SGD):
        return entry.get("momentum_buffer") is None or matches_structure(entry["momentum_buffer"], parameter)
    known = matches_structure(entry, {"exp_avg": parameter, "exp_avg_sq": parameter})
    return known and isinstance(step := entry.get("step"), Tensor) and step.ndim == 0 and step.is_floating_point()
