"""The network behind a `forward` callable: which modules it runs, and their buffers.

An optimizer sees parameters only, but a pass at w + eps must leave BatchNorm's statistics (and any other buffer that
a forward writes) as the clean pass left them, and must know whether gradients are averaged by DDP.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

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


class SavedBuffers:
    """All buffers of modules in training mode, to be put back after passes that must not count.

    Restoring values instead of switching layers off covers every layer that tracks statistics (BatchNorm of any
    dimension, SyncBatchNorm, spectral norm, a user's own), `num_batches_tracked` included, and changes no attribute
    that a compiled graph guards on.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._entries: list[tuple[nn.Module, str, Tensor]] = []
        seen: set[int] = set()
        for root in modules:
            for module in root.modules():
                if not module.training or id(module) in seen:
                    continue
                seen.add(id(module))
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        self._entries.append((module, name, buffer))
        self._values = [buffer.detach().clone() for _, _, buffer in self._entries]

    @torch.no_grad()
    def restore(self) -> None:
        for (module, name, buffer), value in zip(self._entries, self._values, strict=True):
            module._buffers[name] = buffer  # a forward may have put another tensor in its place
            buffer.copy_(value)
