"""All combinations of methods, optimizers and seeds, each in a run folder of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ncsam.engine import RunConfig


def compare(
    config: RunConfig,
    out: str | os.PathLike[str],
    *,
    methods: Sequence[str] = ("ce",),
    optimizers: Sequence[str] = ("sgd", "sam", "ncsam"),
    seeds: int | Sequence[int] = 3,
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run what is not finished yet, write `comparison.json`, and return its rows."""
    raise NotImplementedError
