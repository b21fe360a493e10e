"""Methods by name: one file and one `@register` line add one."""

from __future__ import annotations

from typing import Any, TypeVar

from ncsam._arguments import add, check_options, find_named, is_reference
from ncsam._errors import bad_value, unknown_name
from ncsam.methods.base import Method

_METHODS: dict[str, type[Method]] = {}
_Method = TypeVar("_Method", bound=type[Method])


def register(method: _Method) -> _Method:
    """Make a method available by its `name`, by default that of the class in lower case; a decorator.

    Args:
        method: A subclass of `Method`.

    Raises:
        ValueError: The name is taken.
    """
    method.name = vars(method).get("name", method.__name__.lower())
    add(_METHODS, "method", method.name, method)
    return method


def names() -> list[str]:
    """The names of all methods, sorted."""
    return sorted(_METHODS)


def get(name: str) -> type[Method]:
    """The class of a method, for its traits and presets.

    Args:
        name: One of `names()`, or "module:Name" for a class of your own, which is imported.

    Raises:
        UsageError: There is no such method, or the class is not a `Method`.

    Examples:
        >>> get("ce").resists_memorization, get("gce").is_loss, get("nct").needs_warmup
        (False, True, True)
    """
    kind = _own(name) if is_reference(name) else _METHODS.get(name)
    if kind is None:
        raise unknown_name("method", name, [*_METHODS, "module:Name"])
    return kind


def create(name: str, **options: Any) -> Method:
    """Build a method by name.

    Args:
        name: One of `names()`, or "module:Name" for a class of your own, which is imported.
        **options: The method's own. `preset` names a set of options, which others override.

    Raises:
        UsageError: The name, the preset or an option is unknown or invalid.

    Examples:
        >>> create("gce", q=0.5).name
        'gce'
        >>> create("dividemix", preset="cifar10-symmetric90").average
        5
    """
    kind = get(name)
    if (preset := options.pop("preset", None)) is not None:
        presets = kind.presets
        if preset not in presets:
            raise unknown_name(f"preset of {name}", preset, presets or ["none"])
        options = {**presets[preset], **options}
    given = check_options(name, kind, options)
    method = kind(**given)
    method.created_with = given
    return method


def _own(reference: str) -> type[Method]:
    kind = find_named("method", reference)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise bad_value("method", reference, "a subclass of ncsam.methods.Method")
    if "name" not in vars(kind):
        kind.name = kind.__name__.lower()
    return kind
