"""A run from its configuration to its summary."""

from __future__ import annotations

import os
from typing import Any

from ncsam.data.types import DataSet
from ncsam.engine.config import RunConfig


def train(
    config: RunConfig,
    out: str | os.PathLike[str],
    *,
    dataset: DataSet | None = None,
    console: bool = True,
    command: str | None = None,
) -> dict[str, Any]:
    """Train as `config` says, write the run folder `out`, and return its summary."""
    raise NotImplementedError
