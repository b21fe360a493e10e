"""Evaluation mode for the length of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(models: Iterable[nn.Module]) -> Iterator[None]:
    """Models in evaluation mode; afterwards every module is in the mode that it had.

    Args:
        models: The models; their modules are switched one by one, because a model may mix modes.
    """
    before = [(module, module.training) for model in models for module in model.modules()]
    for module, _ in before:
        module.training = False
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
