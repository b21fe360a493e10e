"""The findings of a dataset audit, as the report shows them: a section per check, with samples as evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ncsam.auditing.findings import CHECKS, Check, Finding
from ncsam.data.modalities import Modality, modality_of
from ncsam.data.types import Split
from ncsam.errors import RunError
from ncsam.report.previews import data_uri, dataset_of
from ncsam.runs.findings import load_findings
from ncsam.runs.reader import RunFolder

SHOWN = 12  # findings of a check


@dataclass(frozen=True)
class Sight:
    """A sample beside a finding: its name, and an image (a data URI) or a text, if any."""

    name: str
    image: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class AuditSection:
    """The findings of one check in one run: how many there are, and the worst of them with their samples."""

    run: RunFolder
    check: Check
    count: int
    shown: Sequence[tuple[Finding, Sequence[Sight]]]
    notes: Sequence[str] = field(default=())


def audit_sections(run: RunFolder, most: int = SHOWN) -> list[AuditSection]:
    """A section for every check that found something; none for a run that was not audited."""
    audited = load_findings(run.folder)
    if audited is None:
        return []
    findings, notes = audited
    splits: Mapping[str, Split] = {}
    kind: Modality | None = None
    with suppress(OSError, ValueError, ImportError, RunError):  # the gallery says why the samples are not shown
        dataset = dataset_of(run)
        splits, kind = dataset.splits, modality_of(dataset)

    def sight(split: str, index: int) -> Sight:
        name = f"{split} {index}"
        if kind is None or split not in splits or not 0 <= index < len(splits[split]):
            return Sight(name)
        preview: Any = kind.preview(splits[split].inputs, index)
        return (
            Sight(name, text=preview) if preview is None or isinstance(preview, str) else Sight(name, data_uri(preview))
        )

    sections: list[AuditSection] = []
    for name, check in CHECKS.items():
        found = [each for each in findings if each.check == name]
        if found:
            shown = [(each, [sight(*place) for place in _places(each)]) for each in found[:most]]
            sections.append(AuditSection(run, check, len(found), shown, notes if not sections else ()))
    return sections


def _places(found: Finding) -> list[tuple[str, int]]:
    """The samples that show a finding: (split, index)."""
    own = [(found.split, found.index)] if found.split else []
    others = [each.rpartition(" ") for each in found.related]
    return own + [(split, int(index)) for split, _, index in others if index.isdecimal() and len(index) < 19]
