"""`module:Name`: a class or function of the user's own, named in text."""

from __future__ import annotations

import importlib
import re
from typing import Any

from ncsam._errors import bad_value

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(name: object) -> bool:
    """Whether a name has the form `module:Name`, both possibly with dots; a Windows path has not."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def find_named(kind: str, reference: str) -> Any:
    """Import what `module:Name` stands for. Only for names that the user gave with the call itself."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever the user's own module raises
        raise ImportError(
            f"{kind} {reference!r}: importing {module!r} failed ({type(error).__name__}: {error})"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise bad_value(kind, reference, f"a name defined in {module!r}, which has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise bad_value(kind, reference, f"a class or function, but {name!r} is of type {type(found).__name__}")
    return found
