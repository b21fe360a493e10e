"""One form for errors about arguments: the name, the value, and what is expected."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import ModuleType

from ncsam.errors import DamagedFileError, UsageError

__all__ = [
    "DamagedFileError",
    "bad_value",
    "did_you_mean",
    "known_name",
    "need",
    "refuse_unknown",
    "shown",
    "unexpected",
    "unknown_name",
]

_SHOWN = 400  # characters of a value


def bad_value(name: str, value: object, expected: str) -> UsageError:
    """A `UsageError` that names the argument, shows its value and states what is expected."""
    return UsageError(f"invalid {name}={shown(value)}: expected {expected}")


def shown(value: object) -> str:
    """A value in one line, cut where it is long."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except ValueError:  # of a whole number of more digits than Python prints
        return f"a number of type {type(value).__name__} too long to print"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """A `UsageError` for a mistyped name, with the nearest known ones suggested."""
    names = sorted(known)
    return UsageError(f"unknown {kind} {shown(name)}.{did_you_mean(name, names, ' ')} Known: {', '.join(names)}")


def known_name(kind: str, name: str, known: Iterable[str]) -> str:
    """A name, if it is one of the known ones."""
    names = [*known]
    if not isinstance(name, str) or name not in names:
        raise unknown_name(kind, name, names)
    return name


def did_you_mean(name: object, known: Iterable[str], before: str) -> str:
    """`before`, and the question whether one of the nearest names was meant; nothing if none is near."""
    close = difflib.get_close_matches(name, [*known], n=3) if isinstance(name, str) else []
    return f"{before}Did you mean {' or '.join(map(repr, close))}?" if close else ""


def unexpected(error: BaseException) -> str:
    """A sentence for what nothing here expects: enough to search for, without another library's advice."""
    text = str(error)
    if isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        return "there is not enough memory: try a smaller batch_size, model or dataset"
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return f"unexpected error: {line.rstrip('.:')}. Set NCSAM_DEBUG=1 to see the traceback"


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for the first option that `owner` does not have."""
    names = sorted(known)
    for option in given:
        if option not in names:
            raise unknown_name(f"option of {owner}", option, names or ["none"])


def need(module: str, extra: str | None, purpose: str) -> ModuleType:
    """Import an optional dependency, or say in one sentence what to install for `purpose`.

    Args:
        module: The module to import, possibly with dots.
        extra: The extra of ncsam that brings it; `None` for a package that no extra brings.
        purpose: What needs it, the subject of the error message.
    """
    import importlib
    import importlib.util

    package = module.partition(".")[0]
    try:
        installed = importlib.util.find_spec(package) is not None
    except ValueError:  # a half-imported package without a spec
        installed = True
    command = f"pip install {package}" if extra is None else f'pip install "ncsam[{extra}]"'
    if not installed:
        raise ImportError(f"{purpose} needs {package!r}, which is not installed. Install it with: {command}")
    try:
        return importlib.import_module(module)
    except Exception as error:  # a library built for another torch raises RuntimeError, OSError or AttributeError
        raise ImportError(
            f"{purpose} needs {package!r}, which is installed but cannot be imported ({error}). "
            f"Install a version that fits your torch, for example with: {command}"
        ) from error
