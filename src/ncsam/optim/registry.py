"""Sharpness-aware optimizers by name: one file of this package with one `@register` line adds one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING, TypeVar

from ncsam._errors import bad_value, unknown_name
from ncsam._named import find_named, is_reference
from ncsam._registry import enter

if TYPE_CHECKING:
    from ncsam.optim.sharpness_aware import SharpnessAware

_OPTIMIZERS: dict[str, type[SharpnessAware]] = {}
_Kind = TypeVar("_Kind", bound="type[SharpnessAware]")


def register(kind: _Kind) -> _Kind:
    """Enter a class under its `name`, by default that of the class in small letters; a decorator."""
    kind.name = vars(kind).get("name", kind.__name__.lower())
    enter(_OPTIMIZERS, "optimizer", kind.name, kind)
    return kind


def names() -> list[str]:
    """The names of all sharpness-aware optimizers, sorted."""
    _discover()
    return sorted(_OPTIMIZERS)


def get(name: str) -> type[SharpnessAware]:
    """The optimizer called `name`, or the class of yours that "module:Name" stands for."""
    if is_reference(name):
        from ncsam.optim.sharpness_aware import SharpnessAware

        kind = find_named("optimizer", name)
        if not (isinstance(kind, type) and issubclass(kind, SharpnessAware)):
            raise bad_value("optimizer", name, "a subclass of ncsam.optim.SharpnessAware; others go under --base")
        return kind
    _discover()
    if name not in _OPTIMIZERS:
        raise unknown_name("optimizer", name, [*_OPTIMIZERS, "module:Name"])
    return _OPTIMIZERS[name]


def option_names(kind: type[SharpnessAware]) -> list[str]:
    """The names of all options of an optimizer, its own before the shared ones."""
    from ncsam.optim.options import Options

    named: list[str] = []
    for each in kind.__mro__:  # a class that hands on what it does not know takes its parent's options, too
        if "__init__" not in vars(each):
            continue
        own = inspect.signature(vars(each)["__init__"]).parameters.values()
        rest = {p.kind for p in own} & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        named += [p.name for p in own if p.kind not in rest and p.name not in ("self", "base_optimizer", *named)]
        if each.__module__.startswith("ncsam.") or inspect.Parameter.VAR_KEYWORD not in rest:
            break
    return named + [name for name in Options.__annotations__ if name not in named]


def _discover() -> None:
    import ncsam.optim

    for module in pkgutil.iter_modules(ncsam.optim.__path__):
        importlib.import_module(f"ncsam.optim.{module.name}")
