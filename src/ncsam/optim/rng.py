"""The random numbers of a pass, so that dropout can draw the same mask at w and at w + eps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class RandomState:
    """State of the CPU's generator and of those of the devices in use, taken now and put back on demand."""

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
