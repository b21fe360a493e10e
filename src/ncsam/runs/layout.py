"""What a run folder tells before anything is trained."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ncsam._files import remove_leftovers
from ncsam.engine.checkpoint import BEFORE, NAME
from ncsam.engine.config import RunConfig, read_yaml
from ncsam.errors import RunError

_WRITTEN = (
    "config.yaml",
    "metrics.jsonl",
    "metrics.csv",
    "noise.npz",
    "noise.json",
    "label_issues.csv",
    "summary.json",
    "damaged.csv",
    "annotators.csv",
)


#: The file by which each kind of folder is known. A race leaves a configuration, too, so it comes first.
_MARKS = {
    "auto.json": "a race of `ncsam auto`",
    "config.yaml": "a run of `ncsam train`",
    "comparison.json": "a comparison of `ncsam compare`",
    "reproduce.json": "tables of `ncsam reproduce`",
}


def refuse_other_work(folder: Path, own: str) -> None:
    """Raise `RunError` if a folder holds what another command wrote: each would replace files of the other.

    `own` is the file by which the caller's kind of folder is known.
    """
    there = next((mark for mark in _MARKS if (folder / mark).is_file()), own)
    if there != own:
        raise RunError(f"{folder} holds {_MARKS[there]}: choose another folder")


def read_summary(folder: str | os.PathLike[str], config: RunConfig) -> dict[str, Any] | None:
    """The summary of a finished run; `None` if it is not finished. `RunError` if it was of another configuration.

    A run that never reached a checkpoint has nothing to lose, so its configuration does not count.
    """
    folder = Path(folder)
    path = folder / "summary.json"
    begun = any((folder / "checkpoints" / name).exists() for name in (NAME, BEFORE))
    if (folder / "config.yaml").is_file() and (begun or path.exists()):
        refuse_another(folder, config, RunConfig.from_dict(read_yaml(folder / "config.yaml")))
    if not path.is_file():
        return None
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        summary = error
    if not isinstance(summary, dict):
        raise RunError(
            f"{path} cannot be read as the summary of a run: remove it, and the same command writes it again"
        )
    return summary


def refuse_another(folder: Path, config: RunConfig, saved: RunConfig) -> None:
    """Raise `RunError` if the run that was saved in a folder is not the one that is wanted."""
    changed = config.conflicts(saved)
    if changed:
        listed = "; ".join(f"{name} was {was!r}, now {now!r}" for name, (was, now) in changed.items())
        raise RunError(f"{folder} holds a run of another configuration ({listed}): choose another folder")


def clear_leftovers(folder: Path) -> None:
    """Remove the temporary files that a killed run left; the caller holds the folder's lock."""
    remove_leftovers(folder, *_WRITTEN)
    remove_leftovers(folder / "checkpoints", NAME, "last.json")
