"""Modalities, one file each: images, features, texts, nested arrays.

Every module in this folder is imported, and every subclass of `Modality` found in it is known. Your own, defined
anywhere, is known as soon as its module is imported.
"""

from __future__ import annotations

from ncsam.data.modalities.base import (
    BatchTransform,
    Modality,
    Plain,
    Store,
    described,
    modalities,
    modality_of,
    open_store,
    restored_modality,
    saved_modality,
)

__all__ = [
    "BatchTransform",
    "Modality",
    "Plain",
    "Store",
    "described",
    "modalities",
    "modality_of",
    "open_store",
    "restored_modality",
    "saved_modality",
]
