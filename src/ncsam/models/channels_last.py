"""Memory order of convolutional models: channels last, in which convolutions are faster on CPUs and GPUs alike."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

_Module = TypeVar("_Module", bound=nn.Module)


def is_convolutional(network: nn.Module) -> bool:
    """Whether a model has two-dimensional convolutions.

    Args:
        network: The model.
    """
    return any(isinstance(module, nn.Conv2d) for module in network.modules())


def to_channels_last(network: _Module) -> _Module:
    """Store the weights of two-dimensional convolutions channels last, in place; shapes and values stay.

    Args:
        network: The model. Others than convolutional ones are not changed.

    Returns:
        The model itself.

    Examples:
        >>> to_channels_last(nn.Conv2d(2, 3, 3)).weight.stride()
        (18, 1, 6, 2)
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network
