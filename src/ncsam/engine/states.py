"""State dicts of models and optimizers: gathered over ranks (FSDP), loaded, and checked against what a run writes.

A checkpoint contains full tensors, whatever the strategy, so that its model can be used anywhere. torch loads an
optimizer's groups and momenta of any kind and fails in the next step; these checks are cheap compared with reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam._checks import LARGEST
from ncsam.errors import UsageError
from ncsam.vectors.arithmetic import is_dtensor
from ncsam.vectors.ranks import placed_like

if TYPE_CHECKING:
    # each takes long to import, and only sharded runs need it
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh


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


def refuse_other_method(own: Mapping[str, Any], state: Any) -> None:
    """Raise `UsageError` for a method's state that a method of this kind does not write.

    Names are those of `own`, the state of the method before anything was trained. What it has already must have the
    same form, tensors the same shape. What it has not yet may be numbers, words and finite tensors, nested or not.
    """
    if not isinstance(state, Mapping) or state.keys() != own.keys():
        raise UsageError("the state of the method has other names")
    for name, value in own.items():
        if not (_is_finite(state[name]) if _is_empty(value) else _has_form(state[name], value)):
            raise UsageError(f"{name} of the method is of another form")


def _is_empty(value: Any) -> bool:
    """Whether nothing was there yet when training began."""
    return value is None or (isinstance(value, (Mapping, list, tuple)) and not value)


def _has_form(saved: Any, own: Any) -> bool:
    """As `matches_structure`; floats may have been saved in another precision, and what is empty is not known yet."""
    if _is_empty(own):
        return _is_finite(saved)
    if type(own) is int:  # counts
        return type(saved) is int and 0 <= saved < 2**63
    if isinstance(own, float) and math.isinf(own):
        return saved == own or _is_number(saved)
    if isinstance(own, Tensor) and own.is_floating_point():
        return isinstance(saved, Tensor) and saved.is_floating_point() and saved.shape == own.shape
    if isinstance(own, Mapping):
        same = isinstance(saved, Mapping) and saved.keys() == own.keys()
        return same and all(_has_form(saved[name], own[name]) for name in own)
    if isinstance(own, (list, tuple)):
        return isinstance(saved, (list, tuple)) and len(saved) == len(own) and all(map(_has_form, saved, own))
    return matches_structure(saved, own)


def _is_finite(value: Any) -> bool:
    """Whether a value is made of finite tensors and numbers, and words alone."""
    if isinstance(value, Tensor):
        return bool(torch.isfinite(value).all())
    if isinstance(value, Mapping):
        return all(isinstance(name, (str, int)) for name in value) and all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return value is None or isinstance(value, (bool, str)) or _is_number(value)


def fsdp(ranks: int) -> ModelParallelStrategy:
    """Fabric's strategy that spreads weights, gradients and optimizer state over all ranks by torch's `fully_shard`."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    return ModelParallelStrategy(_shard, data_parallel_size=ranks, tensor_parallel_size=1)


def _shard(network: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(network, mesh=mesh["data_parallel"])
    return network


def is_sharded(network: nn.Module) -> bool:
    return any(is_dtensor(p) for p in network.parameters())


def full_state(state: Any) -> Any:
    """The same nested state with every sharded tensor gathered, on the CPU. Every rank must call it."""
    if isinstance(state, Tensor) and is_dtensor(state):
        return state.full_tensor().cpu()
    if isinstance(state, dict):
        return {name: full_state(value) for name, value in state.items()}
    return [full_state(value) for value in state] if isinstance(state, list) else state


def _placed(value: Any, parameter: Tensor) -> Any:
    """A full tensor of a parameter's shape, sharded like it; anything else unchanged."""
    return placed_like(parameter, value) if isinstance(value, Tensor) and value.shape == parameter.shape else value


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Load full tensors into a model, sharded or not."""
    there = network.state_dict()
    network.load_state_dict({name: _placed(value, there[name]) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load full tensors into an optimizer, of sharded parameters or not."""
    refuse_other_optimizer(optimizer, state)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    cut = {
        number: {name: _placed(value, params[number]) for name, value in entry.items()}
        for number, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": cut})


def share_buffers(network: nn.Module) -> None:
    """Give all ranks the first one's buffers (BatchNorm's statistics), as DDP does by itself."""
    for buffer in network.buffers():
        dist.broadcast(buffer, src=0)
