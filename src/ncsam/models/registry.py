"""Networks by name: ours, a library's (`torchvision:NAME`, `timm:NAME`), or the user's own (`module:factory`)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from ncsam._checks import positive
from ncsam._errors import bad_value, unknown_name
from ncsam._registry import check_options, enter
from ncsam.models.backbone import MOST, Backbone
from ncsam.models.external import from_timm, from_torchvision, from_user
from ncsam.models.mean import mean
from ncsam.models.weights import is_file, load_published, load_weights

_MOST_WEIGHTS = 10_000_000_000  # 40 GB
_BUILDERS: dict[str, Callable[..., Backbone]] = {}
_Builder = TypeVar("_Builder", bound=Callable[..., Backbone])


def register(builder: _Builder) -> _Builder:
    """Enter `builder(num_classes, in_channels=3, *, options...) -> Backbone` under its own name; a decorator."""
    enter(_BUILDERS, "model", builder.__name__, builder)
    return builder


def names() -> list[str]:
    """The names of our own networks, sorted."""
    return sorted(_BUILDERS)


def _refuse_huge(name: str, build: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    """Count the weights where they take no memory: an option too large would end the machine, not the call."""
    with torch.device("meta"):
        weights = sum(p.numel() for p in build().parameters())
    if weights > _MOST_WEIGHTS:
        raise bad_value(f"options of {name}", options, f"they make {weights:,} weights; at most {_MOST_WEIGHTS:,}")


def create(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    *,
    pretrained: bool | str | os.PathLike[str] = False,
    **options: Any,
) -> nn.Module:
    """Build the network called `name` for `num_classes` classes and images of `in_channels` channels.

    name: one of `names()`, "torchvision:NAME", "timm:NAME", or "module:factory" for a function or class of yours; the
        factory is called with `num_classes`, `options`, and `in_channels` if it takes that. All but yours are
        `Backbone`s.
    pretrained: `True` for the usual published weights, a string for particular ones ("imagenet1k_v2"), or a file
        (.pt, .pth, .safetensors) that holds a state dict. Where the file's classes are not as many as yours, its head
        is left out. What was missing or left over is warned about; a shape that does not fit is an error.
    options: the network's own, such as `stem` or `final_bn`.
    """
    if not isinstance(name, str):
        raise bad_value("name", name, "the name of a model, as text")
    num_classes, in_channels = positive("num_classes", num_classes, MOST), positive("in_channels", in_channels, MOST)
    if is_file(pretrained):
        model = create(name, num_classes, in_channels, **options)
        load_weights(model, os.fspath(pretrained))
        return model
    if not isinstance(pretrained, (bool, str)):
        raise bad_value("pretrained", pretrained, "True, False, the name of published weights, or a file of weights")

    source, colon, rest = name.partition(":")
    if source == "torchvision" and colon:
        return from_torchvision(rest, num_classes, in_channels, pretrained, options)
    if source == "timm" and colon:
        return from_timm(rest, num_classes, in_channels, pretrained, options)
    if colon:
        return from_user(source, rest, num_classes, in_channels, pretrained, options)
    if name == "mean":  # of others, so it is on no list: without members there is nothing to build
        check_options(name, mean, options, but=("create", "num_classes", "in_channels"))
        return mean(create, num_classes, in_channels, **options)
    if name not in _BUILDERS:
        raise unknown_name("model", name, [*_BUILDERS, "torchvision:NAME", "timm:NAME", "module:factory"])
    options = check_options(name, _BUILDERS[name], options, but=("num_classes", "in_channels"))
    build = functools.partial(_BUILDERS[name], num_classes, in_channels, **options)
    _refuse_huge(name, build, {"num_classes": num_classes, "in_channels": in_channels, **options})
    network = build()
    if pretrained:
        load_published(network, name, pretrained)
    return network
