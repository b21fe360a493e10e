"""The network that a configuration asks for."""

from __future__ import annotations

import torch
from torch import nn

from ncsam import models
from ncsam.engine.config import RunConfig
from ncsam.models.freeze import freeze
from ncsam.models.tapped import as_backbone


def check_network(config: RunConfig, num_classes: int, channels: int) -> None:
    """Raise for a mistake in the network's name or options; none from elsewhere is built for that."""
    if ":" not in config.model:
        with torch.device("meta"):  # without memory
            create_network(config, num_classes, channels, pretrained=False)


def create_network(config: RunConfig, num_classes: int, channels: int, *, pretrained: bool) -> nn.Module:
    """Built by name, with its pretrained weights if they are wanted, and its frozen parts frozen."""
    weights = config.pretrained if pretrained else False
    network = models.create(config.model, num_classes, channels, pretrained=weights, **config.model_options)
    if config.head_lr is not None:
        network = as_backbone(network)  # which knows its head
    return freeze(network, config.freeze) if config.freeze else network
