"""`audit.json`: the findings of an audit in a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ncsam._files import read_json
from ncsam.auditing.findings import CHECKS, DECISIONS, Finding
from ncsam.errors import DamagedFileError
from ncsam.runs import layout
from ncsam.runs.writer import write_json


def save_findings(folder: Path, findings: Sequence[Finding], notes: Sequence[str] = ()) -> None:
    """Write `audit.json`: the findings, and notes on checks that were not possible.

    Args:
        folder: the run folder.
        findings: in the order in which a report shows them.
        notes: one sentence for each check that was not possible.
    """
    write_json(folder / layout.AUDIT, {"notes": list(notes), "findings": [asdict(each) for each in findings]})


def load_findings(folder: Path) -> tuple[list[Finding], list[str]] | None:
    """The findings and notes of a run folder; `None` if it was not audited.

    Args:
        folder: the run folder.

    Raises:
        DamagedFileError: if the file is not what `save_findings` writes.
    """
    path = folder / layout.AUDIT
    if not path.is_file():
        return None
    content = read_json(path)
    rows, notes = content.get("findings"), content.get("notes")
    if not isinstance(rows, list) or not isinstance(notes, list) or not all(isinstance(each, str) for each in notes):
        raise DamagedFileError(f"{path} is damaged: it does not hold findings and notes")
    for number, row in enumerate(rows):
        if not _is_finding(row):
            shown = json.dumps(row)[:80]
            raise DamagedFileError(f"{path} is damaged: finding {number} is not one that an audit writes: {shown}")
    return [Finding(**{**row, "related": tuple(row["related"])}) for row in rows], notes


def _is_finding(row: Any) -> bool:
    kinds: Mapping[str, Any] = {"score": (int, float), "threshold": (int, float), "index": int, "target": int}
    kinds = {**kinds, "related": list}
    if not isinstance(row, dict) or set(row) != {field.name for field in fields(Finding)}:
        return False
    if any(isinstance(row[name], bool) or not isinstance(row[name], kinds.get(name, str)) for name in row):
        return False
    if (
        row["check"] not in CHECKS
        or row["decision"] not in DECISIONS
        or row["split"] not in ("", "train", "val", "test")
    ):
        return False
    whole = all(-1 <= row[name] < 2**63 for name in ("index", "target"))
    return whole and math.isfinite(row["score"]) and all(isinstance(each, str) for each in row["related"])
