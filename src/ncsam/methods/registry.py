"""Methods by name: one file and one `@register` line add one."""

from __future__ import annotations

from typing import Any, TypeVar

from ncsam._errors import unknown_name
from ncsam._registry import check_options, enter
from ncsam.methods.base import Method

_METHODS: dict[str, type[Method]] = {}
_Method = TypeVar("_Method", bound=type[Method])


def register(method: _Method) -> _Method:
    """Enter a class under its `name`, by default that of the class in small letters; a decorator."""
    method.name = vars(method).get("name", method.__name__.lower())
    enter(_METHODS, "method", method.name, method)
    return method


def names() -> list[str]:
    """The names of all methods, sorted."""
    return sorted(_METHODS)


def create(name: str, **options: Any) -> Method:
    """The method called `name`, with options of its own; `preset` names a set of them that others may change."""
    if name not in _METHODS:
        raise unknown_name("method", name, _METHODS)
    if (preset := options.pop("preset", None)) is not None:
        presets = _METHODS[name].presets
        if preset not in presets:
            raise unknown_name(f"preset of {name}", preset, presets or ["none"])
        options = {**presets[preset], **options}
    return _METHODS[name](**check_options(name, _METHODS[name], options))
