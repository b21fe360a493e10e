"""`ncsam compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ncsam.bench import compare as run_comparison
from ncsam.bench.figures import curves_png
from ncsam.bench.report import noise_text, write_report
from ncsam.bench.runs import find_runs, group_runs
from ncsam.cli.complete import known
from ncsam.cli.options import ConfigCommand, Listed, config_options, default_out, echo_config, resolve
from ncsam.cli.results import show_comparison
from ncsam.cli.train import outlook

EPILOG = """\b
Examples:
  ncsam compare digits --noise symmetric --rate 0.4 --optimizers sgd,sam,ncsam --seeds 3 --out runs/digits
  ncsam compare photos/ --methods ce,mixup --optimizers sgd,ncsam --seeds 1,2,3 --jobs 2
  ncsam compare digits --preset cifar10_symmetric --dry-run

Combinations that are finished are not run again; those that were stopped go on.
"""


class Seeds(click.ParamType):
    """A count, meaning seeds 1 to that, or the seeds themselves with commas between them."""

    name = "COUNT|SEED,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | list[int]:
        if not isinstance(value, str):
            return int(value)
        try:
            return [int(part) for part in value.split(",")] if "," in value else int(value)
        except ValueError:
            return self.fail(f"{value!r} is not a count, nor seeds such as 1,2,3", param, ctx)


@click.command(cls=ConfigCommand, epilog=EPILOG)
@config_options(leave_out=("method", "optimizer", "seed"))
@click.option(
    "--methods", type=Listed(), default="ce", shell_complete=known("methods"), help="learning methods, with commas [ce]"
)
@click.option(
    "--optimizers",
    type=Listed(),
    default="sgd,sam,ncsam",
    shell_complete=known("optimizers"),
    help="optimizers, with commas [sgd,sam,ncsam]",
)
@click.option("--seeds", type=Seeds(), default=3, help="how many, or which with commas [3]")
@click.option("--jobs", type=click.IntRange(min=1), help="runs at a time [as many as the cores allow]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="folder of the runs [runs/compare-...]")
@click.option("--dry-run", is_flag=True, help="print the resolved configuration and what would be done")
@click.pass_context
def compare(
    ctx: click.Context,
    methods: list[str],
    optimizers: list[str],
    seeds: int | list[int],
    jobs: int | None,
    out: Path | None,
    dry_run: bool,
    **_: Any,
) -> None:
    """Train all combinations of methods, optimizers and seeds on DATA, and compare them.

    Ends in a table of means and standard deviations, a picture of the curves, a report, and comparison.json.
    """
    config = resolve(ctx)
    folder = out or default_out(config, comparison=True)
    if dry_run:
        echo_config(config)
        listed = seeds if isinstance(seeds, list) else list(range(1, seeds + 1))
        for name in (f"{m}-{o}-s{s}" for m in methods for o in optimizers for s in listed):
            click.echo(f"# {outlook(folder / name)}")
        return
    rows = run_comparison(
        config, folder, methods=methods, optimizers=optimizers, seeds=seeds, workers=jobs, say=click.echo
    )
    runs = find_runs([folder])
    meanings = {name: text for run in runs for name, text in run.metric_names.items()}
    show_comparison(rows, meanings)
    title = ", ".join(filter(None, [str(config.data), noise_text(config.to_dict())]))
    picture = curves_png(group_runs(runs), folder / "curves.png", title)
    report = write_report([folder], folder / "report.html")[0]
    click.echo(f"picture: {picture}\nreport: {report}\nnumbers: {folder / 'comparison.json'}")
