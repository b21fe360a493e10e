"""What our registries share: a name is taken once, and an option that nobody knows is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

from ncsam._errors import unknown_name


def enter(table: dict[str, Any], kind: str, name: str, entry: object) -> None:
    """Enter something under a name that is still free."""
    if name in table:
        raise ValueError(f"a {kind} named {name!r} is registered already")
    table[name] = entry


def check_options(name: str, builder: Callable[..., Any], options: Iterable[str], but: Collection[str] = ()) -> None:
    """Refuse options that are no parameter of what `name` stands for; those in `but` are not the user's to give."""
    parameters = inspect.signature(builder).parameters.values()
    known = [p.name for p in parameters if p.name not in but and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for option in options:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known or ["none"])
