"""Pretrained weights from their publisher or from a file: only tensors are read, and a report says what was loaded."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value, need, unknown_name

_log = logging.getLogger("ncsam.models")
_SUFFIXES = (".pt", ".pth", ".safetensors")


class _Published(NamedTuple):
    file: str  # ends in the first eight digits of its SHA-256, which the loader verifies
    first_layer: str
    shape: tuple[int, ...]


def _resnet(file: str) -> _Published:
    return _Published(file, "conv1.weight", (64, 3, 7, 7))


_HOST = "https://download.pytorch.org/models/"
#: torchvision's ImageNet weights. The first of each is what `pretrained=True` means: the one that the noisy-label
#: papers with pretrained backbones had.
_PUBLISHED: dict[str, dict[str, _Published]] = {
    "resnet18": {"imagenet1k_v1": _resnet("resnet18-f37072fd.pth")},
    "resnet34": {"imagenet1k_v1": _resnet("resnet34-b627a593.pth")},
    "resnet50": {
        "imagenet1k_v1": _resnet("resnet50-0676ba61.pth"),
        "imagenet1k_v2": _resnet("resnet50-11ad3fa6.pth"),
    },
    "vgg19_bn": {"imagenet1k_v1": _Published("vgg19_bn-c79401a0.pth", "features.0.weight", (64, 3, 3, 3))},
}


@dataclass(frozen=True)
class LoadReport:
    """What `load_weights` did, by names of tensors.

    Attributes:
        source: The file, or "the given weights".
        loaded: Tensors that were loaded.
        missing: Tensors of the model that the source lacks.
        unexpected: Tensors of the source that the model lacks.
        fresh_head: Tensors of a head that was left as it was initialized.
    """

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    fresh_head: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"{self.source}: {len(self.loaded)} tensors loaded"]
        if self.fresh_head:
            parts.append(f"head not loaded, its classes differ ({_some(self.fresh_head)})")
        if self.missing:
            parts.append(f"{len(self.missing)} missing in the file ({_some(self.missing)})")
        if self.unexpected:
            parts.append(f"{len(self.unexpected)} unknown to the model ({_some(self.unexpected)})")
        return "; ".join(parts)


def load_weights(model: nn.Module, source: str | os.PathLike[str] | Mapping[str, Tensor]) -> LoadReport:
    """Load a state dict, or a file that holds one, into a model.

    A checkpoint that keeps its weights under "state_dict" or "model" is opened, and the prefixes of data-parallel and
    compiled models ("module.", "_orig_mod.") are dropped. A `Backbone`'s head is left as initialized if the number of
    classes differs. Missing or unexpected tensors are reported as a warning.

    Args:
        model: The model.
        source: A state dict, or a file (.pt, .pth, .safetensors) that holds one.

    Returns:
        What was loaded, missing and unexpected.

    Raises:
        ValueError: Another shape does not fit, or nothing does; then nothing is loaded.
    """
    if isinstance(source, Mapping):
        return _load(model, source, "the given weights")
    return _load(model, _read(Path(source)), Path(source).name)


def load_published(model: nn.Module, name: str, which: bool | str) -> LoadReport:
    """Download the published weights of the model called `name`, verify their hash, and load them.

    Args:
        model: The model.
        name: Name of the model.
        which: True for the first version, or its name.
    """
    if name not in _PUBLISHED:
        allowed = f"False or a file, because {name} has no published weights ({', '.join(_PUBLISHED)} have)"
        raise bad_value("pretrained", which, allowed)
    versions = _PUBLISHED[name]
    if isinstance(which, str) and which not in versions:
        raise unknown_name(f"pretrained weights of {name}", which, [*versions, *(f"a file in {s}" for s in _SUFFIXES)])
    published = versions[which] if isinstance(which, str) else next(iter(versions.values()))
    own = tuple(model.state_dict()[published.first_layer].shape)
    if own != published.shape:  # said before the download, not after it
        remedy = "; build it with stem='imagenet' and in_channels=3" if published.shape[-1] == 7 else ""
        raise _misfit(published.file, [(published.first_layer, published.shape, own)], remedy)
    state = torch.hub.load_state_dict_from_url(
        _HOST + published.file, map_location="cpu", check_hash=True, weights_only=True
    )
    return _load(model, state, published.file)


def is_file(pretrained: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether `pretrained` names a file of weights rather than a published version.

    Args:
        pretrained: What `create` was given.
    """
    return isinstance(pretrained, (str, os.PathLike)) and os.fspath(pretrained).endswith(_SUFFIXES)


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"pretrained={str(path)!r}: there is no such file")
    try:
        if path.suffix == ".safetensors":
            content = need("safetensors.torch", "train", f"reading {path.name}").load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:  # zip, pickle and safetensors each have their own
        raise ValueError(
            f"pretrained={str(path)!r} is not a file of weights (tensors only): it is damaged, or holds more"
        ) from error
    if not isinstance(content, Mapping):
        raise ValueError(f"pretrained={str(path)!r} holds a {type(content).__name__}, not a state dict")
    return content


def _plain(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors by their bare names, out of whatever a training script wrapped them in."""
    for key in ("state_dict", "model"):
        if isinstance(state.get(key), Mapping):
            state = state[key]
    for prefix in ("module.", "_orig_mod."):
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _load(model: nn.Module, state: Mapping[str, Any], source: str) -> LoadReport:
    given, own = _plain(state), model.state_dict()
    head = getattr(model, "head_name", None)
    differing = [name for name in own if name in given and given[name].shape != own[name].shape]
    fresh = [name for name in differing if head and name.rpartition(".")[0] == head]
    if len(fresh) < len(differing):
        rest = [(name, tuple(given[name].shape), tuple(own[name].shape)) for name in differing if name not in fresh]
        raise _misfit(source, rest)
    if head and fresh:  # a head goes as a whole: a bias that happens to fit is left out with its weight
        fresh = [name for name in own if name.rpartition(".")[0] == head]
    loaded = [name for name in own if name in given and name not in fresh]
    if not loaded:
        raise ValueError(
            f"{source}: no tensor has a name of this model; it holds {_some(list(given)) or 'no tensors'}, "
            f"the model has {_some(list(own))}"
        )
    model.load_state_dict({name: given[name] for name in loaded}, strict=False)
    report = LoadReport(
        source=source,
        loaded=tuple(loaded),
        # Old files lack BN's step counters, which nothing here reads.
        missing=tuple(name for name in own if name not in given and not name.endswith("num_batches_tracked")),
        unexpected=tuple(name for name in given if name not in own),
        fresh_head=tuple(fresh),
    )
    if report.missing or report.unexpected:
        warnings.warn(str(report), stacklevel=3)
    _log.info("%s", report)
    return report


def _misfit(source: str, shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]], remedy: str = "") -> ValueError:
    listed = _some([f"{name} is {theirs}, the model's {own}" for name, theirs, own in shapes], separator="; ")
    return ValueError(f"{source} does not fit this model: {listed}{remedy}")


def _some(items: list[str] | tuple[str, ...], limit: int = 5, separator: str = ", ") -> str:
    more = f"{separator}and {len(items) - limit} more" if len(items) > limit else ""
    return separator.join(items[:limit]) + more
