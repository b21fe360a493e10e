"""Sharpness-aware optimizers by name: one file of this package with one `@register` line adds one."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING, TypeVar

from ncsam._arguments import add
from ncsam._errors import bad_value, unknown_name
from ncsam._named import find_named, is_reference

if TYPE_CHECKING:
    from ncsam.optim.sharpness_aware import SharpnessAware

_OPTIMIZERS: dict[str, type[SharpnessAware]] = {}
_Kind = TypeVar("_Kind", bound="type[SharpnessAware]")


def register(kind: _Kind) -> _Kind:
    """Register a class under its `name`, by default that of the class in lower case; a decorator.

    Args:
        kind: A subclass of `SharpnessAware`.

    Returns:
        The class.

    Raises:
        ValueError: If the name is taken.
    """
    kind.name = vars(kind).get("name", kind.__name__.lower())
    add(_OPTIMIZERS, "optimizer", kind.name, kind)
    return kind


def names() -> list[str]:
    """The names of all sharpness-aware optimizers, sorted."""
    _discover()
    return sorted(_OPTIMIZERS)


def get(name: str) -> type[SharpnessAware]:
    """Find an optimizer by name.

    Args:
        name: A registered name, or "module:Name" for your own class.

    Returns:
        The class.

    Raises:
        UsageError: If there is none of that name.
    """
    if is_reference(name):
        from ncsam.optim.sharpness_aware import SharpnessAware

        kind = find_named("optimizer", name)
        if not (isinstance(kind, type) and issubclass(kind, SharpnessAware)):
            raise bad_value("optimizer", name, "a subclass of ncsam.optim.SharpnessAware (others go under --base)")
        return kind
    _discover()
    if name not in _OPTIMIZERS:
        raise unknown_name("optimizer", name, [*_OPTIMIZERS, "module:Name"])
    return _OPTIMIZERS[name]


def option_names(kind: type[SharpnessAware]) -> list[str]:
    """The names of all options of an optimizer, its own before the shared ones.

    Args:
        kind: A subclass of `SharpnessAware`.
    """
    return [name for name in inspect.signature(kind).parameters if name != "base_optimizer"]


def _discover() -> None:
    import ncsam.optim

    _import_all(tuple(ncsam.optim.__path__))


@functools.cache
def _import_all(folders: tuple[str, ...]) -> None:
    """Once for the same folders: a file of your own may lie in another one."""
    for module in pkgutil.iter_modules(folders):
        importlib.import_module(f"ncsam.optim.{module.name}")
