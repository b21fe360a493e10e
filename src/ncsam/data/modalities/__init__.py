"""Modalities, one file each: images, features, texts, nested arrays.

Every module in this folder is imported, and every subclass of `Modality` found in it is known. Your own, defined
anywhere, is known as soon as its module is imported.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import torch

from ncsam._errors import bad_value, unknown_name
from ncsam.data.modalities.base import BatchTransform, Modality, Plain, Store
from ncsam.data.types import DataSet, Inputs

__all__ = [
    "BatchTransform",
    "Modality",
    "Plain",
    "Store",
    "modalities",
    "modality_of",
    "open_store",
    "restored_modality",
    "saved_modality",
]


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def modalities() -> dict[str, type[Modality]]:
    """The kinds of data by name."""
    _import_all()
    found: dict[str, type[Modality]] = {}
    waiting = list(Modality.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        found[kind.name] = kind
        waiting += kind.__subclasses__()
    return found


def _class_of(inputs: Inputs) -> type[Modality]:
    # the one that was defined last is asked first, so that yours may take what one of ours would
    found = next((kind for kind in reversed(modalities().values()) if kind.holds(inputs)), None)
    if found is None:
        held = type(inputs).__name__
        if isinstance(inputs, np.ndarray):
            held = f"{inputs.dtype} array of shape {inputs.shape}"
        raise bad_value(
            "split.inputs", held, "uint8 (N, H, W, C) images, float (N, ...) features, paths, texts or nested arrays"
        )
    return found


def modality_of(dataset: DataSet) -> Modality:
    """What kind of data a dataset holds, with what must be known of it.

    Args:
        dataset: Its training split decides.

    Raises:
        UsageError: No modality knows such inputs.
    """
    return _class_of(dataset.train.inputs).of(dataset)


def open_store(inputs: Inputs, device: torch.device) -> Store:
    """Whatever `Split.inputs` holds, ready to be made into batches.

    Args:
        inputs: `Split.inputs`.
        device: Where samples in memory are kept, and where batches arrive.

    Raises:
        UsageError: No modality knows such inputs.
    """
    return _class_of(inputs).open(inputs, device)


def described(inputs: Inputs) -> str:
    """How inputs are stored, in a few words.

    Args:
        inputs: `Split.inputs`.
    """
    return _class_of(inputs).described(inputs)


def saved_modality(kind: Modality) -> dict[str, Any]:
    """Plain values to keep with a run.

    Args:
        kind: What `modality_of` returned for the dataset of the run.
    """
    return {"kind": kind.name, **kind.state()}


def restored_modality(saved: Mapping[str, Any]) -> Modality:
    """What `saved_modality` described; other values beside it do not matter.

    Args:
        saved: The modality's name as `kind`, and its fields.

    Raises:
        UsageError: There is no modality of that name.
    """
    known = modalities()
    if saved["kind"] not in known:
        raise unknown_name("kind of data", saved["kind"], known)
    kind: Any = known[saved["kind"]]
    restored: Modality = kind.restored({field.name: saved[field.name] for field in fields(kind)})
    return restored
