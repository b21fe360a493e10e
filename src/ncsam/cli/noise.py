"""`ncsam noise`: make, inspect and plot files of noisy labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from ncsam import data as datasets
from ncsam import noise as library
from ncsam.cli.data import source_options
from ncsam.cli.main import WholeGroup, known
from ncsam.cli.options import Readable, Written, keep, settings_option
from ncsam.cli.output import say
from ncsam.engine.config import RunConfig
from ncsam.engine.task import load_task
from ncsam.noise.record import file_pair


@click.group(
    cls=WholeGroup,
    epilog="\b\nExamples:\n  ncsam noise make digits --noise symmetric --rate 0.4 --out labels.npz\n"
    "  ncsam noise inspect labels.npz\n  ncsam noise plot labels.npz --out labels.png",
)
def noise() -> None:
    """Make, inspect and plot files of noisy labels."""


@noise.command(
    epilog="\b\nExamples:\n  ncsam noise make digits --noise symmetric --rate 0.4 --out labels.npz\n"
    "  ncsam noise make table.csv --noise pairflip --rate 0.2 --out pairs.npz\n"
    "  ncsam noise make cifar10 --noise instance --rate 0.4 --out idn.npz",
)
@source_options
@click.option(
    "--noise", "name", required=True, shell_complete=known("noise"), help="symmetric, pairflip, instance, ..."
)
@click.option("--rate", type=float, help="share of labels to corrupt")
@click.option("--seed", default=0, show_default=True, help="random seed")
@settings_option("--noise-options", help="further options of the noise")
@click.option("--out", required=True, type=Written(), help="NAME.npz (and NAME.json)")
def make(name: str, rate: float | None, seed: int, noise_options: dict[str, Any], out: Path, **source: Any) -> None:
    """Corrupt the training labels of DATA and save them together with the clean ones.

    Prints the actual noise rate, which is lower than --rate for noise that may draw the true class again.
    """
    keep([source["data"]], *file_pair(out))
    config = RunConfig(noise=name, rate=rate, noise_seed=seed, noise_options=noise_options, **source)
    record = load_task(config).record
    assert record is not None
    path = record.save(out)
    say(f"{record}\nsaved       {path} and {path.with_suffix('.json').name}")


@noise.command(
    epilog="\b\nExamples:\n  ncsam noise inspect labels.npz\n  ncsam noise inspect labels.npz --json\n"
    "  ncsam noise inspect CIFAR-10_human.pt --column worst\n  ncsam noise inspect 0.5_sym.json --data cifar10",
)
@click.argument("file", type=Readable(folders=True))
@click.option("--column", help="column of a published file with several")
@click.option("--data", metavar="DATA", help="dataset with the clean labels, if FILE has none")
@click.option("--data-root", metavar="DIR", help="folder of a named dataset")
@click.option("--json", "as_json", is_flag=True, help="as JSON, with the transition matrix")
def inspect(file: Path, column: str | None, data: str | None, data_root: str | None, as_json: bool) -> None:
    """Describe FILE: its kind of noise, the share of wrong labels and the most frequent confusions.

    FILE is the output of `ncsam noise make` or a published label file (.pt, .npy, .json, .csv).
    """
    record = read(file, column, data, data_root)
    if not as_json:
        say(str(record))
        return
    matrix = [[None if np.isnan(share) else share for share in row] for row in record.transition.tolist()]
    about = {
        "recipe": record.recipe,
        "seed": record.seed,
        "samples": len(record),
        "num_classes": record.num_classes,
        "wrong": int(record.mask.sum()),
        "rate": record.rate,
        "transition": matrix,
        "sha256": record.sha256,
    }
    click.echo(json.dumps(about, indent=2))


@noise.command(epilog="\b\nExample:\n  ncsam noise plot labels.npz --out labels.png --classes cat,dog,horse")
@click.argument("file", type=Readable(folders=True))
@click.option("--column", help="column of a published file with several")
@click.option("--data", metavar="DATA", help="dataset with the clean labels and class names")
@click.option("--data-root", metavar="DIR", help="folder of a named dataset")
@click.option("--classes", metavar="NAME,...", help="class names in order")
@click.option("--out", type=Written(), help="the image [FILE's name, .png]")
def plot(
    file: Path, column: str | None, data: str | None, data_root: str | None, classes: str | None, out: Path | None
) -> None:
    """Plot the transition matrix of FILE as a PNG: a row per clean class, a column per noisy label."""
    from ncsam.report.figures import new_figure, save_png

    keep([file], out)
    record = read(file, column, data, data_root)
    names = classes.split(",") if classes else None
    if names is None and data is not None:
        names = list(datasets.load(data, data_root).classes)
    figure, (ax,) = new_figure(width=6.4, height=5.6)
    figure.set_layout_engine("constrained")
    record.plot(ax, names)
    say(str(save_png(figure, out or file.with_suffix(".png"))))


def read(file: Path, column: str | None, data: str | None, data_root: str | None) -> library.NoisyLabels:
    """A saved record, or a published file, with the clean labels of a dataset where one is named."""
    if data is not None:
        task = load_task(RunConfig(data=data, data_root=data_root, label_file=str(file), label_column=column))
        assert task.record is not None
        return task.record
    saved = file.suffix == ".npz" or (file.suffix == ".json" and file.with_suffix(".npz").is_file())
    return library.NoisyLabels.load(file) if saved else library.from_file(file, label=column)
