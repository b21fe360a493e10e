"""Configuration files: YAML with `option: value` lines, and the presets, which ship with the library."""

from __future__ import annotations

import copy
import functools
from importlib import resources
from pathlib import Path
from typing import Any

from ncsam._errors import unknown_name
from ncsam._files import parse_yaml, read_text
from ncsam.errors import UsageError

_ABOUT_THE_FILE = ("version", "command")  # written next to the options for the reader, and ignored when read


def preset_names() -> list[str]:
    """The names of the presets, sorted."""
    files = resources.files("ncsam.presets").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """The text of a preset file, with the comments that name its source and what is unknown."""
    if name not in preset_names():
        raise unknown_name("preset", name, preset_names())
    return (resources.files("ncsam.presets") / f"{name}.yaml").read_text(encoding="utf-8")


def read_preset(name: str) -> dict[str, Any]:
    """The options of a preset."""
    return copy.deepcopy(_preset(name))


@functools.cache
def _preset(name: str) -> dict[str, Any]:
    return _mapping(preset_text(name), f"preset {name}")


def read_yaml(path: Path) -> dict[str, Any]:
    """The options of a configuration file."""
    if not path.is_file():
        raise FileNotFoundError(f"config={str(path)!r}: there is no such file")
    return _mapping(read_text(path), str(path))


def _mapping(text: str, where: str) -> dict[str, Any]:
    content = parse_yaml(text, where)
    if not isinstance(content, dict):
        raise UsageError(f"{where} must contain `option: value` lines, not {type(content).__name__}")
    return {name: value for name, value in content.items() if name not in _ABOUT_THE_FILE}
