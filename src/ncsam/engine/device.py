"""Where a run computes: one CPU in full precision by itself, everything else by Lightning Fabric.

Fabric takes longer to import than torch does, and has nothing to do on a single CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from ncsam.engine.config import RunConfig

    Device: TypeAlias = "Fabric | OneCpu"

_T = TypeVar("_T")


class _FullPrecision:
    """Fabric's precision plugin of 32-true: nothing is cast or scaled."""

    scaler = None

    def forward_context(self) -> AbstractContextManager[None]:
        return nullcontext()

    def convert_input(self, data: _T) -> _T:
        return data

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _Strategy:
    precision = _FullPrecision()


class OneCpu:
    """The part of `Fabric` that the engine uses, for one process on the CPU: models and gradients are unchanged."""

    device = torch.device("cpu")
    world_size = 1
    global_rank = 0
    is_global_zero = True
    strategy = _Strategy()

    def launch(self, function: Callable[..., _T], *args: Any) -> _T:
        return function(self, *args)

    def setup_module(self, module: _T) -> _T:
        return module

    def setup_optimizers(self, optimizer: _T) -> _T:
        return optimizer

    def backward(self, loss: Tensor, **options: Any) -> None:
        torch.autograd.backward(loss, **options)

    def no_backward_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def broadcast(self, value: _T) -> _T:
        return value

    def barrier(self) -> None:
        pass


def is_one_cpu(config: RunConfig) -> bool:
    """Whether a run needs neither ranks, nor an accelerator, nor another precision."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return False
    if (config.strategy, config.precision, config.devices, config.num_nodes) != ("auto", "32-true", 1, 1):
        return False
    other = torch.cuda.is_available() or torch.backends.mps.is_available()
    return config.accelerator == "cpu" or (config.accelerator == "auto" and not other)


def check_accelerator(name: str) -> None:
    """Raise `UsageError` for an accelerator that this machine does not have."""
    cuda, mps, tpu = torch.cuda.is_available(), torch.backends.mps.is_available(), find_spec("torch_xla") is not None
    found = {"auto": True, "cpu": True, "cuda": cuda, "mps": mps, "gpu": cuda or mps, "tpu": tpu}
    if not found[name]:
        here = ", ".join(each for each, there in found.items() if there)
        raise bad_value("accelerator", name, f"an accelerator of this machine: {here}")


def choose_device(config: RunConfig) -> Device:
    """`OneCpu` where it is enough, otherwise Fabric as the configuration says."""
    check_accelerator(config.accelerator)
    if is_one_cpu(config):
        return OneCpu()
    from ncsam.engine.fabric import build_fabric

    return build_fabric(config)
