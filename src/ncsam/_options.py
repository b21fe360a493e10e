"""Options checked against the annotations of what takes them, so that a wrong type is one sentence."""

from __future__ import annotations

import inspect
import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ncsam._checks import number
from ncsam._errors import bad_value, did_you_mean

_MOST = 2**63 - 1
_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", dict: "a mapping"}


def coerce(name: str, value: Any, hint: Any) -> Any:
    """The value as one of the types of `hint`, or a `ValueError` that says which they are.

    Whole numbers count as floats, and so does text that is a number, as YAML reads `1e-3`. Tuples count as lists, and
    lists as tuples. A hint that is none of the plain types (an array, a function) allows everything.
    """
    hints = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    words = [word for each in hints if get_origin(each) is Literal for word in get_args(each)]
    kinds = [each for each in hints if get_origin(each) is not Literal]
    if isinstance(value, (str, bool, int)) and value in words:
        return value
    for kind in kinds:
        fits, result = _as_kind(value, kind)
        if fits:
            return result
    allowed = [_described(kind) for kind in kinds if kind is not type(None)] + [str(word) for word in words]
    listed = " or ".join([*dict.fromkeys(allowed), *["null"] * (type(None) in kinds)])
    raise bad_value(name, value, listed + did_you_mean(value, map(str, words), ". "))


def coerce_options(builder: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by name as `builder` annotates them, numbers finite; those it does not annotate are left as they are."""
    function = builder.__init__ if inspect.isclass(builder) else builder
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # an annotation for type checkers alone
        hints = {}
    found = {name: coerce(name, value, hints.get(name, Any)) for name, value in options.items()}
    for name, value in found.items():
        if isinstance(value, float):
            number(name, value)
        if isinstance(value, int) and abs(value) > _MOST:
            raise bad_value(name, value, f"a whole number up to {_MOST}")
    return found


def _as_kind(value: Any, kind: Any) -> tuple[bool, Any]:
    base = get_origin(kind) or kind
    if base is type(None):
        return value is None, None
    if base is bool:
        return isinstance(value, bool), value
    if base is int:
        fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return fits, int(value) if fits else value
    if base is float:
        return _as_float(value)
    if base is str:
        return isinstance(value, str), value
    if base in (list, Sequence):
        return _as_list(value, kind, base)
    if base is tuple:
        return _as_tuple(value, get_args(kind))
    if base in (dict, Mapping):
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value), value
    return True, value


def _as_float(value: Any) -> tuple[bool, Any]:
    if isinstance(value, bool) or not isinstance(value, (numbers.Real, str)):
        return False, value
    try:
        return True, float(value)
    except (ValueError, OverflowError):
        return False, value


def _as_list(value: Any, kind: Any, base: Any) -> tuple[bool, Any]:
    if getattr(value, "ndim", 0):  # an array or a tensor is one as well
        value = value.tolist()
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        return False, value
    of = get_args(kind)
    if of:
        try:
            items = [coerce("", each, of[0]) for each in value]
        except ValueError:
            return False, value
        value = value if items == list(value) else items
    return True, list(value) if base is list else value


def _as_tuple(value: Any, of: tuple[Any, ...]) -> tuple[bool, Any]:
    """A list, which is what YAML makes of several values, as the tuple that is asked for."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        return False, value
    kinds = [of[0]] * len(value) if of[1:] == (Ellipsis,) else list(of)
    if of and len(value) != len(kinds):
        return False, value
    try:
        return True, tuple(
            coerce("", each, kind) for each, kind in zip(value, kinds or [Any] * len(value), strict=True)
        )
    except ValueError:
        return False, value


def _described(kind: Any) -> str:
    base = get_origin(kind) or kind
    if base in (list, Sequence):
        of = [each for each in get_args(kind) if each in _WORDS]
        return f"a list (of each: {_WORDS[of[0]]})" if of else "a list"
    if base is tuple and get_args(kind)[0] in _WORDS:
        count = "" if Ellipsis in get_args(kind) else f" of {len(get_args(kind))}"
        return f"a list{count} (of each: {_WORDS[get_args(kind)[0]]})"
    return _WORDS.get(base, "a mapping" if base is Mapping else str(getattr(base, "__name__", base)))
