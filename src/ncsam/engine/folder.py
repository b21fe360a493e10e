"""What a run folder tells before anything is trained."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ncsam.engine.config import RunConfig
from ncsam.engine.errors import RunError


def read_summary(folder: str | os.PathLike[str], config: RunConfig) -> dict[str, Any] | None:
    """The summary of a finished run; `None` if it is not finished. `RunError` if it was of another configuration."""
    folder = Path(folder)
    if (folder / "config.yaml").is_file():
        saved = RunConfig.from_yaml(folder / "config.yaml")
        changed = config.conflicts(saved)
        if changed:
            listed = "; ".join(f"{name} was {was!r}, now {now!r}" for name, (was, now) in changed.items())
            raise RunError(f"{folder} holds a run of another configuration ({listed}): choose another folder")
    path = folder / "summary.json"
    if not path.is_file():
        return None
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary
