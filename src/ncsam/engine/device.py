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

from ncsam._errors import bad_value, need
from ncsam.engine.states import fsdp
from ncsam.errors import UsageError

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
    return build_fabric(config)


def build_fabric(config: RunConfig) -> Fabric:
    """Fabric with the strategies that the engine can save."""
    need("lightning_fabric", "train", "training on an accelerator, in several processes or in another precision")
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
    from lightning_fabric.strategies.single_device import SingleDeviceStrategy

    devices, nodes = config.devices, config.num_nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has decided
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    strategy: Any = config.strategy
    if strategy == "fsdp":
        if not isinstance(devices, int):
            raise bad_value("devices", devices, "a number of devices for strategy='fsdp'")
        strategy = fsdp(devices * nodes)
    chosen = f"accelerator={config.accelerator}, devices={devices}, strategy={config.strategy}, "
    chosen += f"precision={config.precision}"
    precision: Any = config.precision
    try:
        fabric = Fabric(
            accelerator=config.accelerator, strategy=strategy, devices=devices, num_nodes=nodes, precision=precision
        )
    except OSError:  # too many open files, a broken disk: no option is to blame
        raise
    except Exception as error:  # of many kinds: Fabric's own words on what does not go together
        raise UsageError(f"invalid {chosen}: {error}") from error
    if not isinstance(fabric.strategy, (SingleDeviceStrategy, DDPStrategy, ModelParallelStrategy)):
        raise UsageError(f"invalid {chosen}: expected a strategy of a single device, ddp or fsdp")
    return fabric
