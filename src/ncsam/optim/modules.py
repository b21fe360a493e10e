"""The network behind a `forward` callable: which modules it runs, and over which ranks they are spread.

An optimizer sees parameters only, but a pass at w + eps must leave BatchNorm's statistics (and any other buffer that
a forward writes) as the clean pass left them, and must know whether gradients are averaged by DDP.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from ncsam.vectors.arithmetic import is_dtensor

_DEPTH = 4  # closure -> helper function -> object -> attribute: enough for loops people write


def modules_behind(forward: Callable[..., Any]) -> tuple[nn.Module, ...]:
    """The outermost `nn.Module`s that a callable can reach: itself, its closure, its globals, their attributes.

    Nothing is called and no hook is set, so compiled modules are not disturbed.
    """
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()

    def visit(value: object, depth: int) -> None:
        if depth < 0 or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found[id(value)] = value
            return
        for part in _parts(value):
            visit(part, depth - 1)

    visit(forward, _DEPTH)
    return tuple(found.values())


def _parts(value: object) -> Iterable[object]:
    """What a value holds: a function's names, a partial's arguments, a container's items, an object's attributes."""
    if isinstance(value, FunctionType):
        return _function_parts(value)
    if isinstance(value, MethodType):
        return (value.__self__, value.__func__)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if isinstance(value, Mapping):
        return list(value.values()) if len(value) <= 64 else ()
    if isinstance(value, list | tuple | set):
        return list(value) if len(value) <= 64 else ()
    if isinstance(value, Tensor) or inspect.ismodule(value) or isinstance(value, type):
        return ()
    return list(getattr(value, "__dict__", {}).values())


def _function_parts(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name not bound yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # lambdas and comprehensions inside
        if isinstance(constant, CodeType):
            yield from _names(constant)


def data_parallel(modules: Iterable[nn.Module]) -> list[nn.parallel.DistributedDataParallel]:
    """The DDP wrappers among modules and their children."""
    return [m for root in modules for m in root.modules() if isinstance(m, nn.parallel.DistributedDataParallel)]


def find_group(modules: Iterable[nn.Module], params: Iterable[Tensor]) -> dist.ProcessGroup | None:
    """The process group over which gradients are averaged: DDP's, or the mesh of sharded parameters."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    for wrapper in data_parallel(modules):
        group = wrapper.process_group
        return group if dist.get_world_size(group) > 1 else None
    for p in params:
        if is_dtensor(p):
            if p.device_mesh.ndim > 1:
                raise ValueError(
                    "process_group=None cannot be resolved: the parameters lie on a mesh of "
                    f"{p.device_mesh.ndim} dimensions; pass the group of ranks that hold different samples"
                )
            group = p.device_mesh.get_group()
            return group if dist.get_world_size(group) > 1 else None
    return None


def joining(modules: Iterable[nn.Module]) -> bool:
    """Whether a DDP model runs under torch's `Join`, where ranks may run out of batches at different steps."""
    return any(getattr(getattr(m, "_join_config", None), "enable", False) for m in data_parallel(modules))


def without_sync(modules: Iterable[nn.Module]) -> ExitStack:
    """DDP's `no_sync` of all these modules: gradients stay each rank's own."""
    stack = ExitStack()
    for wrapper in data_parallel(modules):
        stack.enter_context(wrapper.no_sync())
    return stack
