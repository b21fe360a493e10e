"""Kinds of values on the command line: a field's own types, KEY=VALUE, lists with commas, seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click

from ncsam._errors import need

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # generic for the type checker, and in newer versions of click only
else:
    _ParamType = click.ParamType

_Command = TypeVar("_Command", bound=Callable[..., Any])
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_METAVARS = {int: "INT", float: "NUMBER", bool: "BOOL", str: "TEXT"}


class Scalar(_ParamType):
    """Text as one of the words or types that a field allows, whole numbers before fractions before any text."""

    name = "value"

    def __init__(self, kinds: tuple[Any, ...]) -> None:
        self.named = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
        self.kinds = [kind for kind in kinds if get_origin(kind) is not Literal]
        metavars = [_METAVARS[kind] for kind in (int, float, str, bool) if kind in kinds]
        self.metavar = "|".join(metavars + self.named)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self.named:
            return value
        if type(None) in self.kinds and value.lower() in ("null", "none"):
            return None
        if bool in self.kinds and value.lower() in ("true", "false"):
            return value.lower() == "true"
        for kind in (int, float, str):
            if kind in self.kinds:
                try:
                    return kind(value)
                except ValueError:
                    continue
        allowed = [_WORDS[kind] for kind in self.kinds] + self.named
        return self.fail(f"{value!r} is not {' or '.join(allowed)}", param, ctx)


class Settings(_ParamType):
    """`KEY=VALUE`, or several with commas between them; values are read as YAML: numbers, words, true, null, [1, 2]."""

    name = "KEY=VALUE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if not isinstance(value, str):
            return dict(value)
        yaml = need("yaml", "train", "reading an option")
        found: dict[str, Any] = {}
        for each in re.split(r",(?=\w+=)", value):  # other commas belong to values
            key, equals, text = each.partition("=")
            if not key or not equals:
                self.fail(f"{each!r} is not KEY=VALUE", param, ctx)
            try:
                found[key] = yaml.safe_load(text)
            except (yaml.YAMLError, ValueError, RecursionError):
                found[key] = text
        return found


def settings_option(flag: str, **settings: Any) -> Callable[[_Command], _Command]:
    """An option that takes `Settings`, may be given more than once, and becomes one dictionary."""

    def joined(ctx: click.Context, param: click.Parameter, given: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {key: value for each in given for key, value in each.items()}

    return click.option(flag, type=Settings(), multiple=True, callback=joined, **settings)


class Listed(_ParamType):
    """Names with commas between them."""

    name = "NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)


class Seeds(_ParamType):
    """A count, meaning seeds 1 to that, or the seeds themselves with commas between them."""

    name = "COUNT|SEED,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | list[int]:
        if not isinstance(value, str):
            return int(value)
        try:
            return [int(part) for part in value.split(",")] if "," in value else int(value)
        except ValueError:
            return self.fail(f"{value!r} is not a count, nor seeds such as 1,2,3", param, ctx)
