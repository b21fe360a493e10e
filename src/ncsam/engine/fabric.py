"""Fabric as a configuration asks for it: device, processes, precision."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ncsam._errors import bad_value, need

need("lightning_fabric", "train", "training on an accelerator, in several processes or in another precision")

from lightning_fabric import Fabric  # noqa: E402
from lightning_fabric.strategies.ddp import DDPStrategy  # noqa: E402
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy  # noqa: E402
from lightning_fabric.strategies.single_device import SingleDeviceStrategy  # noqa: E402

from ncsam.engine.sharding import fsdp  # noqa: E402
from ncsam.errors import UsageError  # noqa: E402

if TYPE_CHECKING:
    from ncsam.engine.config import RunConfig


def build_fabric(config: RunConfig) -> Fabric:
    """Fabric with the strategies that the engine knows how to save."""
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
