"""Kinds of data, one file each: images, vectors, token sequences, trees of tensors.

Every module in this folder is imported, and every subclass of `Kind` found in it is known. A kind of your own, defined
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
from ncsam.data.stores.base import Kind, Look, Plain, Store
from ncsam.data.types import DataSet, Inputs

__all__ = ["Kind", "Look", "Plain", "Store", "kind_of", "kinds", "open_store", "restored_kind", "saved_kind"]


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def kinds() -> dict[str, type[Kind]]:
    """The kinds of data by name."""
    _import_all()
    found: dict[str, type[Kind]] = {}
    waiting = list(Kind.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        found[kind.name] = kind
        waiting += kind.__subclasses__()
    return found


def _class_of(inputs: Inputs) -> type[Kind]:
    # the one that was defined last is asked first, so that yours may take what one of ours would
    found = next((kind for kind in reversed(kinds().values()) if kind.holds(inputs)), None)
    if found is None:
        held = type(inputs).__name__
        if isinstance(inputs, np.ndarray):
            held = f"{inputs.dtype} array of shape {inputs.shape}"
        raise bad_value(
            "split.inputs", held, "uint8 (N, H, W, C) images, float (N, ...) features, paths, texts, or trees"
        )
    return found


def kind_of(dataset: DataSet) -> Kind:
    """What kind of data a dataset holds, with what must be known of it."""
    return _class_of(dataset.train.inputs).of(dataset)


def open_store(inputs: Inputs, device: torch.device) -> Store:
    """Whatever `Split.inputs` holds, ready to be made into batches."""
    return _class_of(inputs).open(inputs, device)


def described(inputs: Inputs) -> str:
    """How inputs are stored, in a few words."""
    return _class_of(inputs).described(inputs)


def saved_kind(kind: Kind) -> dict[str, Any]:
    """Plain values to keep with a run."""
    return {"kind": kind.name, **kind.state()}


def restored_kind(saved: Mapping[str, Any]) -> Kind:
    """What `saved_kind` described; other values beside it do not matter."""
    known = kinds()
    if saved["kind"] not in known:
        raise unknown_name("kind of data", saved["kind"], known)
    kind: Any = known[saved["kind"]]
    restored: Kind = kind.restored({field.name: saved[field.name] for field in fields(kind)})
    return restored
