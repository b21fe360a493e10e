"""`ncsam align`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from ncsam.cli.main import BriefCommand
from ncsam.cli.options import RunPath, Written, data_option, files_of, keep, model_option
from ncsam.cli.output import show_table
from ncsam.engine.analysis import alignments_at_end, training_data
from ncsam.engine.predictor import LoadedRun, load_predictor
from ncsam.runs.reader import RunFolder
from ncsam.theory.alignment import Alignment, mean_alignment
from ncsam.theory.plots import CURVES, plot_alignment

EPILOG = """\b
Examples:
  ncsam align runs/first
  ncsam align runs/first --rho 0.5 --batches 100 --out alignment.png
  ncsam align runs/first --json
"""
_SHOWN = {
    "noise_share": "lambda_B: wrong labels in a batch",
    "cos_clean_noise": "cos(g_clean, g_noise)",
    "cos_estimate_noise": "cos(g*, g_noise): is g* what it stands for",
    "cos_estimate_clean": "cos(g*, g_clean)",
    "cos_grad_estimate": "cos(g_B, g*)",
    "compensation_ratio": "q = s ||g*|| / rho",
    "cos_sam": "cos(eps, eps_SAM): below 0, eps points against SAM's",
    "cos_clean_sam": "cos(eps_SAM, g_clean)",
    "cos_clean": "cos(eps, g_clean): the paper's claim is that it is the larger",
    "flipped_mislabeled": "share of flipped samples truly mislabeled",
}


@click.command(cls=BriefCommand, epilog=EPILOG, rare=frozenset({"model", "data"}))
@click.argument("run", type=RunPath())
@click.option("--rho", type=float, help="radius of the perturbation [the run's]")
@click.option("--kappa", type=float, help="maximum strength of the compensation [the run's]")
@click.option("--batches", type=click.IntRange(min=1), default=20, show_default=True, help="batches to measure")
@click.option("--out", type=Written(), help="the image [RUN/alignment.png]")
@click.option("--json", "as_json", is_flag=True, help="as JSON; no image without --out")
@model_option
@data_option
def align(
    run: Path,
    rho: float | None,
    kappa: float | None,
    batches: int,
    out: Path | None,
    as_json: bool,
    model: str | None,
    data: str | None,
) -> None:
    """Measure whether NCSAM turns RUN's perturbation toward the gradient of correctly labeled samples.

    Values during training come from the telemetry in metrics.jsonl. Values at the end are measured with the last
    checkpoint on augmented batches of the training split. Works for every optimizer if the clean labels are known.
    """
    keep(files_of(run), out)
    read, trained = RunFolder.read(run), load_predictor(run, model=model)
    task = training_data(run, trained, data)
    _note_what_is_left_out(trained)
    found = alignments_at_end(read, trained, task, rho=rho, kappa=kappa, batches=batches)
    mean = mean_alignment(found)
    curves = {name: read.curve(f"telemetry.{name}") for name in (*CURVES, "compensation_ratio")}
    image = out if out is not None or as_json else run / "alignment.png"
    if image is not None:
        plot_alignment(image, found, {name: curves[name] for name in CURVES}, run.resolve().name)
    if as_json:
        result: dict[str, Any] = {"checkpoint": asdict(mean), "gain": mean.gain, "slope": mean.slope}
        result |= {"reversal": mean.reversal, "batches": len(found), "telemetry": curves}
        click.echo(json.dumps(_plain(result), indent=2))
        return
    _show_telemetry(curves)
    click.echo(f"at the checkpoint, mean over {len(found)} batches:")
    show_table(["quantity", "value", "meaning"], [[k, f"{asdict(mean)[k]:.3f}", v] for k, v in _SHOWN.items()], left=3)
    click.echo(_verdict(mean))
    if image is not None:
        click.echo(f"image: {image}")


def _note_what_is_left_out(trained: LoadedRun) -> None:
    if trained.config.optimizer_options.get("adaptive"):
        click.echo("note: this run scales its perturbation by the weights (adaptive); measured is the plain one")
    if len(trained.network.networks) > 1:
        click.echo("note: of several networks, the first is measured")


def _show_telemetry(curves: dict[str, dict[int, float]]) -> None:
    epochs = sorted(curves["cos_clean"])
    if not epochs:
        click.echo("along training: no telemetry of cos_clean (warm-up only, sgd, or telemetry_every 0)")
        return
    chosen = sorted({epochs[i] for i in np.linspace(0, len(epochs) - 1, 8).round().astype(int)})
    rows = [[str(e), *(_cell(curves[name].get(e)) for name in curves)] for e in chosen]
    click.echo("along training, means of the telemetry:")
    show_table(["epoch", *curves], rows)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _verdict(mean: Alignment) -> str:
    word = "more" if mean.gain > 0 else "less"
    against = f" It points against SAM's own (q above {mean.reversal:.2f})." if mean.cos_sam < 0 else ""
    return (
        f"NCSAM's perturbation points {word} along the clean gradient than SAM's "
        f"({mean.cos_clean:.3f} against {mean.cos_clean_sam:.3f}).{against}"
    )


def _plain(value: Any) -> Any:
    """JSON knows neither nan nor inf."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
