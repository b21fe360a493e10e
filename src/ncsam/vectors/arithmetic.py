"""Arithmetic on lists of parameters or gradients: local views, one global norm, scaled addition.

Elementwise work is done on local shards, which is right for any placement and spares DTensor's dispatch. Norms and
dot products are global: over all groups, devices and shards, the same number on every rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is distributed.

    Args:
        tensor: Any tensor.
    """
    return isinstance(tensor, _dtensor_type())


def _dtensor_type() -> type | tuple[()]:
    """The class of distributed tensors. Where its module was not imported (it is slow to import), there are none."""
    kind: type | tuple[()] = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    return kind


def _any_dtensor(tensors: Sequence[Tensor]) -> bool:
    """By one look at each kind of tensor: small models notice a loop over their parameters."""
    distributed = _dtensor_type()
    return any(issubclass(kind, distributed) for kind in set(map(type, tensors)))


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this process stores of each tensor, as real numbers; writing to it writes to the tensor.

    Args:
        tensors: Whole or sharded, real or complex.

    Returns:
        One tensor for each: the local shard of a DTensor, and complex numbers as pairs of real ones.
    """
    shards = list(tensors)
    distributed = _dtensor_type()
    if _any_dtensor(shards) or any(map(Tensor.is_complex, shards)):
        with torch.no_grad():  # outside of it, these would return a node of the graph, not the storage
            shards = [cast("DTensor", t).to_local() if isinstance(t, distributed) else t for t in shards]
            shards = [torch.view_as_real(t) if t.is_complex() else t for t in shards]
    return shards


def global_norm(tensors: Sequence[Tensor]) -> float:
    """Euclidean norm of all `tensors` as one vector.

    Args:
        tensors: Of any shapes, devices and dtypes, whole or sharded.

    Returns:
        The norm, the same on every rank for sharded tensors; 0 for an empty list.
    """
    sharded = [t for t in tensors if is_dtensor(t)] if _any_dtensor(tensors) else []
    whole = [t for t in tensors if not is_dtensor(t)] if sharded else tensors
    parts = [_norm(group) for group in _by_device(whole)]
    for group in _by_mesh(sharded):
        parts.append(cast("DTensor", torch.nn.utils.get_total_norm(group)).full_tensor())
    if not parts:
        return 0.0
    if len(parts) == 1:
        return float(parts[0])
    return float(torch.stack([p.to(parts[0].device, torch.float64) for p in parts]).norm())


def global_dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Real inner product of two lists as two vectors.

    Args:
        left: The first vector.
        right: The second, with the same shapes and placements.
    """
    total = 0.0
    sharded: dict[int, list[Tensor]] = {}
    meshes = {}
    for a, b in zip(left, right, strict=True):
        (x,), (y,) = local([a]), local([b])
        part = torch.sum(x * y)
        if is_dtensor(a) and any(p.is_shard() for p in a.placements):
            meshes[id(a.device_mesh)] = a.device_mesh
            sharded.setdefault(id(a.device_mesh), []).append(part)
        else:
            total += float(part)
    for key, parts in sharded.items():
        total += float(_sum_over_shards(torch.stack(parts).sum(), meshes[key]))
    return total


