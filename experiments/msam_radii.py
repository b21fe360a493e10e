"""Radii of MSAM that need no second pass, or a forward now and then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ncsam.optim.msam import MSAM
from ncsam.optim.radius import LARGEST, AutoRadius
from ncsam.optim.validation_radius import ValidationRadius
from ncsam.vectors.arithmetic import global_norm


class ShareRadius(ValidationRadius):
    """rho = share (1 + rise t) ||w||; `guided`: the share falls to .8 of itself where the validation loss fell, and
    doubles, up to the full share, where it rose.
    """

    progress = 0.0

    def __init__(self, share: float, guided: bool, rise: float) -> None:
        super().__init__(share)
        self.guided, self.rise = guided, rise

    @property
    def rho(self) -> float:
        return min(LARGEST, self.target * (1 + self.rise * self.progress) * (self._weight_norm or 0.0))

    def end(self, perturbed: bool, params: Sequence[Tensor], group: dist.ProcessGroup | None) -> None:
        self._refresh_weight_norm(params)

    def report_val_loss(self, loss: float, progress: float | None) -> None:
        if self.guided:
            super().report_val_loss(loss, progress)


class ShareMSAM(MSAM):
    """MSAM with `ShareRadius`; `rho`, which the engine gives, has no effect."""

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Any = None,
        *,
        share: float = 0.03,
        guided: bool = False,
        rise: float = 0.0,
        **options: Any,
    ) -> None:
        radius = ShareRadius(share, guided, rise)
        super().__init__(base_optimizer, radius, **options)
        radius._weight_norm = global_norm([p.detach() for p in self._params()])

    def run_passes(self, *args: Any, **options: Any) -> Tensor:
        assert isinstance(self.radius, ShareRadius)
        self.radius.progress = self.progress or 0.0
        return super().run_passes(*args, **options)

    def after_first_pass(self, parts: Any) -> None:
        """No probe."""

    def _end_radius(self, step: Any, moved: bool) -> None:
        self.radius.end(moved, step.params, None)


class StartMSAM(MSAM):
    """MSAM with an adaptive radius that starts at `start`, and follows the validation loss if `guided`."""

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Any = None,
        *,
        start: float = 0.5,
        target: float = 0.5,
        guided: bool = False,
        **options: Any,
    ) -> None:
        radius = (ValidationRadius if guided else AutoRadius)(target, start=start)
        super().__init__(base_optimizer, radius, **options)
