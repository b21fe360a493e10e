"""The model behind a `forward` callable.

An optimizer sees parameters only, but a pass at w + eps must leave BatchNorm's statistics (and any other buffer that
a forward writes) as the clean pass left them, and must know whether gradients are averaged by DDP.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeAlias, cast

from torch import Tensor, nn

from ncsam._errors import bad_value

_DEPTH = 4  # closure -> helper function -> object -> attribute: enough for loops people write
_Path: TypeAlias = tuple[object, ...]  # from a callable to a module: the keys of `_parts`


class ModuleFinder:
    """Finds the modules behind `forward`, step after step.

    Loops make a new `lambda` in every step, of the same code. What the last search found is looked up along the same
    paths (names, attributes, positions); only where one of them leads to something else is there a new search.
    """

    def __init__(self) -> None:
        self._code: object = None
        self._found: tuple[nn.Module, ...] = ()
        self._paths: tuple[_Path, ...] = ()

    def __call__(self, forward: Callable[..., Any]) -> tuple[nn.Module, ...]:
        code = getattr(forward, "__code__", forward)
        if not self._found or code is not self._code or not self._same(forward):
            found = _search(forward)
            self._code, self._found, self._paths = code, tuple(found.values()), tuple(found)
        return self._found

    def _same(self, forward: Callable[..., Any]) -> bool:
        return all(_follow(forward, path) is module for path, module in zip(self._paths, self._found, strict=True))


def _search(forward: Callable[..., Any]) -> dict[_Path, nn.Module]:
    """The outermost `nn.Module`s that a callable can reach: itself, its closure, its globals, their attributes.

    It is followed four levels deep. Nothing is called and no hook is set, so compiled modules are not disturbed.
    """
    found: dict[_Path, nn.Module] = {}
    seen: set[int] = set()

    def visit(value: object, path: _Path) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found[path] = value
        elif len(path) < _DEPTH:
            for key, part in _parts(value).items():
                visit(part, (*path, key))

    visit(forward, ())
    return found


def _follow(value: object, path: _Path) -> object:
    for key in path:
        value = _part(value, key)
    return value


def modules_of(model: Any) -> tuple[nn.Module, ...] | None:
    """The model or models that `model=` names.

    Args:
        model: `None`, a module, or an iterable of modules.

    Returns:
        The modules as a tuple; `None` for `None`.

    Raises:
        UsageError: For anything else.
    """
    if model is None or isinstance(model, nn.Module):
        return None if model is None else (model,)
    walked = isinstance(model, Iterable) and not isinstance(model, str) and not hasattr(model, "ndim")
    several = tuple(model) if walked else (None,)
    if not all(isinstance(each, nn.Module) for each in several):
        raise bad_value("model", model, "a torch.nn.Module or several")
    return several


def _parts(value: object) -> dict[object, object]:
    """What a value holds: a function's names, a partial's arguments, a container's items, an object's attributes."""
    if isinstance(value, FunctionType):
        return _function_parts(value)
    if isinstance(value, MethodType):
        return {"self": value.__self__, "function": value.__func__}
    if isinstance(value, functools.partial):
        return dict([("function", value.func), *enumerate(value.args), *value.keywords.items()])
    if isinstance(value, Mapping):
        return dict(value) if len(value) <= 64 else {}
    if isinstance(value, list | tuple | set):
        return dict(enumerate(value)) if len(value) <= 64 else {}
    if isinstance(value, Tensor) or inspect.ismodule(value) or isinstance(value, type):
        return {}
    return dict(getattr(value, "__dict__", {}))


def _part(value: object, key: object) -> object:
    """One of `_parts`, without the others; `None` where it is gone."""
    try:
        if isinstance(value, FunctionType):
            kind, name = cast("tuple[str, Any]", key)
            if kind == "cell":
                return (value.__closure__ or ())[name].cell_contents
            return value.__globals__[name] if kind == "global" else _function_parts(value).get(key)
        if isinstance(value, list | tuple):
            return value[key]  # type: ignore[call-overload]
        if isinstance(value, Mapping):
            return value[key]
        if isinstance(value, MethodType | functools.partial | set):
            return _parts(value).get(key)
        return vars(value)[key]  # type: ignore[index]
    except (LookupError, TypeError, ValueError):  # ValueError: a name that is not bound
        return None


def _function_parts(function: FunctionType) -> dict[object, object]:
    parts: dict[object, object] = {}
    for number, cell in enumerate(function.__closure__ or ()):
        try:
            parts["cell", number] = cell.cell_contents
        except ValueError:  # a name not bound yet
            continue
    parts |= {("default", number): value for number, value in enumerate(function.__defaults__ or ())}
    parts |= {("keyword", name): value for name, value in (function.__kwdefaults__ or {}).items()}
    for name in _names(function.__code__):
        if name in function.__globals__:
            parts["global", name] = function.__globals__[name]
    return parts


@functools.lru_cache(256)  # bounded: interactive sessions make new code all the time
def _names(code: CodeType) -> tuple[str, ...]:
    names = list(code.co_names)
    for constant in code.co_consts:  # lambdas and comprehensions inside
        if isinstance(constant, CodeType):
            names += _names(constant)
    return tuple(names)
