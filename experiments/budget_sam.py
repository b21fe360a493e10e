"""SAM whose radius spends a loss budget given on the command line."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ncsam.optim.radii import LossBudgetRadius
from ncsam.optim.sam import SAM


class BudgetSAM(SAM):
    """SAM with `LossBudgetRadius(budget)`; `rho`, which the engine gives, has no effect."""

    def __init__(self, base_optimizer: Optimizer, rho: Any = None, *, budget: float = 0.5, **options: Any) -> None:
        super().__init__(base_optimizer, LossBudgetRadius(budget), **options)
