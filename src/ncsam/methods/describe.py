"""Descriptions of methods: formula, options, presets, needs, cost and source."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from ncsam._errors import unknown_name
from ncsam.methods.known_rate import KnownRate
from ncsam.methods.registry import _METHODS, create


def about(name: str) -> str:
    """What it does, in one line; by default the first line of its docstring.

    Args:
        name: Name of a method.
    """
    kind = _METHODS[name]
    return kind.about or inspect.getdoc(kind).splitlines()[0]  # type: ignore[union-attr]


def source(name: str) -> str:
    """The paper, as named in the first line of its file; empty for a method defined elsewhere.

    Args:
        name: Name of a method.
    """
    module = sys.modules.get(_METHODS[name].__module__)
    return ((module.__doc__ or "") if module else "").strip().partition("\n")[0]


def needs(name: str) -> list[str]:
    """What it needs from a run, beyond a model and labels; one phrase each.

    Args:
        name: Name of a method.
    """
    method = create(name)
    found = []
    if method.networks > 1:
        found.append(f"{method.networks} models, each with an optimizer of its own")
    if method.views != ("train",):
        found.append(f"views: {', '.join(method.views)}")
    if isinstance(method, KnownRate):
        found.append("the noise rate: its own option, else --rate, else an estimate")
    if method.verified_share:
        found.append("verified labels: those of the data, else a share of clean ones")
    if method.images_only:
        found.append("images, of which it compares differently augmented views")
    elif method.mixes_inputs:
        found.append("inputs that can be averaged: images or features, not text")
    return found


def options(name: str) -> dict[str, Any]:
    """Its options with their defaults.

    Args:
        name: Name of a method.
    """
    return {p.name: p.default for p in inspect.signature(_METHODS[name]).parameters.values()}


def shown(value: object) -> str:
    """A value as it is written on the command line.

    Args:
        value: The value.
    """
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def described(name: str) -> str:
    """All of it, as text.

    Args:
        name: Name of a method.
    """
    if name not in _METHODS:
        raise unknown_name("method", name, _METHODS)
    kind = _METHODS[name]
    lines = [f"{name}: {about(name)}", source(name), "", inspect.getdoc(kind) or "", "", "Options and their defaults:"]
    lines += [f"  {option}={shown(value)}" for option, value in options(name).items()] or ["  none"]
    lines += ["", "Presets (--method-options preset=NAME):"]
    for preset, values in kind.presets.items():
        lines.append(f"  {preset}: " + ", ".join(f"{option}={shown(value)}" for option, value in values.items()))
    lines += [] if kind.presets else ["  none"]
    lines += ["", "Needs: " + ("; ".join(needs(name)) or "nothing more"), f"Cost: {kind.cost}"]
    return "\n".join(lines)
