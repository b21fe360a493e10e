"""Sharpness-aware optimizers inside the wrappers that frameworks put around them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ncsam.optim import SharpnessAware
from ncsam.vectors.arithmetic import is_sharded


def sharpness_aware_inside(optimizer: Any) -> SharpnessAware | None:
    """The optimizer under Lightning's or Accelerate's wrapper, if it is one of ours.

    Lightning's wrapper claims to be of the class that it wraps, so the class alone proves nothing.

    Args:
        optimizer: An optimizer, possibly wrapped by a framework.

    Returns:
        The sharpness-aware optimizer, or `None` if the innermost optimizer is another one.
    """
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer if isinstance(optimizer, SharpnessAware) else None


def join_ranks(optimizer: SharpnessAware) -> None:
    """Set the optimizer's process group if the framework hides DDP from it; sharded parameters carry their own.

    Args:
        optimizer: The optimizer; changed in place if several ranks run and it has no process group.
    """
    if optimizer.process_group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        params = [p for group in optimizer.param_groups for p in group["params"]]
        if not is_sharded(params):
            optimizer.process_group = dist.group.WORLD
