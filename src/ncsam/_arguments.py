"""What users give, checked: values and options of the right type, names of a registry, and `module:Name` of their own.

Each check returns the value, of the right type, or raises a `UsageError`. Numbers of numpy count as numbers, and come
back as Python's own; flags do not, nor do text and tensors. Options are checked against the annotations of what takes
them. Which names a file may contain is decided by `require_explicit_import`.
"""

from __future__ import annotations

import importlib
import inspect
import math
import numbers
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ncsam._errors import bad_value, did_you_mean, refuse_unknown
from ncsam.errors import UsageError

LARGEST = 3.4e38  # a little below that of float32, in which weights and radii are used
_MOST = 2**63 - 1
_T = TypeVar("_T")


def number(
    name: str, value: float, allowed: str = "a finite number", fine: Callable[[Any], bool] | None = None
) -> float:
    """A finite number that single precision holds, and that `fine` agrees with."""
    if isinstance(value, bool | Fraction) or not isinstance(value, numbers.Real):
        raise bad_value(name, value, allowed)
    plain = value if isinstance(value, int) else float(value)  # of half precision, too, which has no LARGEST
    if LARGEST < abs(plain) < math.inf:
        raise bad_value(name, value, f"{allowed}, at most {LARGEST} in size")
    if not abs(plain) <= LARGEST or (fine is not None and not fine(plain)):
        raise bad_value(name, value, allowed)
    return float(plain)


def non_negative(name: str, value: float) -> float:
    """A finite number that is not negative."""
    return number(name, value, "a finite number, 0 or larger", lambda v: v >= 0)


def above_zero(name: str, value: float) -> float:
    """A finite number above 0."""
    return number(name, value, "a finite number above 0", lambda v: v > 0)


def ratio(name: str, value: float) -> float:
    """A number in [0, 1]."""
    return number(name, value, "a number in [0, 1]", lambda v: 0 <= v <= 1)


def below_one(name: str, value: float) -> float:
    """A number in [0, 1)."""
    return number(name, value, "a number in [0, 1)", lambda v: 0 <= v < 1)


def count(name: str, value: int, least: int = 0, most: int = _MOST) -> int:
    """A whole number, 0 or larger."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise bad_value(name, value, f"a whole number, {least} or larger")
    if value > most:
        raise bad_value(name, value, f"a whole number from {least} to {most:,}")
    return int(value)


def positive(name: str, value: int, most: int = _MOST) -> int:
    """A whole number, 1 or larger."""
    return count(name, value, 1, most)


def flag(name: str, value: bool) -> bool:
    """True or false, and nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise bad_value(name, value, "True or False")
    return value


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """One of a few words."""
    names = tuple(allowed)
    if not isinstance(value, str) or value not in names:
        raise bad_value(name, value, f"one of {', '.join(map(repr, names))}{did_you_mean(value, names, '. ')}")
    return value


def function(name: str, value: _T, allowed: str = "a function of (logits, targets)") -> _T:
    """Something that can be called."""
    if not callable(value):
        raise bad_value(name, value, allowed)
    return value


def instance(name: str, value: Any, kind: type[_T], allowed: str) -> _T:
    """An object of a class."""
    if not isinstance(value, kind):
        raise bad_value(name, value, allowed)
    return value


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


_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TRANSFORMERS = "transformers:"  # never its code, only safetensors; nothing is downloaded for a run that is read
_LIBRARIES = ("torchvision:", "timm:")  # whose own list of names is asked before anything is built


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


def require_explicit_import(where: str, config: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a configuration read from `where` names code that only its user may name.

    A name without a colon can only be one of the registry. Those of torchvision and timm are fine without options, for
    some of timm's are files to load. Anything else, a `module:factory` above all, is imported and called only where the
    same name was given with the call itself, among the options `named`. The same holds for a `module:Name` in the
    place of a method, an optimizer, its base, the data, or a backbone.
    """
    backbone = str(config.get("backbone") or "")
    listed = backbone.startswith((_TRANSFORMERS, *_LIBRARIES))
    for option in ("method", "optimizer", "base", "data", *(() if listed else ("backbone",))):
        if is_reference(config.get(option)) and config[option] != named.get(option):
            raise UsageError(
                f"{where} asks for {option} {config[option]!r}, which is not one of ours: to have it imported and "
                f"called, name it yourself with --{option} (in Python: {option}={config[option]!r}), if you trust "
                "where the file is from"
            )
    model, options = config.get("model"), config.get("model_options")
    if not isinstance(model, str) or ":" not in model or model == named.get("model"):
        return
    if model.startswith(_TRANSFORMERS):
        return
    listed = model.startswith(_LIBRARIES)
    if not listed or options:
        asks = f"the model {model!r}" + (" with options" if listed else "")
        raise UsageError(
            f"{where} asks for {asks}, which is not one of ours: to have it imported and called, name it yourself with "
            f"--model {model} (in Python: model={model!r}), if you trust where the file is from"
        )
