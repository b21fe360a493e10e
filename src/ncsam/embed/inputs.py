"""New samples as inputs of a trained model: files, texts, arrays or tables, encoded as the training samples were."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ncsam._errors import bad_value
from ncsam.data.modalities import Modality
from ncsam.data.modalities.features import Features
from ncsam.data.modalities.images import Images
from ncsam.data.modalities.text import TextList, Texts, Words, tokenizer_from
from ncsam.data.sources import as_array, frame_columns, is_frame, is_texts
from ncsam.data.types import DataSet, Inputs, Split
from ncsam.embed.cache import FeatureCache
from ncsam.embed.features import check_kind, encode, encoder_from
from ncsam.embed.text import NamedTextEncoder


@dataclass(frozen=True)
class NewSamples:
    """New samples before they are encoded.

    Attributes:
        names: A name for each.
        inputs: The samples.
        texts: The texts, if the samples are texts or features of known texts.
    """

    names: list[str]
    inputs: Inputs
    texts: list[str] | None


def read_samples(modality: Modality, new: Any) -> NewSamples:
    """Read new samples for a model that was trained on data of this modality; the arguments are those of `read_inputs`.

    Raises:
        UsageError: The samples do not fit the model; the message says what it takes.
    """
    if isinstance(new, (DataSet, Split)):
        held = new.train if isinstance(new, DataSet) else new
        names, inputs = [held.path(row) or f"[{row}]" for row in range(len(held))], held.inputs
        original = held.of_original().inputs
    else:
        if _are_paths(new):
            names, inputs = _from_paths(modality, _paths(new))
        else:
            inputs = _in_memory(modality, new)
            names = [f"[{row}]" for row in range(len(inputs))]
        original = inputs
    return NewSamples(names, inputs, list(original) if isinstance(original, TextList) else None)


def read_inputs(
    modality: Modality,
    new: Any,
    *,
    cache: FeatureCache | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: str = "cpu",
    named: Collection[str] = (),
) -> tuple[list[str], Inputs]:
    """New samples as inputs for a model that was trained on data of this modality.

    Args:
        modality: Of the run; features carry the description of their encoder.
        new: A path or a list of paths (image files, folders, tables, `.txt` and `.npz` files), a list of texts, an
            array, a DataFrame or a dict of columns, a `Split`, or a `DataSet`, whose training samples are taken.
        cache: Where computed features are kept. Default: nowhere.
        batch_size, workers: Of the encoder.
        device: Where the encoder computes.
        named: As in `encoder_from`.

    Returns:
        A name for each sample, and the inputs.

    Raises:
        UsageError: The samples do not fit the model; the message says what it takes.
    """
    found = read_samples(modality, new)
    return found.names, encoded_inputs(modality, found.inputs, cache, batch_size, workers, device, named)


def _are_paths(new: Any) -> bool:
    """One path, or a list of path objects, or of texts all of which are files or folders."""
    if isinstance(new, str | os.PathLike):
        return True
    if not isinstance(new, list | tuple) or not new:
        return False
    return all(isinstance(each, os.PathLike) or (isinstance(each, str) and _exists(each)) for each in new)


def _exists(text: str) -> bool:
    try:
        return Path(text).expanduser().exists()
    except (OSError, ValueError):  # a text too long for a path, or with a zero in it
        return False


def _paths(new: Any) -> list[Path]:
    listed = [new] if isinstance(new, str | os.PathLike) else list(new)
    found = [Path(path).expanduser() for path in listed]
    missing = next((path for path in found if not path.exists()), None)
    if missing is not None:
        raise FileNotFoundError(f"no such file or folder: {str(missing)!r}")
    return found


def _from_paths(modality: Modality, paths: list[Path]) -> tuple[list[str], Inputs]:
    description = modality.encoder if isinstance(modality, Features) else None
    if description is None or description.get("kind") == "table" or all(path.suffix == ".npz" for path in paths):
        return modality.read(paths)
    return _ORIGINAL[description["kind"]](description).read(paths)


def _image_reader(description: Mapping[str, Any]) -> Modality:
    return Images((0.5,) * 3, (0.5,) * 3, tuple(description["size"]), 3)


def _text_reader(description: Mapping[str, Any]) -> Modality:
    return Texts({"words": []}, 0, 2, int(description["max_length"]), str(description.get("column", "")))


#: What reads files of the samples that an encoder takes.
_ORIGINAL = {"images": _image_reader, "texts": _text_reader}


def _in_memory(modality: Modality, new: Any) -> Inputs:
    description = modality.encoder if isinstance(modality, Features) else None
    if is_frame(new) or (isinstance(new, Mapping) and isinstance(modality, Features)):
        table = frame_columns(new) if is_frame(new) else {str(name): list(values) for name, values in new.items()}
        return _of_table(modality, table, description)
    if is_texts(new):
        if isinstance(modality, Texts):
            return TextList(list(new), tokenizer_from(modality.tokenizer), modality.length, modality.column)
        return TextList(list(new), Words([]))
    inputs = as_array(new)
    if np.ndim(inputs) == 0:
        raise bad_value("inputs", new, "samples: a path, a list of paths or texts, an array, or a DataFrame")
    if isinstance(modality, Features) and description is None and np.shape(inputs)[1:] != modality.shape:
        raise bad_value("inputs", f"shape {np.shape(inputs)}", f"samples of shape {modality.shape}")
    if isinstance(inputs, np.ndarray) and inputs.dtype == np.uint8 and inputs.ndim == 3:
        return inputs[..., None]
    found: Inputs = inputs
    return found


def _of_table(modality: Modality, table: dict[str, list[Any]], description: Mapping[str, Any] | None) -> Inputs:
    if isinstance(modality, Features) and (description is None or description.get("kind") == "table"):
        return modality.of_table(table)
    column = modality.column if isinstance(modality, Texts) else str((description or {}).get("column", ""))
    name = column if column in table else next((name for name, cells in table.items() if is_texts(cells)), None)
    if name is None:
        raise bad_value("inputs", list(table), f"a column of {modality.name}")
    return _in_memory(modality, [str(text) for text in table[name]])


def encoded_inputs(
    modality: Modality,
    inputs: Inputs,
    cache: FeatureCache | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: str = "cpu",
    named: Collection[str] = (),
) -> Inputs:
    """The features of the inputs, if the model takes features and the inputs are none yet; else the inputs themselves.

    The arguments are those of `read_inputs`.
    """
    if not isinstance(modality, Features) or modality.encoder is None or _are_features(inputs, modality):
        return inputs
    if modality.encoder.get("kind") == "table":
        found = f"{type(inputs).__name__} of shape {np.shape(inputs)}"
        raise bad_value(
            "inputs", found, "rows with the columns of the run: a DataFrame (frame.iloc[[0]]), a dict or a file"
        )
    encoder = encoder_from(modality.encoder, device=device, named=named)
    check_kind(inputs, encoder, "new samples")
    if isinstance(encoder, NamedTextEncoder):
        return encode(inputs, encoder, cache)
    return encode(inputs, encoder, cache, batch_size, workers)


def _are_features(inputs: Inputs, modality: Features) -> bool:
    floats: npt.NDArray[Any] | None = inputs if isinstance(inputs, np.ndarray) and inputs.dtype.kind == "f" else None
    return floats is not None and floats.shape[1:] == modality.shape
