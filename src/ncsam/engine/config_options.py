"""Options of a configuration: dataclass fields with a help text and a check, and the checks."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ncsam._arguments import coerce, count, is_reference, number
from ncsam._errors import bad_value, unknown_name
from ncsam._files import parse_yaml, read_text
from ncsam.errors import UsageError

#: Raises a `UsageError`, given an option's name and value; None and words such as "auto" do not reach it.
Check = Callable[[str, Any], object]
_MOST, _LARGEST = 10**9, 1e30  # of counts, and of numbers that are multiplied in float32
_DEVICES = re.compile(r"auto|\d+(,\d+)*,?")


def option(default: Any, about: str, check: Check | None = None) -> Any:
    """A dataclass field with the sentence that `--help` shows for it and the check of its values.

    Args:
        default: The default; of a dictionary or list, every configuration gets a new empty one.
        about: The sentence.
        check: Called with name and value; raises `UsageError` for an invalid value. `None`: the type is enough.
    """
    metadata = {"help": about, "check": check}
    if isinstance(default, (dict, list)):
        return dataclasses.field(default_factory=type(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def check_options(config: Any, kind: type[Any]) -> None:
    """Give every option of a frozen dataclass its annotated type, and apply the checks of `kind`, its class or base.

    Args:
        config: The configuration; its values are replaced by those of the right type.
        kind: The dataclass whose fields were made by `option`.

    Raises:
        UsageError: A value is invalid.
    """
    own: Any = type(config)
    hints = _hints(own)
    for each in dataclasses.fields(kind):
        hint, check = hints[each.name], each.metadata["check"]
        value = coerce(each.name, getattr(config, each.name), hint)
        object.__setattr__(config, each.name, value)
        if check is not None and value is not None and value not in _words(hint):
            check(each.name, value)


def known_options(kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if they are fields of a dataclass; otherwise a `UsageError` that suggests the nearest names.

    Args:
        kind: The dataclass.
        options: Values by name.

    Returns:
        A copy of the options.

    Raises:
        UsageError: A name is unknown.
    """
    names = [each.name for each in dataclasses.fields(kind)]
    for name in options:
        if name not in names:
            raise unknown_name("option", name, names)
    return dict(options)


def default_options(kind: type[Any]) -> dict[str, Any]:
    """The defaults by name, without building a configuration: its checks would import torch.

    Args:
        kind: The dataclass, whose fields all have defaults.
    """
    found: dict[str, Any] = {}
    for each in dataclasses.fields(kind):
        made = each.default_factory is not dataclasses.MISSING
        found[each.name] = each.default_factory() if made else each.default  # type: ignore[operator]
    return found


@functools.cache
def _hints(kind: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(kind)


@functools.cache
def _words(hint: Any) -> tuple[Any, ...]:
    """The words that a type allows besides its values, such as "auto"."""
    return tuple(word for kind in get_args(hint) if get_origin(kind) is Literal for word in get_args(kind))


# --- checks


def one_of(known: Sequence[str], kind: str | None = None) -> Check:
    """One of some names.

    Args:
        known: The names.
        kind: What they name, for the message; `None` for the option's own name.

    Returns:
        A check for `option`.
    """

    def check(name: str, value: str) -> None:
        if value not in known:
            raise unknown_name(kind or name, value, known)

    return check


def named_or_own(known: Callable[[], Sequence[str]]) -> Check:
    """One of some names, or `module:Name`.

    Args:
        known: Returns the names; called only when a value is checked, because that may import torch.

    Returns:
        A check for `option`.
    """
    return lambda name, value: None if is_reference(value) else one_of(known())(name, value)


def each_is(check: Check) -> Check:
    """A list of values that pass a check.

    Args:
        check: The check of one value.

    Returns:
        A check for `option`.
    """
    return lambda name, values: [check(name, value) for value in values]


def without(*taken: str) -> Check:
    """Options of a reader, model or method, except those that the run itself passes.

    Args:
        *taken: Names that the options must not have.

    Returns:
        A check for `option`.
    """

    def check(name: str, options: Mapping[str, Any]) -> None:
        for each in taken:
            if each in options:
                raise bad_value(name, options, f"options other than {each!r}, which the run itself passes")

    return check


def device_numbers(name: str, value: int | str) -> None:
    """A number of devices, "auto", or device numbers.

    Args:
        name: Name of the option, for the message.
        value: A number from 1, "auto", or text such as "0,1".

    Raises:
        UsageError: For anything else.
    """
    if not (value >= 1 if isinstance(value, int) else _DEVICES.fullmatch(value)):
        raise bad_value(name, value, "a number of devices from 1, auto, or device numbers such as 0,1")


from_one = partial(count, least=1, most=_MOST)
from_zero = partial(count, most=_MOST)
size = partial(number, allowed=f"a number from 0 to {_LARGEST:g}", fine=lambda v: 0 <= v <= _LARGEST)


_ABOUT_THE_FILE = ("version", "command")  # written next to the options for the reader, and ignored when read


def preset_names() -> list[str]:
    """The names of the presets, sorted."""
    files = resources.files("ncsam.presets").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """The text of a preset file, with the comments that name its source and what is unknown.

    Args:
        name: One of `preset_names()`.

    Raises:
        UsageError: There is no preset of that name.
    """
    if name not in preset_names():
        raise unknown_name("preset", name, preset_names())
    return (resources.files("ncsam.presets") / f"{name}.yaml").read_text(encoding="utf-8")


def read_preset(name: str) -> dict[str, Any]:
    """The options of a preset.

    Args:
        name: One of `preset_names()`.

    Returns:
        Values by name, a copy that may be changed.
    """
    return copy.deepcopy(_preset(name))


@functools.cache
def _preset(name: str) -> dict[str, Any]:
    return _mapping(preset_text(name), f"preset {name}")


def read_yaml(path: Path) -> dict[str, Any]:
    """The options of a configuration file.

    Args:
        path: A YAML file of `option: value` lines.

    Returns:
        Values by name, not checked; without the version and command that `RunConfig.save` adds.

    Raises:
        FileNotFoundError: There is no such file.
        UsageError: It is not a mapping.
    """
    if not path.is_file():
        raise FileNotFoundError(f"config={str(path)!r}: there is no such file")
    return _mapping(read_text(path), str(path))


def _mapping(text: str, where: str) -> dict[str, Any]:
    content = parse_yaml(text, where)
    if not isinstance(content, dict):
        raise UsageError(f"{where} must contain `option: value` lines, not {type(content).__name__}")
    return {name: value for name, value in content.items() if name not in _ABOUT_THE_FILE}
