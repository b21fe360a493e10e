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
    """Findings about a dataset: label issues, duplicates, outliers, unusual classes, images, texts and columns.

    The arguments are also attributes.

    Args:
        run: the run whose data was audited. Its folder stores the findings, too (`audit.json`).
        findings: the findings, each with check, score, threshold, evidence and decision
            (`ncsam.auditing.findings.Finding`).
        notes: what could not be checked, and why.
    """

    def __init__(self, run: Run, findings: Sequence[Finding], notes: Sequence[str] = ()) -> None:
        self.run = run
        self.findings = list(findings)
        self.notes = list(notes)

    def __len__(self) -> int:
        return len(self.findings)

    def of(self, check: str) -> list[Finding]:
        """Return the findings of one check, worst first.

        Args:
            check: a name from `ncsam.auditing.findings.CHECKS`.

        Raises:
            UsageError: if there is no such check.
        """
        known_checks([check])
        return [each for each in self.findings if each.check == check]

    @property
    def summary(self) -> dict[str, int]:
        """The number of findings of each check that found something."""
        return dict(Counter(each.check for each in self.findings))

    @property
    def table(self) -> Any:
        """A `pandas.DataFrame` with a row per finding."""
        pandas = need("pandas", "tables", "a table of findings")
        rows = [{**asdict(each), "related": ", ".join(each.related)} for each in self.findings]
        return pandas.DataFrame(rows, columns=list(Finding.__dataclass_fields__))

    def report(self, path: str | os.PathLike[str] | None = None, *, images: int = 24) -> Path:
        """Write the report of the run, with a section for every check that found something.

        Args:
            path: the file to write, as in `Run.report`. `None` writes `report.html` into the run folder.
            images: number of label issues to show; also limits the findings shown per check, to at most 12.

        Returns:
            The path of the report.
        """
        return self.run.report(path, images=images)

    def cleaned(self, findings: Iterable[str] | None = None, **options: Any) -> Any:
        """Apply the decisions of the findings to the data.

        Args:
            findings: names of the checks to apply. `None` applies all whose decision is not "review".
            **options: passed to `Run.cleaned`.

        Returns:
            A `pandas.DataFrame`, as from `Run.cleaned`.
        """
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
    """Return the checks among the findings whose decision `clean` can apply.

    Args:
        findings: findings of any checks.

    Returns:
        Names of checks, in the order of `CHECKS`.
    """
    return known_checks({each.check for each in findings if each.decision != "review"})


def _first(found: Finding) -> str:
    """A finding in one line."""
    what = found.name or f"{found.split} {found.index}".strip()
    return f"{what}: {found.evidence}" if found.evidence else what
