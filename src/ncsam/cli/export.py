"""`ncsam export`."""

from __future__ import annotations

from pathlib import Path

import click

from ncsam.cli.main import BriefCommand
from ncsam.cli.options import RunPath, Written, files_of, keep, method_option, model_option
from ncsam.engine.export import FORMATS
from ncsam.run import Run

EPILOG = """\b
Examples:
  ncsam export runs/first --format torchscript
  ncsam export runs/first --format onnx --out model.onnx
  ncsam export runs/first --format safetensors --out weights.safetensors
"""


@click.command(cls=BriefCommand, epilog=EPILOG, rare=frozenset({"model", "method"}))
@click.argument("run", type=RunPath())
@click.option(
    "--format",
    "kind",
    type=click.Choice(list(FORMATS)),
    default="torchscript",
    show_default=True,
    help="format of the file",
)
@click.option("--out", type=Written(), help="file to write [RUN/model with a suffix]")
@model_option
@method_option
def export(run: Path, kind: str, out: Path | None, model: str | None, method: str | None) -> None:
    """Write the model of RUN for use elsewhere: inputs in, logits out.

    A .json next to it has the class names and how inputs are prepared (of images: scaled to [0, 1], then
    (x - mean) / std for each channel, shape (batch, channels, height, width); of texts: the vocabulary).
    A model of embedded images is written with its backbone, but as safetensors without it; a model of embedded texts
    takes the embeddings.
    """
    path = out or run / f"model{FORMATS[kind].suffix}"
    keep(files_of(run), path, path.with_suffix(".json"))
    inputs = Run(run, named={"model": model, "method": method}).export(path, kind)
    click.echo(f"{path}\n{path.with_suffix('.json')}")
    if inputs:
        click.echo(f"its inputs are {inputs}", err=True)
