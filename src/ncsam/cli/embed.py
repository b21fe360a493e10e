"""`ncsam embed`."""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import Any

import click
import torch

from ncsam._errors import bad_value
from ncsam.cli.complete import known
from ncsam.cli.data import load
from ncsam.cli.kinds import settings_option
from ncsam.cli.output import say
from ncsam.cli.paths import Written, keep
from ncsam.embed import Transformer, embed_texts, image_encoder, read_texts
from ncsam.embed import embed as run_embed
from ncsam.embed.encoder import PRECISIONS

EPILOG = """\b
Examples:
  ncsam embed photos/ --model timm:resnet50.a1_in1k --out features.npz
  ncsam embed cifar10 --model torchvision:resnet18 --size 128 --out cifar10.npz
  ncsam embed photos/ --model my_networks:build --pretrained weights.safetensors --out features.npz
  ncsam embed reviews.csv --model transformers:distilbert-base-uncased --text-column review --out reviews.npz

What was stopped goes on where it stopped: give the same command again.
"""


@click.command(epilog=EPILOG)
@click.argument("data")
@click.option("--model", required=True, shell_complete=known("model"), help="network whose features to take")
@click.option("--out", required=True, type=Written(), help="the .npz to write")
@click.option("--pretrained", help="name or file of weights [the model's usual ones]")
@settings_option("--model-options", help="options of the network")
@click.option("--data-root", help="where a named dataset lies")
@settings_option("--data-options", help="options of the dataset's reader")
@click.option("--download", is_flag=True, help="fetch a named dataset if it is not there")
@click.option("--size", type=click.IntRange(min=1), help="pixels a side [as the network was trained, else 224]")
@click.option("--text-column", help="column of a .csv or .tsv that holds texts, for transformers:NAME")
@click.option("--label-column", help="column of the labels, for texts [label]")
@click.option("--split-column", help="column that says train or test, for texts [all are for training]")
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True, help="samples at a time")
@click.option("--precision", type=click.Choice(list(PRECISIONS)), default="32-true", show_default=True)
@click.option("--device", help="where to compute, such as cpu or cuda [a GPU where there is one]")
@click.option("--workers", default=0, show_default=True, help="processes that decode image files")
@click.option("--quiet", is_flag=True, help="no progress")
def embed(data: str, model: str, out: Path, **options: Any) -> None:
    """Turn the images or texts of DATA into vectors with a pretrained network, and write them to an .npz file.

    Labels, class names and the names of the files are kept: `ncsam train`, `auto` and `compare` take the file, and
    `label issues` names the images.
    """
    keep([data], out)
    device = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    shown = (lambda text: None) if options["quiet"] else say
    shared = {"batch_size": options["batch_size"], "say": shown}
    library, _, name = model.partition(":")
    if library == "transformers" or options["text_column"]:
        if library != "transformers" or not options["text_column"]:
            raise click.UsageError("Texts need both --model transformers:NAME and --text-column.")
        texts, table = read_texts(Path(data), options["text_column"], options["label_column"], options["split_column"])
        encoder = Transformer(name, device=device, precision=options["precision"])
        embed_texts(texts, table, encoder, out, **shared)
    else:
        dataset = load({"data": data, **{name: options[name] for name in ("data_root", "download", "data_options")}})
        for option in inspect.signature(image_encoder).parameters.keys() & options["model_options"].keys():
            raise bad_value("model_options", options["model_options"], f"without {option}, which is given besides")
        images = image_encoder(
            model,
            channels=len(dataset.mean) if dataset.size is not None else 3,
            pretrained=options["pretrained"],
            size=None if options["size"] is None else (options["size"], options["size"]),
            precision=options["precision"],
            device=device,
            **options["model_options"],
        )
        run_embed(dataset, images, out, workers=options["workers"], **shared)
    here = shlex.quote(str(out))
    say(f"next: ncsam auto {here}; or ncsam train {here} --preset recommended")
