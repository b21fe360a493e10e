"""One way to say that an argument is wrong: its name, the value it had, and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import ModuleType


def bad_value(name: str, value: object, allowed: str) -> ValueError:
    """A `ValueError` that names the argument, shows its value and states what is allowed."""
    return ValueError(f"{name}={value!r} is not allowed: {allowed}")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """A `ValueError` for a mistyped name, with the nearest known ones suggested."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=3)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return ValueError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}")


def unforeseen(error: BaseException) -> str:
    """A sentence for what nothing here expects: enough to search for, without another library's advice."""
    text = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        return "there is not enough memory: try a smaller batch_size, network or dataset"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "nothing is known of it")
    return f"this was not foreseen: {line.rstrip('.:')}. NCSAM_DEBUG=1 shows where it happened"


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first option that `owner` does not have."""
    names = sorted(known)
    for option in given:
        if option not in names:
            raise unknown_name(f"option of {owner}", option, names or ["none"])


class DamagedFileError(ValueError):
    """A file of the user's that is there and cannot be read: what stops is the run, and no argument was wrong."""


def need(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional dependency, or say in one sentence what to install for `purpose`."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} needs {module.split('.')[0]!r}, which could not be imported ({error}). "
            f'Install it with: pip install "ncsam[{extra}]"'
        ) from error
