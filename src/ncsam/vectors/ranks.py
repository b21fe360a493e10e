"""Parameters and gradients over several ranks: which ranks share them, sums, means, agreement, shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ncsam.vectors.arithmetic import is_dtensor, local, scale_

_BUCKET_BYTES = 25 << 20  # as DDP's: large enough for bandwidth, small enough not to double the gradients


def is_sharded(params: Iterable[Tensor]) -> bool:
    """Whether any parameter is a DTensor, as `fully_shard` makes them."""
    return any(is_dtensor(p) for p in params)


def sum_over_ranks(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """All-reduce the tensors in place, in flat buckets of one dtype."""
    bucket: list[Tensor] = []
    size = 0
    for t in local(tensors):
        if bucket and (t.dtype != bucket[0].dtype or size + t.nbytes > _BUCKET_BYTES):
            _reduce(bucket, group)
            bucket, size = [], 0
        bucket.append(t)
        size += t.nbytes
    if bucket:
        _reduce(bucket, group)


def average_over_ranks(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """The mean over the ranks, in place."""
    sum_over_ranks(tensors, group)
    scale_(tensors, 1.0 / dist.get_world_size(group))


def _reduce(bucket: list[Tensor], group: dist.ProcessGroup) -> None:
    flat = torch.cat([t.reshape(-1) for t in bucket])
    dist.all_reduce(flat, group=group)
    start = 0
    for t in bucket:
        t.copy_(flat[start : start + t.numel()].view(t.shape))
        start += t.numel()


def all_agree(flag: bool, device: torch.device, group: dist.ProcessGroup | None) -> bool:
    """True if `flag` is true on every rank: a pass that only some ranks run would hang the others."""
    if group is None:
        return flag
    votes = torch.tensor([int(flag)], device=device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
    return bool(votes.item())


def placed_like(parameter: Tensor, value: Tensor) -> Tensor:
    """A tensor on a parameter's device, cut as the parameter is where that is sharded and the tensor is whole."""
    value = value.to(parameter.device)
    if is_dtensor(parameter) and not is_dtensor(value):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value


def data_parallel(modules: Iterable[nn.Module]) -> list[nn.parallel.DistributedDataParallel]:
    """The DDP wrappers among modules and their children."""
    return [m for root in modules for m in root.modules() if isinstance(m, nn.parallel.DistributedDataParallel)]


def find_group(modules: Iterable[nn.Module], params: Iterable[Tensor]) -> dist.ProcessGroup | None:
    """The process group over which gradients are averaged: DDP's, or the mesh of sharded parameters."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    for wrapper in data_parallel(modules):
        group = wrapper.process_group
        return group if dist.get_world_size(group) > 1 else None
    for p in params:
        if is_dtensor(p):
            if p.device_mesh.ndim > 1:
                raise ValueError(
                    "process_group=None cannot be resolved: the parameters lie on a mesh of "
                    f"{p.device_mesh.ndim} dimensions; pass the group of ranks that hold different samples"
                )
            group = p.device_mesh.get_group()
            return group if dist.get_world_size(group) > 1 else None
    return None


def joining(modules: Iterable[nn.Module]) -> bool:
    """Whether a DDP model runs under torch's `Join`, where ranks may run out of batches at different steps."""
    return any(getattr(getattr(m, "_join_config", None), "enable", False) for m in data_parallel(modules))


def without_sync(modules: Iterable[nn.Module]) -> ExitStack:
    """DDP's `no_sync` of all these modules: gradients stay each rank's own."""
    stack = ExitStack()
    for wrapper in data_parallel(modules):
        stack.enter_context(wrapper.no_sync())
    return stack
