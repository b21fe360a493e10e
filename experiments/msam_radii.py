"""MSAM with a rising radius whose shares are given on the command line."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ncsam.optim.msam import MSAM
from ncsam.optim.radii import RisingRadius


class RisingMSAM(MSAM):
    """MSAM with a `RisingRadius` of these arguments; `rho`, which the engine gives, has no effect."""

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Any = None,
        *,
        first: float = 0.01,
        last: float = 0.1,
        until: float = 1.0,
        begin: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(base_optimizer, RisingRadius(first, last, until=until, begin=begin), **options)
