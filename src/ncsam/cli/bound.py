"""`ncsam bound`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ncsam import theory
from ncsam._errors import bad_value
from ncsam.cli.main import BriefCommand
from ncsam.cli.options import RunPath, data_option, model_option
from ncsam.cli.output import show_table
from ncsam.engine.analysis import radius, training_data
from ncsam.engine.predictor import load_predictor

EPILOG = """\b
Examples:
  ncsam bound runs/first
  ncsam bound runs/first --loss clipped --rho 0.1
  ncsam bound runs/photos --alpha 0.2 --steps 5 --restarts 2 --json
"""


@click.command(cls=BriefCommand, epilog=EPILOG, rare=frozenset({"model", "data"}))
@click.argument("run", type=RunPath())
@click.option(
    "--loss",
    type=click.Choice(["zero_one", "clipped"]),
    default="zero_one",
    show_default=True,
    help="loss that the bound is about",
)
@click.option("--rho", type=float, help="radius of the neighborhood [the run's]")
@click.option("--alpha", type=float, help="share of wrong labels [from clean labels, else the run's rate]")
@click.option("--delta", type=float, default=0.05, show_default=True, help="probability that the bound fails")
@click.option("--steps", type=click.IntRange(min=1), default=20, show_default=True, help="ascent steps")
@click.option("--restarts", type=click.IntRange(min=1), default=4, show_default=True, help="ascents from random points")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
@model_option
@data_option
def bound(
    run: Path,
    loss: str,
    rho: float | None,
    alpha: float | None,
    delta: float,
    steps: int,
    restarts: int,
    as_json: bool,
    model: str | None,
    data: str | None,
) -> None:
    """Evaluate the paper's generalization bound for the model of RUN, term by term.

    The largest loss in the neighborhood is estimated from below by projected gradient ascent on the training split
    with its given labels, in about steps x restarts epochs. docs/theory.md lists the assumptions of the bound.
    """
    trained = load_predictor(run, model=model)
    task = training_data(run, trained, data)
    config = trained.config.replace(precision="32-true")
    known = alpha if alpha is not None else task.noise_rate if task.noise_rate is not None else config.rate
    if known is None:
        raise bad_value("alpha", None, "a share in [0, 1): the clean labels of this run are not known, name it")
    rows = config.batch_size if isinstance(config.batch_size, int) else 128
    loader = task.loader(task.dataset.train, config, rows, subset=task.train).evaluation()
    surface = theory.LossSurface(trained.network, loader)
    size, norm = surface.num_parameters, surface.weight_norm
    ball = radius(trained, rho)
    theory.noisy_label_bound(0.0, len(task.train), known, size, norm, ball, delta)  # a mistake is said before the work
    top = theory.neighborhood_maximum(trained.network, loader, ball, loss=loss, steps=steps, restarts=restarts)
    terms = theory.noisy_label_bound(top.value, len(task.train), known, size, norm, ball, delta)
    needed = theory.clean_samples_needed(size, norm, ball, delta)
    if as_json:
        about: dict[str, Any] = {"num_parameters": size, "weight_norm": norm, "rho": ball, "alpha": known}
        about |= {"delta": delta, "loss": loss, "loss_at_w": top.center, "neighborhood_loss": top.value}
        about |= {"n": len(task.train), "samples_for_complexity_1": needed, "vacuous": terms.vacuous}
        click.echo(json.dumps({**asdict(terms), **about}, indent=2))
        return
    click.echo(
        f"{config.model}: {size:,} weights of norm {norm:.4g}; {len(task.train):,} training samples, "
        f"{100 * known:.1f} % of the labels wrong; rho {ball:g}, delta {delta:g}, {loss} loss"
    )
    meanings = {
        "empirical": f"largest loss found in the ball, {top.value:.4f} (at w {top.center:.4f}), "
        f"times 1 / (1 - alpha) = {terms.amplification:.3f}",
        "gaussian_tail": "1 / ((1 - alpha) sqrt(n_s)): Gaussian steps that leave the ball",
        "complexity": "sqrt(X / (n_s - 1)): weights chosen by the data",
        "total": f"upper bound of the clean risk, with probability {1 - delta:g}",
    }
    show_table(["term", "value", "meaning"], [[k, f"{getattr(terms, k):.4f}", v] for k, v in meanings.items()], left=3)
    if terms.vacuous:
        click.echo(
            f"The bound is vacuous: {terms.total:.4g} is not below 1, which no loss in [0, 1] exceeds anyway. "
            f"With this network and radius the complexity term falls below 1 from {needed:,.0f} right labels on; "
            f"here are {terms.clean_samples:,.0f}."
        )
    else:
        click.echo(
            "The bound is below 1. It rests on a largest loss that is estimated from below, so it is an estimate, "
            "no certificate."
        )
