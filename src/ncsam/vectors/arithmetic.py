"""Arithmetic on lists of parameters or gradients: local views, one global norm, scaled addition.

Elementwise work is done on local shards, which is right for any placement and spares DTensor's dispatch. Norms and
dot products are global: over all groups, devices and shards, the same number on every rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is distributed."""
    return isinstance(tensor, _dtensor_type())


def _dtensor_type() -> type | tuple[()]:
    """The class of distributed tensors. Where its module was not imported (it is slow to import), there are none."""
    kind: type | tuple[()] = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    return kind


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this process stores of each tensor, as real numbers; writing to it writes to the tensor."""
    shards = list(tensors)
    distributed = _dtensor_type()
    if any(isinstance(t, distributed) or t.is_complex() for t in shards):
        with torch.no_grad():  # outside of it, these would return a node of the graph, not the storage
            shards = [cast("DTensor", t).to_local() if isinstance(t, distributed) else t for t in shards]
            shards = [torch.view_as_real(t) if t.is_complex() else t for t in shards]
    return shards


def global_norm(tensors: Sequence[Tensor]) -> float:
    """Euclidean norm of all `tensors` as one vector."""
    sharded = [t for t in tensors if is_dtensor(t)]
    whole = [t for t in tensors if not is_dtensor(t)]
    parts = [_norm(group) for group in _by_device(whole)]
    for group in _by_mesh(sharded):
        parts.append(cast("DTensor", torch.nn.utils.get_total_norm(group)).full_tensor())
    if not parts:
        return 0.0
    if len(parts) == 1:
        return float(parts[0])
    return float(torch.stack([p.to(parts[0].device, torch.float64) for p in parts]).norm())


def global_dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Real inner product of two lists as two vectors."""
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
    """Cosine of the angle between two lists as two vectors; not a number if one of them is zero."""
    norms = global_norm(left) * global_norm(right)
    return global_dot(left, right) / norms if norms > 0 else float("nan")


def add_scaled_(tensors: Sequence[Tensor], directions: Sequence[Tensor], scale: float | Sequence[float]) -> None:
    """tensors += scale * directions, in place; `scale` is one factor for all tensors, or one for each."""
    if not isinstance(scale, float | int):
        for tensor, direction, factor in zip(local(tensors), local(directions), scale, strict=True):
            tensor.add_(direction, alpha=factor)
    elif tensors:
        torch._foreach_add_(local(tensors), local(directions), alpha=scale)


def scale_(tensors: Sequence[Tensor], factor: float) -> None:
    """tensors *= factor, in place."""
    if tensors:
        torch._foreach_mul_(local(tensors), factor)


def multiply_(tensors: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
    """tensors *= factors elementwise, in place; `factors` are local already."""
    torch._foreach_mul_(local(tensors), list(factors))


def copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """targets = sources, in place, in each target's own memory format."""
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
