"""`ncsam audit`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from ncsam.api import audit as run_audit
from ncsam.auditing.findings import CHECKS
from ncsam.audits import applicable
from ncsam.cli.main import can_skip_damaged
from ncsam.cli.options import ConfigCommand, Listed, Written, config_options, default_out, resolve
from ncsam.cli.output import say, show_table
from ncsam.runs import layout

#: Options that train a model of the user's choice; an audit fits the recommended one.
_LEFT_OUT = (
    *("method", "method_options", "optimizer", "optimizer_options", "base", "model", "model_options", "epochs"),
    *("warmup", "rho", "rho_target", "kappa", "flip_ratio", "lr", "head_lr", "weight_decay", "schedule", "momentum"),
)
_EVIDENCE = 90  # characters

EPILOG = """\b
Examples:
  ncsam audit photos/ --out runs/audit
  ncsam audit table.csv --checks leaking_column,id_column --out runs/audit
  ncsam audit runs/first

\b
Then:
  ncsam report runs/audit
  ncsam review runs/audit
  ncsam clean runs/audit --findings exact_duplicate --out cleaned.csv
"""


@click.command(cls=ConfigCommand, epilog=EPILOG)
@config_options(leave_out=_LEFT_OUT)
@click.option("--out", type=Written(folder=True), help="run folder [runs/DATA-...-sSEED]")
@click.option("--checks", type=Listed(), help="names of checks, comma-separated [all]")
@click.option("--quiet", is_flag=True, help="no progress, only the result")
@click.pass_context
def audit(ctx: click.Context, /, out: Path | None, checks: list[str] | None, quiet: bool, **_: Any) -> None:
    """Find what is wrong with DATA, or with the data of a run folder: labels, duplicates, outliers, classes, images,
    texts, columns, and differences between train and test.

    Cross-validates the recommended classifier (on pretrained embeddings of images and texts) and writes the findings to
    the run folder (audit.json). `ncsam report` shows them, `ncsam review` filters by them, and `ncsam clean --findings`
    applies their decisions.
    """
    given = ctx.params.get("data")
    if given is not None and (Path(given) / layout.CONFIG).is_file():
        folder = Path(given)
        found = run_audit(folder, checks=checks, console=not quiet)
    else:
        config = resolve(ctx)
        folder = out or default_out(config)
        with can_skip_damaged():
            command = shlex.join(ctx.meta["ncsam.command"])
            found = run_audit(None, folder, checks=checks, config=config, console=not quiet, command=command)
    rows = []
    for check, count in found.summary.items():
        worst = found.of(check)[0]
        what = worst.name or f"{worst.split} {worst.index}".strip()
        said = f"{what}: {worst.evidence}"
        rows.append(
            [check, f"{count:,}", f"{worst.score:.2f}", f"{worst.threshold:g}", worst.decision, said[:_EVIDENCE]]
        )
    if rows:
        head = ["check", "findings", "worst score", "threshold", "decision", "worst"]
        show_table(head, rows)
    for note in found.notes:
        say(note)
    tried = len(checks) if checks else len(CHECKS)
    say(f"{len(found):,} findings of {tried} checks in {folder / layout.AUDIT}")
    here, apply = shlex.quote(str(folder)), ",".join(applicable(found.findings))
    say(f"next: ncsam report {here}" + (f"; ncsam clean {here} --findings {apply} --out cleaned.csv" if apply else ""))
