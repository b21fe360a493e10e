"""MSAM with a scheduled radius whose shares are given on the command line."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ncsam.optim.msam import MSAM
from ncsam.optim.radii import ScheduledRadius


class ScheduledMSAM(MSAM):
    """MSAM with a `ScheduledRadius` of these arguments; `rho`, which the engine gives, has no effect."""

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Any = None,
        *,
        first: float = 0.01,
        peak: float = 0.1,
        last: float = 0.0,
        rise: float = 1.0,
        fall: float = 1.0,
        begin: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(
            base_optimizer, ScheduledRadius(first, peak, last, rise=rise, fall=fall, begin=begin), **options
        )
