"""What our registries share: a name is taken once, and an unknown option is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ncsam._errors import refuse_unknown
from ncsam._options import coerce_options
from ncsam.errors import UsageError


def add(table: dict[str, Any], kind: str, name: str, entry: object) -> None:
    """Add an entry under a name that is still free."""
    if name in table:
        raise UsageError(f"a {kind} named {name!r} is registered already")
    table[name] = entry


def check_options(
    name: str, builder: Callable[..., Any], options: Mapping[str, Any], but: Collection[str] = ()
) -> dict[str, Any]:
    """The options, each of a type that what `name` stands for takes; unknown ones are refused.

    Those in `but` are not the user's to give.
    """
    parameters = inspect.signature(builder).parameters.values()
    known = [p.name for p in parameters if p.name not in but and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    refuse_unknown(name, options, known)
    return coerce_options(builder, options)
