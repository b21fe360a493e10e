"""Freeze parts of a model: no gradient, no statistics, no dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from ncsam._errors import unknown_name
from ncsam.models.tapped import as_backbone

BACKBONE = "backbone"


def freeze(network: nn.Module, parts: Sequence[str]) -> nn.Module:
    """Freeze the parameters and modules of a model whose names begin with one of `parts`.

    Frozen modules stay in evaluation mode whatever `train()` says, so that BatchNorm keeps its statistics. With a
    frozen backbone, the model also takes features in the place of images.

    Args:
        network: The model.
        parts: Beginnings of names; "backbone" is everything but the head. A model that is no `Backbone` is then wrapped
            into one by `as_backbone`.

    Returns:
        The model.
    """
    if BACKBONE in parts:
        network = as_backbone(network)
        head = f"{network.head_name}."
        frozen = [name for name, _ in network.named_parameters() if not name.startswith(head)]
        still = [name for name, _ in network.named_modules() if name and not head.startswith(f"{name}.")]
        _set(network, "features", partial(_known_features, network.features))
    else:
        frozen, still = [], []
    for part in (part for part in parts if part != BACKBONE):
        named = [name for name, _ in network.named_parameters() if name.startswith(part)]
        if not named:
            known = {name.partition(".")[0] for name, _ in network.named_parameters()}
            raise unknown_name("part of the model (freeze)", part, {*known, BACKBONE})
        frozen += named
        still += [name for name, _ in network.named_modules() if name.startswith(part)]
    for name in frozen:
        network.get_parameter(name).requires_grad_(False)
    for name in still:
        module = network.get_submodule(name)
        _set(module, "train", partial(_stay, module))
        module.eval()
    return network


def _set(module: nn.Module, name: str, value: Callable[..., object]) -> None:
    object.__setattr__(module, name, value)  # also where a part of the model has the same name


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(module, False)


def _known_features(features: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`x` itself where it is features already: one vector a sample."""
    return x if x.dim() == 2 else features(x)
