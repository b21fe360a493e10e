"""The network behind a `forward` callable.

An optimizer sees parameters only, but a pass at w + eps must leave BatchNorm's statistics (and any other buffer that
a forward writes) as the clean pass left them, and must know whether gradients are averaged by DDP.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from ncsam._errors import bad_value

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


def modules_of(model: Any) -> tuple[nn.Module, ...] | None:
    """The network or the networks that `model=` names."""
    if model is None or isinstance(model, nn.Module):
        return None if model is None else (model,)
    walked = isinstance(model, Iterable) and not isinstance(model, str) and not hasattr(model, "ndim")
    several = tuple(model) if walked else (None,)
    if not all(isinstance(each, nn.Module) for each in several):
        raise bad_value("model", model, "a torch.nn.Module, or several")
    return several


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
