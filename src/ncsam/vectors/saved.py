"""The one place where weights are moved and restored, with what else a pass there would change: statistics of the
model and its mode, random numbers, whether gradients are on.

Weights change in place, so that compiled graphs, tied views and sharded storage stay valid, and come back from a
copy: subtracting eps again would change half of them by a last bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ncsam.vectors.arithmetic import add_scaled_, copy_, local

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def keeps_grad_mode(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A decorator: however the function ends, gradients are on or off afterwards as they were before.

    `torch.no_grad` alone does not promise that. An interrupt that strikes after its switch and before its block, or
    before it switches back, leaves gradients off for the whole process. One that strikes here finds nothing to repair.

    Args:
        function: A function that may switch gradients on or off.
    """

    @functools.wraps(function)
    def kept(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        before = torch.is_grad_enabled()
        try:
            return function(*args, **options)
        finally:
            if torch.is_grad_enabled() != before:
                torch.set_grad_enabled(before)

    return kept


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


def submodules(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules and all that they contain, each once: `Module.modules` without making names, which takes longer.

    Args:
        roots: The outermost modules.
    """
    found: dict[nn.Module, None] = {}
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += [child for child in module._modules.values() if child is not None]
    return list(found)


class SavedBuffers:
    """All buffers of modules in training mode, to be put back after passes that must not count.

    Restoring values instead of switching layers off covers every layer that tracks statistics (BatchNorm of any
    dimension, SyncBatchNorm, spectral norm, a user's own), `num_batches_tracked` included, and changes no attribute
    that a compiled graph guards on.

    Args:
        modules: The models; modules in evaluation mode are skipped, because their statistics do not change.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._entries = [
            (module, name, buffer)
            for module in submodules(modules)
            if module._buffers and module.training
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._values = [buffer.detach().clone() for _, _, buffer in self._entries]

    @torch.no_grad()
    def restore(self) -> None:
        for (module, name, buffer), value in zip(self._entries, self._values, strict=True):
            module._buffers[name] = buffer  # a forward may have put another tensor in its place
            buffer.copy_(value)

    @contextmanager
    def in_place_of_now(self) -> Iterator[None]:
        """The saved values as buffers while entered, for forwards that do not change them.

        The tensors are exchanged and not overwritten, because a backward may need those of now.
        """
        now = [module._buffers[name] for module, name, _ in self._entries]
        for (module, name, _), value in zip(self._entries, self._values, strict=True):
            module._buffers[name] = value
        try:
            yield
        finally:
            for (module, name, _), buffer in zip(self._entries, now, strict=True):
                module._buffers[name] = buffer


class SavedWeights:
    """A copy of the weights w while the model is evaluated elsewhere. Its buffers are kept from step to step."""

    def __init__(self) -> None:
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}  # by id: a tensor's own hash is slow
        self._moved: list[Tensor] = []
        self._values: list[Tensor] = []  # of what was moved
        self._statistics: SavedBuffers | None = None

    def buffers(self, params: Sequence[Tensor]) -> list[Tensor]:
        """One buffer per parameter, of the local shard's shape and layout; scratch space until `move`.

        Args:
            params: The parameters, whole or sharded.
        """
        return self._buffers_of(params, local(params))

    def _buffers_of(self, params: Sequence[Tensor], shards: Sequence[Tensor]) -> list[Tensor]:
        buffers = []
        for p, shard in zip(params, shards, strict=True):
            known, buffer = self._buffers.get(id(p), (None, shard))
            if known is not p or not _alike(buffer, shard):
                buffer = torch.empty_like(shard, memory_format=torch.preserve_format)
                self._buffers[id(p)] = p, buffer
            buffers.append(buffer)
        return buffers

    @torch.no_grad()
    def magnitudes(self, params: Sequence[Tensor], eta: float, adaptive: Sequence[float] | None = None) -> list[Tensor]:
        """|w| + eta of each parameter, written to the buffers: they are free until `move`.

        Args:
            params: The parameters.
            eta: The offset.
            adaptive: For each parameter whether it is scaled; 0 gives ones in its place. `None`: all are.
        """
        magnitudes = self.buffers(params)
        copy_(magnitudes, local(params))
        torch._foreach_abs_(magnitudes)
        torch._foreach_add_(magnitudes, eta)
        if adaptive is not None:
            for magnitude, scaled in zip(magnitudes, adaptive, strict=True):
                if not scaled:
                    magnitude.fill_(1.0)
        return magnitudes

    @keeps_grad_mode
    @torch.no_grad()
    def move(
        self,
        params: Sequence[Tensor],
        directions: Sequence[Tensor],
        scale: float | Sequence[float],
        modules: Iterable[nn.Module] = (),
    ) -> None:
        """w <- w + scale * directions, in place, after saving w and the modules' statistics.

        Args:
            params: w.
            directions: One for each parameter.
            scale: One factor for all, or one for each.
            modules: Whose buffers `restore` puts back as well.
        """
        self._statistics = SavedBuffers(modules)
        shards = local(params)
        values = self._buffers_of(params, shards)
        copy_(values, shards)
        self._moved, self._values = list(params), values
        add_scaled_(shards, directions, scale)

    def restore(self) -> None:
        """Put back, bit for bit, all that was moved. An interrupted restore is completed by the next one."""
        if self._moved or self._statistics is not None:
            self._restore()

    @keeps_grad_mode
    @torch.no_grad()
    def _restore(self) -> None:
        if self._moved:
            copy_(local(self._moved), self._values)
            self._moved, self._values = [], []
        if self._statistics is not None:
            self._statistics.restore()
            self._statistics = None


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one layout in memory, dtype and device."""
    return a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype and a.device == b.device


class RandomState:
    """State of the generators of the CPU and of the devices in use, so that dropout can draw the same mask again.

    Args:
        devices: Devices whose generators are saved beside the CPU's; repeated ones count once.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._others: dict[torch.device, Tensor] = {
            device: torch.get_device_module(device).get_rng_state(device)
            for device in set(devices)
            if device.type not in ("cpu", "meta")
        }

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        for device, state in self._others.items():
            torch.get_device_module(device).set_rng_state(state, device)
