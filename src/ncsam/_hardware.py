"""What the hardware computes natively."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch


def native_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 itself; emulated, it is several times slower than float32.

    That is CUDA devices from compute capability 8.0 on, and processors with AVX-512 BF16, AMX or Arm's BF16 extension.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and _cpu_bfloat16()


@functools.cache
def _cpu_bfloat16() -> bool:
    """From the processor's flags, on Linux; elsewhere no."""
    if platform.system() != "Linux":
        return False
    try:
        words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return False
    return bool(words & {"avx512_bf16", "amx_bf16", "bf16"})  # the last is Arm's name
