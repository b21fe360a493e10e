"""`ncsam report`."""

from __future__ import annotations

from pathlib import Path

import click

from ncsam.cli.options import Listed, RunPath, Written
from ncsam.report.content import write_report

EPILOG = """\b
Examples:
  ncsam report runs/first
  ncsam report runs/digits --out digits.html --markdown
  ncsam report runs/digits --metrics last5,val_chosen --out table.tex
  ncsam report runs/a runs/b runs/c --title "Three radii" --images 48
"""


@click.command(epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True, type=RunPath())
@click.option("--out", type=Written(), help="the page [report.html in the first folder]")
@click.option("--metrics", type=Listed(), help="columns of the table, such as last5,val_chosen [all]")
@click.option("--markdown", is_flag=True, help="also write Markdown and a PNG next to the page")
@click.option("--latex", is_flag=True, help="also write the table as LaTeX next to the page")
@click.option("--title", help="heading [data and noise]")
@click.option("--images", default=24, show_default=True, help="label issues to show per group of runs")
def report(
    runs: tuple[Path, ...],
    out: Path | None,
    metrics: list[str] | None,
    markdown: bool,
    latex: bool,
    title: str | None,
    images: int,
) -> None:
    """Write one self-contained HTML page about RUNS: run folders, or a folder written by `ncsam compare`.

    Runs that differ only in their seed are shown as a mean with a band of one standard deviation. The samples are read
    from the original data; if it is missing or its labels have changed, the page says so.
    """
    page = out or runs[0] / "report.html"
    columns = metrics or ()
    for path in write_report(runs, page, title=title, images=images, metrics=columns, markdown=markdown, latex=latex):
        click.echo(str(path))
