"""The model of `model: auto` for each modality, and the options that a model must have to fit the data."""

from __future__ import annotations

from typing import Any

from ncsam.data.modalities import Modality
from ncsam.data.modalities.features import Features
from ncsam.data.modalities.images import Images
from ncsam.data.modalities.text import Texts

_TINY, _THUMBNAIL = 16, 96  # pixels of the longer side
_HIDDEN = [256, 256]
#: Options of our models that say how large their inputs are.
_INPUT_SIZES = {"mlp": "in_features", "text_mean": "tokens"}


def default_model(modality: Modality) -> tuple[str, dict[str, Any]]:
    """Name and options of the model for this data: a modality of your own names it by `default_model()`."""
    match modality:
        case Features():
            return "mlp", {"hidden": _HIDDEN}
        case Texts():
            return "text_mean", {}
        case Images(size=size) if max(size) <= _TINY:
            return "mlp", {"hidden": _HIDDEN}
        case Images(size=size):
            return "resnet18", {"stem": "cifar" if max(size) <= _THUMBNAIL else "imagenet"}
    return modality.default_model()


def required_options(model: str, modality: Modality) -> dict[str, Any]:
    """Options that a model of this name must have to fit the data."""
    option = _INPUT_SIZES.get(model)
    sizes = modality.input_sizes()
    return {option: sizes[option]} if option in sizes else {}
