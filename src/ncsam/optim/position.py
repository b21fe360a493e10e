"""Where in training an optimizer is: steps done, the share t of training, warm-up, and the radius by then."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from torch.optim import Optimizer

from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.optim.radius import AutoRadius
from ncsam.optim.wrapper import OptimizerWrapper

Radius: TypeAlias = float | Literal["auto"]


class PositionedOptimizer(OptimizerWrapper):
    """Counts its steps, and knows the radius of the coming one."""

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: Radius,
        target: float,
        guess_loss: float | None,
        total_steps: int | None,
        warmup_steps: int,
    ) -> None:
        super().__init__(base_optimizer)
        self._auto_radius: AutoRadius | None = None
        if isinstance(rho, str):
            if rho != "auto":
                raise bad_value("rho", rho, "a finite number, 0 or larger, or 'auto'")
            self._auto_radius = AutoRadius(target, guess_loss)
        else:
            self.rho = rho
        self.total_steps = None if total_steps is None else validate.count("total_steps", total_steps)
        self.warmup_steps = validate.count("warmup_steps", warmup_steps)
        #: How many steps went without a perturbation because a norm was zero or not finite.
        self.unperturbed_steps = 0
        self._steps = 0
        self._progress: float | None = None

    @property
    def progress(self) -> float | None:
        """t in [0, 1] of the coming step: counted in steps of `total_steps` from 1, or as set by hand (e / T)."""
        if self._progress is not None or self.total_steps is None:
            return self._progress
        return min(1.0, (self._steps + 1) / max(1, self.total_steps))

    @progress.setter
    def progress(self, value: float | None) -> None:
        self._progress = None if value is None else validate.ratio("progress", value)

    @property
    def rho(self) -> float:
        """The radius of the coming step. Setting it ends an automatic one."""
        return self._rho if self._auto_radius is None else self._auto_radius.rho

    @rho.setter
    def rho(self, value: float) -> None:
        self._rho = validate.non_negative("rho", value)
        self._auto_radius = None

    @property
    def target(self) -> float | None:
        """The share of what was learned that an automatic radius takes away; `None` with a fixed radius."""
        return None if self._auto_radius is None else self._auto_radius.target

    @property
    def steps(self) -> int:
        """How many steps have been done."""
        return self._steps

    @property
    def warming_up(self) -> bool:
        """Whether the coming step is one of warm-up."""
        return self._steps < self.warmup_steps

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rho={self._shown_radius()}, base_optimizer={self.base_optimizer!r})"

    def _shown_radius(self) -> str:
        return f"{self.rho}" if self._auto_radius is None else f"'auto', now {self.rho:.3g}"

    def _own_state(self) -> dict[str, Any]:
        own = {"steps": self._steps, "progress": self._progress, "unperturbed_steps": self.unperturbed_steps}
        return own if self._auto_radius is None else {**own, "radius": self._auto_radius.state_dict()}

    def _load_own_state(self, own: dict[str, Any]) -> None:
        self._steps = int(own["steps"])
        self._progress = own["progress"]
        self.unperturbed_steps = int(own["unperturbed_steps"])
        if self._auto_radius is not None and "radius" in own:
            self._auto_radius.load_state_dict(own["radius"], self._params()[0].device)
