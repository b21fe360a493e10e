"""Docstrings of the building blocks: every argument of every exported name is documented."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

from ncsam import methods, models

PACKAGES = ("losses", "noise", "theory", "models", "methods")


def exported() -> list[tuple[str, Any]]:
    found = []
    for package in PACKAGES:
        module = importlib.import_module(f"ncsam.{package}")
        names = [name for name in module.__all__ if callable(getattr(module, name))]
        found += [(f"{package}.{name}", getattr(module, name)) for name in names]
    ours = [name for name in methods.names() if methods.get(name).__module__.startswith("ncsam.")]
    found += [(f"method {name}", methods.get(name)) for name in ours]
    found += [(f"model {name}", models.registry._BUILDERS[name]) for name in models.names()]
    return found


def documented(thing: Any) -> set[str]:
    """The names under `Args` or `Attributes`."""
    text = inspect.getdoc(thing) or ""
    sections = re.findall(r"^(?:Args|Attributes):\n((?:^ +.*\n?|^\n)+)", text, flags=re.MULTILINE)
    return {name for section in sections for name in re.findall(r"^    \*{0,2}(\w+):", section, flags=re.MULTILINE)}


@pytest.mark.parametrize(("name", "thing"), exported(), ids=[name for name, _ in exported()])
def test_every_argument_is_documented(name: str, thing: Any) -> None:
    if getattr(thing, "_is_protocol", False) or thing in (methods.Method, methods.SubsetMethod, models.Backbone):
        return  # interfaces, which are not built with arguments
    parameters = inspect.signature(thing).parameters
    missing = set(parameters) - documented(thing) - {"self"}
    assert not missing, f"{name}: {sorted(missing)}"
