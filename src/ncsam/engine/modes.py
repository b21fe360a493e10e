"""Training and evaluation mode of networks, module by module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def evaluating(networks: Iterable[nn.Module]) -> Iterator[None]:
    """Networks in evaluation mode; afterwards every module is in the mode that it had."""
    before = [(module, module.training) for network in networks for module in network.modules()]
    for module, _ in before:
        module.training = False
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def train_mode(networks: Iterable[nn.Module], *, frozen_norms: bool = False) -> None:
    """Networks in training mode, but for BatchNorm where it shall use and keep the statistics it has."""
    for network in networks:
        network.train()
        if frozen_norms:
            for module in network.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
