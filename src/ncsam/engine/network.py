"""The model of a configuration, and its training mode."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ncsam import models
from ncsam._errors import bad_value
from ncsam.engine.config import IN_MEMORY, RunConfig
from ncsam.models.freeze import freeze
from ncsam.models.tapped import as_backbone
from ncsam.pretrained.hub import PREFIX


def check_network(config: RunConfig, num_classes: int, channels: int) -> None:
    """Raise `UsageError` for a mistake in the model's name or options; a model from elsewhere is not built for that."""
    if ":" not in config.model and config.model != IN_MEMORY:
        with torch.device("meta"):  # without memory
            create_network(config, num_classes, channels, pretrained=False)


def create_network(config: RunConfig, num_classes: int, channels: int, *, pretrained: bool = False) -> nn.Module:
    """Build a model by name, with its pretrained weights if wanted and its frozen parts frozen."""
    if config.model == IN_MEMORY:
        raise bad_value("model", config.model, "the model itself, because the run was given it as a Python object")
    weights = (config.pretrained or config.model.startswith(PREFIX)) if pretrained else False
    return prepared(
        config, models.create(config.model, num_classes, channels, pretrained=weights, **config.model_options)
    )


def prepared(config: RunConfig, network: nn.Module) -> nn.Module:
    """The model with a known head where that has its own learning rate, and with its frozen parts frozen."""
    if config.head_lr is not None:
        network = as_backbone(network)
    return freeze(network, config.freeze) if config.freeze else network


def train_mode(networks: Iterable[nn.Module], *, frozen_norms: bool = False) -> None:
    """Models in training mode; with `frozen_norms`, BatchNorm uses and keeps the statistics that it has."""
    for network in networks:
        network.train()
        if frozen_norms:
            for module in network.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
