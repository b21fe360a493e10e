"""The one place where weights are moved to w + eps and put back.

Weights change in place, so that compiled graphs, tied views and sharded storage stay valid, and come back from a
copy: subtracting eps again would change half of them by a last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ncsam.optim.tensors import add_scaled_, copy_, local


class SavedWeights:
    """A copy of the weights w while the network stands elsewhere. Its buffers are kept from step to step."""

    def __init__(self) -> None:
        self._buffers: dict[Tensor, Tensor] = {}
        self._moved: list[Tensor] = []

    def buffers(self, params: Sequence[Tensor]) -> list[Tensor]:
        """One buffer per parameter, of the local shard's shape and layout; scratch space until `move`."""
        buffers = []
        for p, shard in zip(params, local(params), strict=True):
            buffer = self._buffers.get(p)
            if buffer is None or _layout(buffer) != _layout(shard):
                buffer = self._buffers[p] = torch.empty_like(shard, memory_format=torch.preserve_format)
            buffers.append(buffer)
        return buffers

    @torch.no_grad()
    def magnitudes(self, params: Sequence[Tensor], eta: float) -> list[Tensor]:
        """|w| + eta of each parameter, written to the buffers: they are free until `move`."""
        magnitudes = self.buffers(params)
        copy_(magnitudes, local(params))
        torch._foreach_abs_(magnitudes)
        torch._foreach_add_(magnitudes, eta)
        return magnitudes

    @torch.no_grad()
    def move(self, params: Sequence[Tensor], directions: Sequence[Tensor], scale: float) -> None:
        """w <- w + scale * directions, in place, after saving w."""
        copy_(self.buffers(params), local(params))
        self._moved = list(params)
        add_scaled_(params, directions, scale)

    @torch.no_grad()
    def restore(self) -> None:
        """Put back, bit for bit, every weight that was moved, whether or not it has a gradient by now."""
        if self._moved:
            copy_(local(self._moved), [self._buffers[p] for p in self._moved])
            self._moved = []


def _layout(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
