"""Reports on runs: groups of seeds, tables, curves, label issues; as a page or as Markdown."""

from ncsam.report.content import write_report

__all__ = ["write_report"]
