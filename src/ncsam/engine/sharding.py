"""Weights spread over ranks (FSDP): set up, and brought together for checkpoints.

A checkpoint contains full tensors, whatever the strategy, so that its model can be used anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam.engine.saved_forms import refuse_other_optimizer
from ncsam.vectors.arithmetic import is_dtensor
from ncsam.vectors.ranks import placed_like

if TYPE_CHECKING:  # each takes long to import, and only sharded runs need it
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from torch.distributed.device_mesh import DeviceMesh


def fsdp(ranks: int) -> ModelParallelStrategy:
    """Fabric's strategy that spreads weights, gradients and optimizer state over all ranks by torch's `fully_shard`."""
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    return ModelParallelStrategy(_shard, data_parallel_size=ranks, tensor_parallel_size=1)


def _shard(network: nn.Module, mesh: DeviceMesh) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    fully_shard(network, mesh=mesh["data_parallel"])
    return network


def is_sharded(network: nn.Module) -> bool:
    return any(is_dtensor(p) for p in network.parameters())


def full_state(state: Any) -> Any:
    """The same nested state with every sharded tensor gathered, on the CPU. Every rank must call it."""
    if isinstance(state, Tensor) and is_dtensor(state):
        return state.full_tensor().cpu()
    if isinstance(state, dict):
        return {name: full_state(value) for name, value in state.items()}
    return [full_state(value) for value in state] if isinstance(state, list) else state


def _placed(value: Any, parameter: Tensor) -> Any:
    """A full tensor of a parameter's shape, sharded like it; anything else unchanged."""
    return placed_like(parameter, value) if isinstance(value, Tensor) and value.shape == parameter.shape else value


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Load full tensors into a model, sharded or not."""
    there = network.state_dict()
    network.load_state_dict({name: _placed(value, there[name]) for name, value in state.items()})


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load full tensors into an optimizer, of sharded parameters or not."""
    refuse_other_optimizer(optimizer, state)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    cut = {
        number: {name: _placed(value, params[number]) for name, value in entry.items()}
        for number, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": cut})


def share_buffers(network: nn.Module) -> None:
    """Give all ranks the first one's buffers (BatchNorm's statistics), as DDP does by itself."""
    for buffer in network.buffers():
        dist.broadcast(buffer, src=0)
