"""`ncsam data`: list, check and describe datasets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ncsam import data as datasets
from ncsam._text import printable
from ncsam.cli.main import FAILED, Failure, WholeGroup, known
from ncsam.cli.options import settings_option
from ncsam.cli.output import say, show_table
from ncsam.data.images.files import other_files
from ncsam.data.types import first_few
from ncsam.engine.config import RunConfig
from ncsam.engine.task import reader_options

_Command = TypeVar("_Command", bound=Callable[..., Any])


def source_options(command: _Command) -> _Command:
    """`DATA` and how to read it, as `ncsam.data.load` takes them."""
    command = settings_option("--data-options", help="options of the reader, such as size=[64,64]")(command)
    command = click.option("--label-column", metavar="NAME", help="label column of a table, or label array")(command)
    command = click.option("--download", is_flag=True, help="download a named dataset if it is missing")(command)
    command = click.option("--data-root", metavar="DIR", help="folder of a named dataset")(command)
    return click.argument("data", metavar="DATA", shell_complete=known("data"))(command)


def load(source: dict[str, Any]) -> datasets.DataSet:
    """The dataset that the values of `source_options` name, which are fields of `RunConfig`."""
    config = RunConfig(**source)
    options = reader_options(config.to_dict())
    return datasets.load(config.data, config.data_root, download=config.download, **options)


@click.group(
    cls=WholeGroup,
    epilog="\b\nExamples:\n  ncsam data list\n  ncsam data describe digits\n  ncsam data check photos/",
)
def data() -> None:
    """List, check and describe datasets."""


@data.command("list", epilog="\b\nExamples:\n  ncsam data list\n  ncsam data list --json")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def list_command(as_json: bool) -> None:
    """List the named datasets. In place of a name, you can use your own folder, table or .npz file."""
    entries = [datasets.entry(name) for name in datasets.names()]
    if as_json:
        fields = ("name", "about", "obtain", "license")
        click.echo(json.dumps([{field: getattr(e, field) for field in fields} for e in entries], indent=2))
        return
    show_table(["name", "what it holds", "license"], [[e.name, e.about, e.license] for e in entries], left=3)


@data.command(epilog="\b\nExamples:\n  ncsam data describe digits\n  ncsam data describe photos/ --classes 30")
@source_options
@click.option("--classes", type=click.IntRange(min=0), default=10, show_default=True, help="how many classes to count")
def describe(classes: int, **source: Any) -> None:
    """Describe DATA: splits, classes, counts and, if clean labels are known, the label noise."""
    dataset = load(source)
    say(datasets.describe(dataset, classes))
    if source["data"] in datasets.names():
        entry = datasets.entry(source["data"])
        click.echo(f"  about: {entry.about}\n  obtain: {entry.obtain}\n  license: {entry.license}")


@data.command(epilog="\b\nExamples:\n  ncsam data check photos/\n  ncsam data check table.csv --workers 4")
@source_options
@click.option(
    "--workers", type=click.IntRange(1, 1024), default=2, show_default=True, help="threads that decode images"
)
def check(workers: int, **source: Any) -> None:
    """Check DATA before training: labels in range, no empty classes, and no damaged images.

    Lists all damaged images. The exit code is 1 if there are any.
    """
    dataset = load(source)
    bad = []
    for name, split in dataset.splits.items():
        _, found = datasets.check_images(split, workers=workers, skip=True)
        bad += [f"{name}: {each}" for each in found]
        click.echo(f"{name}: {len(split):,} samples, {len(found):,} damaged")
    for line in bad:
        say(line)
    folder = Path(source["data"])
    if folder.is_dir() and isinstance(dataset.train.inputs, datasets.PathList):
        others = other_files(folder)
        if others:
            names = first_few(map(printable, others), len(others))
            click.echo(f"not read, because they do not have an image extension: {names}")
    if bad:
        raise Failure(f"{len(bad):,} images of {Path(dataset.name).name} cannot be read", FAILED)
    click.echo(f"{dataset.name} is fine: {dataset.num_classes} classes, all with training samples")