def cosine(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Cosine of the angle between two lists as two vectors; not a number if one of them is zero.

    Args:
        left: The first vector.
        right: The second, with the same shapes and placements.
    """
    norms = global_norm(left) * global_norm(right)
    return global_dot(left, right) / norms if norms > 0 else float("nan")


def add_scaled_(tensors: Sequence[Tensor], directions: Sequence[Tensor], scale: float | Sequence[float]) -> None:
    """tensors += scale * directions, in place; `scale` is one factor for all tensors, or one for each.

    Args:
        tensors: What is changed.
        directions: One for each tensor, with its shape and placement.
        scale: One factor for all tensors, or a sequence of one for each.
    """
    if not isinstance(scale, float | int):
        for tensor, direction, factor in zip(local(tensors), local(directions), scale, strict=True):
            tensor.add_(direction, alpha=factor)
    elif tensors:
        torch._foreach_add_(local(tensors), local(directions), alpha=scale)


def scale_(tensors: Sequence[Tensor], factor: float) -> None:
    """tensors *= factor, in place.

    Args:
        tensors: What is changed, whole or sharded.
        factor: The same for all of them.
    """
    if tensors:
        torch._foreach_mul_(local(tensors), factor)


def multiply_(tensors: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
    """tensors *= factors elementwise, in place; `factors` are local already.

    Args:
        tensors: What is changed, whole or sharded.
        factors: One tensor for each, of its local shard's shape.
    """
    torch._foreach_mul_(local(tensors), list(factors))


def copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """targets = sources, in place, in each target's own memory format.

    Args:
        targets: What is overwritten.
        sources: One for each target, of its shape.
    """
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def _norm(tensors: list[Tensor]) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(local(tensors), 2)))
    return norms


def _by_device(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for t in tensors:
        groups.setdefault((t.device, t.dtype), []).append(t)
    return list(groups.values())


def _by_mesh(tensors: Sequence[DTensor]) -> list[list[Tensor]]:
    groups: dict[object, list[Tensor]] = {}
    for t in tensors:
        groups.setdefault((t.device_mesh, t.dtype), []).append(t)
    return list(groups.values())


def _sum_over_shards(part: Tensor, mesh: DeviceMesh) -> Tensor:
    for dimension in range(mesh.ndim):
        torch.distributed.all_reduce(part, group=mesh.get_group(dimension))
    return part


_BUCKET_BYTES = 25 << 20  # as DDP's: large enough for bandwidth, small enough not to double the gradients


def is_sharded(params: Iterable[Tensor]) -> bool:
    """Whether any parameter is a DTensor, as `fully_shard` makes them.

    Args:
        params: The parameters of a model or an optimizer.
    """
    return any(is_dtensor(p) for p in params)


def sum_over_ranks(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """All-reduce the tensors in place, in flat buckets of one dtype.

    Args:
        tensors: The same shapes, dtypes and order on every rank.
        group: The ranks whose tensors are summed.
    """
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
    """The mean over the ranks, in place.

    Args:
        tensors: The same shapes, dtypes and order on every rank.
        group: The ranks over which the mean is taken.
    """
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
    """True if `flag` is true on every rank: a pass that only some ranks run would hang the others.

    Args:
        flag: This rank's vote.
        device: Where the votes are exchanged; the group's backend must support it.
        group: The ranks that vote; `None` returns `flag` itself.
    """
    if group is None:
        return flag
    votes = torch.tensor([int(flag)], device=device)
    dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group)
    return bool(votes.item())


def placed_like(parameter: Tensor, value: Tensor) -> Tensor:
    """A tensor on a parameter's device, cut as the parameter is where that is sharded and the tensor is whole.

    Args:
        parameter: Gives the device and, if it is a DTensor, the mesh and the placements.
        value: A shard, or a whole tensor that is the same on every rank: nothing is communicated.
    """
    value = value.to(parameter.device)
    if is_dtensor(parameter) and not is_dtensor(value):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return value


def data_parallel(modules: Iterable[nn.Module]) -> list[nn.parallel.DistributedDataParallel]:
    """The DDP wrappers among modules and their children.

    Args:
        modules: The modules to search.
    """
    return [m for root in modules for m in root.modules() if isinstance(m, nn.parallel.DistributedDataParallel)]


def find_group(modules: Iterable[nn.Module], params: Iterable[Tensor]) -> dist.ProcessGroup | None:
    """The process group over which gradients are averaged: DDP's, or the mesh of sharded parameters.

    Args:
        modules: Searched for DDP wrappers, the first of which decides.
        params: Searched for DTensors where there is no DDP wrapper.

    Returns:
        The group, or `None` if training is not distributed or the group has one rank.

    Raises:
        ValueError: If the parameters lie on a mesh of several dimensions: which ranks to average over is unknown.
    """
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
    """Whether a DDP model runs under torch's `Join`, where ranks may run out of batches at different steps.

    Args:
        modules: Searched for DDP wrappers.
    """
    return any(getattr(getattr(m, "_join_config", None), "enable", False) for m in data_parallel(modules))


def without_sync(modules: Iterable[nn.Module]) -> ExitStack:
    """DDP's `no_sync` of all these modules: gradients stay each rank's own.

    Args:
        modules: Searched for DDP wrappers; others are left alone.

    Returns:
        A context manager that has been entered already; leaving it turns synchronization on again.
    """
    stack = ExitStack()
    for wrapper in data_parallel(modules):
        stack.enter_context(wrapper.no_sync())
    return stack
