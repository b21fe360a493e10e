"""A trained model as a file that needs no ncsam: TorchScript, ONNX or safetensors."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value, known_name, need
from ncsam._files import atomic_path
from ncsam._trees import Tree, leaves, named_leaves, tree_map
from ncsam._version import __version__
from ncsam.data.modalities.features import Features
from ncsam.engine.predictor import LoadedRun
from ncsam.engine.whole_model import with_encoder


class Format(NamedTuple):
    suffix: str
    write: Callable[[LoadedRun, Path], None]


class Flat(nn.Module):
    """A network that takes the tensors of a tree one by one, for traces, which know no nested inputs."""

    def __init__(self, network: nn.Module, form: Tree) -> None:
        super().__init__()
        self.network = network
        self.form = tree_map(lambda leaf: None, form)

    def forward(self, *inputs: Tensor) -> Tensor:
        in_order = iter(inputs)
        logits: Tensor = self.network(tree_map(lambda leaf: next(in_order), self.form))
        return logits


def to_torchscript(trained: LoadedRun, path: Path) -> None:
    """A traced network that needs PyTorch alone: `torch.jit.load(path)(inputs)` gives logits.

    Of a tree of tensors it takes each as an argument of its own, in the order that the .json beside it names.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", DeprecationWarning)  # tracing is asked for by name
        warnings.simplefilter(
            "ignore", torch.jit._trace.TracerWarning
        )  # shapes that are checked while tracing stay fixed
        example = trained.example()
        traced = torch.jit.trace(Flat(trained.network, example), tuple(leaves(example)))  # type: ignore[no-untyped-call]
        with path.open("wb") as file:  # torch opens no name that is not UTF-8
            torch.jit.save(traced, file)


def to_onnx(trained: LoadedRun, path: Path) -> None:
    """An ONNX graph with inputs `inputs`, or one for each tensor of a tree, by its name, and outputs `logits`.

    The batch may have any size, and token sequences any length.
    """
    for module in ("onnx", "onnxscript"):
        need(module, "onnx", "exporting to ONNX")
    example = trained.example()
    axes = {axis: torch.export.Dim(name) for axis, name in trained.modality.axes.items()}
    with _silence():
        torch.onnx.export(
            trained.network,
            (),  # not here: a dict at the end would be taken for keyword arguments
            str(path),
            kwargs={"inputs": example},
            dynamo=True,
            external_data=False,
            input_names=input_names(trained),
            output_names=["logits"],
            dynamic_shapes={"inputs": tree_map(lambda leaf: axes, example)},
            verbose=False,
        )


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep what libraries tell their developers (packages they could use, names that will change) from the terminal."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    unread = io.StringIO()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(unread), contextlib.redirect_stderr(unread):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def to_safetensors(trained: LoadedRun, path: Path) -> None:
    """The weights that answer, by name; of several networks, under `0.`, `1.` and so on. What they mean is inside."""
    save_file = need("safetensors.torch", "train", "exporting to safetensors").save_file
    states = [network.state_dict() for network in trained.network.predictors(trained.example())]
    prefixes = [""] if len(states) == 1 else [f"{number}." for number in range(len(states))]
    tensors = {
        prefix + name: value.contiguous().clone()
        for prefix, state in zip(prefixes, states, strict=True)
        for name, value in state.items()
    }
    save_file(tensors, path, metadata={"ncsam": json.dumps(described(trained))})


FORMATS = {
    "torchscript": Format(".pt", to_torchscript),
    "onnx": Format(".onnx", to_onnx),
    "safetensors": Format(".safetensors", to_safetensors),
}


def export_model(trained: LoadedRun, path: Path, kind: str = "torchscript", *, named: Collection[str] = ()) -> str:
    """Write a trained model for use elsewhere, and next to it a .json of its classes and how inputs are prepared.

    A model of embedded images is written with its backbone, but as safetensors without it.

    Args:
        trained: The model of a run.
        path: The file to write.
        kind: One of `FORMATS`.
        named: As in `ncsam.embed.encoder_from`.

    Returns:
        What the inputs are, where they are not the samples that the run was trained on; else "".

    Raises:
        UsageError: The format is unknown, or the file ends in .json.
    """
    write = FORMATS[known_name("format", kind, FORMATS)].write
    words = path.with_suffix(".json")
    if path.suffix == words.suffix:
        raise bad_value("out", str(path), f"a file that does not end in {words.suffix}, where the class names go")
    if kind != "safetensors":
        trained = with_encoder(trained, named)
    with atomic_path(path) as new, atomic_path(words) as new_words:
        write(trained, new)
        new_words.write_text(json.dumps(described(trained), indent=2) + "\n", encoding="utf-8")
    features = trained.modality
    return _encoded(features, features.encoder) if isinstance(features, Features) and features.encoder else ""


def _encoded(features: Features, encoder: Mapping[str, Any]) -> str:
    """What an exported model takes where it was trained on more than features; its encoder is not in the file."""
    if encoder.get("kind") == "table":
        return f"the {len(features.columns)} numbers that the .json describes, not rows of the table"
    return f"embeddings by {encoder.get('name')} (`ncsam embed`), not {encoder.get('kind')}"


def described(trained: LoadedRun) -> dict[str, object]:
    """What one must know to use the weights."""
    config = trained.config
    about = {"model": config.model, "model_options": config.model_options, "method": config.method}
    prepared = {"inputs": input_names(trained), "prepared": trained.modality.prepared}
    return {"ncsam": __version__, **about, **trained.about, **prepared}


def input_names(trained: LoadedRun) -> list[str]:
    """One for each tensor that goes in, in order."""
    return [name or "inputs" for name, _ in named_leaves(trained.example())]
