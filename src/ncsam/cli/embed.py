"""`ncsam embed`."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Any

import click
import torch

from ncsam._arguments import is_reference
from ncsam._errors import bad_value
from ncsam.cli.data import load
from ncsam.cli.main import BriefCommand, known
from ncsam.cli.options import Written, keep, make_folder_importable, settings_option
from ncsam.cli.output import say
from ncsam.data.modalities.text import TextList
from ncsam.data.types import DataSet
from ncsam.embed import Encoder, NamedTextEncoder, choose_encoder, image_encoder, text_encoder
from ncsam.embed import embed as run_embed
from ncsam.embed.encoder import PRECISIONS

EPILOG = """\b
Examples:
  ncsam embed photos/ --out features.npz
  ncsam embed reviews.csv --text-column review --out reviews.npz
  ncsam embed photos/ --model timm:resnet50.a1_in1k --out features.npz
  ncsam embed photos/ --model my_networks:build --out features.npz
  ncsam embed reviews.csv --model transformers:bert-base-uncased --out x.npz

Rerun the command to resume after an interruption.
"""
_COLUMNS = ("text_column", "label_column", "clean_column", "split_column")
_RARE = frozenset(
    {"pretrained", "model_options", "data_root", "data_options", "download", "size", "max_length", "clean_column"}
    | {"split_column", "precision", "device", "workers"}
)


@click.command(cls=BriefCommand, epilog=EPILOG, rare=_RARE)
@click.argument("data")
@click.option(
    "--model",
    shell_complete=known("model"),
    help="encoder; lite0, minilm, wordllama, timm:NAME, torchvision:NAME, transformers:NAME, module:factory "
    "[chosen by data]",
)
@click.option("--out", required=True, type=Written(), help="the .npz to write")
@click.option("--pretrained", help="name or file of weights [the model's usual ones]")
@settings_option("--model-options", help="options of the model")
@click.option("--data-root", help="folder of a named dataset")
@settings_option("--data-options", help="options of the dataset's reader")
@click.option("--download", is_flag=True, help="download a named dataset if it is missing")
@click.option("--size", type=click.IntRange(min=1), help="side length in pixels [the model's own, else 224]")
@click.option("--max-length", type=click.IntRange(min=1), help="longest text in tokens [256]")
@click.option("--text-column", help="column of the texts [text, sentence, review, ...]")
@click.option("--label-column", help="column of the labels [label, target, ...]")
@click.option("--clean-column", help="column of the true labels [clean_label, true_label, ...]")
@click.option("--split-column", help="column of the splits: train, val, test [split, ...]")
@click.option(
    "--batch-size", type=click.IntRange(min=1), metavar="N", default=64, show_default=True, help="images per batch"
)
@click.option("--precision", type=click.Choice(list(PRECISIONS)), help="[float32; texts: bfloat16 where fast]")
@click.option("--device", help="cpu, cuda, ... [a GPU if there is one]")
@click.option("--workers", default=0, show_default=True, help="processes that decode image files")
@click.option("--quiet", is_flag=True, help="no progress")
def embed(data: str, model: str | None, out: Path, **options: Any) -> None:
    """Write the images or texts of DATA as embeddings of a pretrained model to an .npz file.

    Pass the file to `ncsam train`, `auto` or `compare`. It also holds the labels and file names or texts, so reports
    show the samples and `predict` accepts new files.
    """
    keep([data], out)
    if model is not None and is_reference(model):
        make_folder_importable()
    device = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    columns = {name: options[name] for name in _COLUMNS if options[name] is not None}
    source = {name: options[name] for name in ("data_root", "download", "data_options")}
    source["data_options"] = {**columns, **source["data_options"]}
    dataset = load({"data": data, **source})
    encoder = _chosen(dataset, device, options) if model is None else _named(model, dataset, device, options)
    shown = (lambda text: None) if options["quiet"] else say
    run_embed(dataset, encoder, out, batch_size=options["batch_size"], workers=options["workers"], say=shown)
    here = shlex.quote(str(out))
    say(f"next: ncsam auto {here}; or ncsam train {here} --preset recommended")


def _chosen(dataset: DataSet, device: str, options: dict[str, Any]) -> Encoder | NamedTextEncoder:
    unused = ("pretrained", "model_options", "size", "max_length", "precision")
    given = next((name for name in unused if options[name]), None)
    if given is not None:
        raise click.UsageError(f"--{given.replace('_', '-')} needs --model.")
    encoder, choice = choose_encoder(dataset, device)
    if encoder is None:
        raise bad_value("model", None, f"the name of a model ({choice.reason})")
    say(f"model: {choice.name} ({choice.reason})")
    return encoder


def _named(model: str, dataset: DataSet, device: str, options: dict[str, Any]) -> Encoder | NamedTextEncoder:
    if isinstance(dataset.train.inputs, TextList):
        precision = options["precision"] or "auto"
        return text_encoder(model, device=device, max_length=options["max_length"], precision=precision)
    for option in inspect.signature(image_encoder).parameters.keys() & options["model_options"].keys():
        raise bad_value("model_options", options["model_options"], f"no {option}, which is an option of its own")
    return image_encoder(
        model,
        channels=len(dataset.mean) if dataset.size is not None else 3,
        pretrained=options["pretrained"],
        size=None if options["size"] is None else (options["size"], options["size"]),
        precision=options["precision"] or "32-true",
        device=device,
        **options["model_options"],
    )
