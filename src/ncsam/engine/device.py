"""Where a run computes: one CPU in 32-true or bf16-mixed by itself, everything else by Lightning Fabric.

Fabric takes longer to import than torch does, and has nothing to do on a single CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value, need
from ncsam._trees import tree_map
from ncsam.engine.learner import fsdp
from ncsam.errors import UsageError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from ncsam.engine.config import RunConfig

    Device: TypeAlias = "Fabric | OneCpu"

_T = TypeVar("_T")
_AUTOMATIC = ("32-true", "bf16-mixed")  # what `precision: auto` may become; `OneCpu` has both


class _CpuPrecision:
    """Fabric's precision plugin of 32-true and bf16-mixed on a CPU: weights are float32 and losses are not scaled."""

    scaler = None

    def __init__(self, name: str) -> None:
        self.precision = name

    def forward_context(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if self.precision == "bf16-mixed" else nullcontext()

    def convert_input(self, data: _T) -> _T:
        return data

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class _Autocast(nn.Module):
    """A model whose forward computes in bf16 where torch considers it safe, and returns float32."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = self.module(*args)
        return tree_map(_in_float32, outputs)


def _in_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


@dataclass
class _Strategy:
    precision: Any


class OneCpu:
    """The part of `Fabric` that the engine uses, for one process on the CPU, in 32-true or bf16-mixed.

    Args:
        precision: "32-true" or "bf16-mixed".
    """

    device = torch.device("cpu")
    world_size = 1
    global_rank = 0
    is_global_zero = True

    def __init__(self, precision: str = "32-true") -> None:
        self.strategy = _Strategy(_CpuPrecision(precision))

    def launch(self, function: Callable[..., _T], *args: Any) -> _T:
        return function(self, *args)

    def setup_module(self, module: nn.Module) -> nn.Module:
        return _Autocast(module) if self.strategy.precision.precision == "bf16-mixed" else module

    def setup_optimizers(self, optimizer: _T) -> _T:
        return optimizer

    def backward(self, loss: Tensor, **options: Any) -> None:
        torch.autograd.backward(loss, **options)

    def clip_gradients(
        self, module: nn.Module, optimizer: object, *, max_norm: float, error_if_nonfinite: bool
    ) -> None:
        torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm, error_if_nonfinite=error_if_nonfinite)

    def no_backward_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:
        return nullcontext()

    def broadcast(self, value: _T) -> _T:
        return value

    def barrier(self) -> None:
        pass


def is_one_cpu(config: RunConfig) -> bool:
    """Whether a run needs neither ranks, nor an accelerator, nor a precision beyond those of `OneCpu`.

    Args:
        config: The configuration; accelerator, devices, nodes, strategy and precision matter.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ or config.precision not in ("auto", *_AUTOMATIC):
        return False
    if (config.strategy, config.devices, config.num_nodes) != ("auto", 1, 1):
        return False
    return first_device(config.accelerator).type == "cpu"


def first_device(accelerator: str) -> torch.device:
    """The device that an accelerator's name stands for on this machine, the first of several.

    Args:
        accelerator: Fabric's name; "auto" prefers CUDA, then MPS, then the CPU.
    """
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", 0)
    if accelerator in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device(accelerator if accelerator in ("cuda", "mps") else "cpu")


def check_accelerator(name: str) -> None:
    """Raise `UsageError` for an accelerator that this machine does not have.

    Args:
        name: Fabric's name: "auto", "cpu", "cuda", "gpu", "mps" or "tpu".
    """
    cuda, mps, tpu = torch.cuda.is_available(), torch.backends.mps.is_available(), find_spec("torch_xla") is not None
    found = {"auto": True, "cpu": True, "cuda": cuda, "mps": mps, "gpu": cuda or mps, "tpu": tpu}
    if not found[name]:
        here = ", ".join(each for each, there in found.items() if there)
        raise bad_value("accelerator", name, f"an accelerator of this machine: {here}")


def choose_device(config: RunConfig) -> Device:
    """`OneCpu` where it is enough, otherwise Fabric as the configuration says.

    With `precision: auto` it computes in 32-true until `set_precision` is told what that was resolved to.

    Args:
        config: The configuration.

    Raises:
        UsageError: This machine does not have the accelerator, or the options do not go together.
    """
    check_accelerator(config.accelerator)
    if is_one_cpu(config):
        return OneCpu("32-true" if config.precision == "auto" else config.precision)
    return build_fabric(config)


def set_precision(device: Device, precision: str) -> None:
    """Let a device that was chosen with `precision: auto` compute in what that was resolved to.

    Args:
        device: The device; it is changed in place.
        precision: "32-true" or "bf16-mixed"; with any other, nothing changes.
    """
    before = device.strategy.precision.precision
    if precision == before or not {precision, before} <= set(_AUTOMATIC):
        return
    if isinstance(device, OneCpu):
        device.strategy.precision = _CpuPrecision(precision)
    else:
        from lightning_fabric.plugins.precision import MixedPrecision, Precision

        mixed = precision == "bf16-mixed"
        plugin = MixedPrecision("bf16-mixed", device.device.type) if mixed else Precision()
        device.strategy.precision = device._precision = plugin


def build_fabric(config: RunConfig) -> Fabric:
    """Fabric with the strategies that the engine can save.

    Args:
        config: The configuration; under torchrun, devices and nodes are those of torchrun.

    Raises:
        UsageError: Fabric refuses these options, or the strategy is neither of a single device nor ddp nor fsdp.
    """
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
    precision: Any = "32-true" if config.precision == "auto" else config.precision
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
