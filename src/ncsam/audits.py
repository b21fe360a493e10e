"""`Audit`: the findings about a dataset, as a Python object."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncsam._errors import need
from ncsam.auditing.findings import CHECKS, Finding, known_checks

if TYPE_CHECKING:
    from ncsam.run import Run


class Audit:
    """What is wrong with a dataset: label issues, duplicates, outliers, odd classes, images, texts and columns.

    Attributes:
        findings: each with its check, score, threshold, evidence and decision (`ncsam.auditing.findings.Finding`).
        notes: what could not be checked, and why.
        run: the run whose data was audited; its folder has the findings, too (`audit.json`).
    """

    def __init__(self, run: Run, findings: Sequence[Finding], notes: Sequence[str] = ()) -> None:
        self.run = run
        self.findings = list(findings)
        self.notes = list(notes)

    def __len__(self) -> int:
        return len(self.findings)

    def of(self, check: str) -> list[Finding]:
        """The findings of one check, the worst first."""
        known_checks([check])
        return [each for each in self.findings if each.check == check]

    @property
    def summary(self) -> dict[str, int]:
        """The number of findings of every check that found something."""
        return dict(Counter(each.check for each in self.findings))

    @property
    def table(self) -> Any:
        """A `pandas.DataFrame` with a row per finding."""
        pandas = need("pandas", "tables", "a table of findings")
        rows = [{**asdict(each), "related": ", ".join(each.related)} for each in self.findings]
        return pandas.DataFrame(rows, columns=list(Finding.__dataclass_fields__))

    def report(self, path: str | os.PathLike[str] | None = None, *, images: int = 24) -> Path:
        """Write the page of the run, which has a section for every check that found something."""
        return self.run.report(path, images=images)

    def cleaned(self, findings: Iterable[str] | None = None, **options: Any) -> Any:
        """The data after the decisions of these checks, as `Run.cleaned`; by default all but those left to review."""
        chosen = known_checks(findings) if findings is not None else applicable(self.findings)
        return self.run.cleaned(findings=chosen, **options)

    def __repr__(self) -> str:
        lines = [f"<Audit: {len(self):,} findings>"]
        width = max((len(CHECKS[check].title) for check in self.summary), default=0)
        for check, count in self.summary.items():
            lines.append(f"{CHECKS[check].title.ljust(width)}  {count:>7,}  {_first(self.of(check)[0])}")
        return "\n".join([*lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{html.escape(CHECKS[check].title)}</th><td>{count:,}</td>"
            f"<td>{html.escape(_first(self.of(check)[0]))}</td></tr>"
            for check, count in self.summary.items()
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p><b>Audit</b>: {len(self):,} findings</p><table><tbody>{rows}</tbody></table>{notes}"


def applicable(findings: Sequence[Finding]) -> tuple[str, ...]:
    """The checks among the findings that have a decision `clean` can apply."""
    return known_checks({each.check for each in findings if each.decision != "review"})


def _first(found: Finding) -> str:
    """A finding in one line."""
    what = found.name or f"{found.split} {found.index}".strip()
    return f"{what}: {found.evidence}" if found.evidence else what
