"""What the user sets of a sharpness-aware optimizer, and where training stands."""

from __future__ import annotations

import math
from typing import Any

from torch.optim import Optimizer
from typing_extensions import Unpack  # comes with torch

from ncsam._checks import non_negative, ratio
from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.optim.options import Options, with_defaults
from ncsam.optim.radii import RadiusLike, make_radius
from ncsam.optim.radius import AutoRadius, Radius
from ncsam.optim.wrapper import OptimizerWrapper


class Settings(OptimizerWrapper):
    """The shared options, the radius and the count of steps; `SharpnessAware` inherits them."""

    def __init__(self, base_optimizer: Optimizer, rho: RadiusLike = 0.05, **options: Unpack[Options]) -> None:
        super().__init__(base_optimizer)
        given = with_defaults(type(self).__name__, options)
        #: The object behind `rho`.
        self.radius = make_radius(rho, given["rho_target"], given["chance_loss"])
        self._add_group_setting("rho", self.radius.rho, non_negative)
        if self._adapts and any(value != self.radius.rho for value in self._settings("rho")):
            raise bad_value("rho", rho, "a number, because a parameter group has its own rho")
        self.criterion, self.radius_signal = given["criterion"], given["radius_signal"]
        self.total_steps, self.warmup_steps = given["total_steps"], given["warmup_steps"]
        self.perturbation, self.same_dropout = given["perturbation"], given["same_dropout"]
        self.process_group, self.telemetry_every = given["process_group"], given["telemetry_every"]
        #: The number of steps without a perturbation because a norm was zero or not finite.
        self.unperturbed_steps = 0
        self._steps = 0
        self._progress: float | None = None

    @property
    def steps(self) -> int:
        """How many steps have been done."""
        return self._steps

    @property
    def progress(self) -> float | None:
        """t in [0, 1] of the coming step: counted in steps of `total_steps` from 1, or as set by hand (e / T)."""
        if self._progress is not None or self.total_steps is None:
            return self._progress
        return min(1.0, (self._steps + 1) / max(1, self.total_steps))

    @progress.setter
    def progress(self, value: float | None) -> None:
        self._progress = None if value is None else ratio("progress", value)

    @property
    def warming_up(self) -> bool:
        """Whether the coming step is one of warm-up."""
        return self._steps < self.warmup_steps

    @property
    def rho(self) -> float:
        """The radius of the coming step, with several groups the largest. Setting it gives all groups a fixed one."""
        return self.radius.rho if self._adapts else max(self._settings("rho"))

    @rho.setter
    def rho(self, value: float) -> None:
        self.radius = Radius(value)
        self._set_in_groups("rho", self.radius.rho)

    @property
    def adaptive(self) -> bool:
        """Whether any group is scaled by ASAM's T. Setting it sets all groups."""
        return "adaptive" in self._group_defaults and any(self._settings("adaptive"))

    @adaptive.setter
    def adaptive(self, value: bool) -> None:
        self._set_in_groups("adaptive", value)

    @property
    def scaling_offset(self) -> float | None:
        """ASAM's eta, or `None` where no group is scaled."""
        return float(vars(self)["eta"]) if self.adaptive else None

    @property
    def rho_target(self) -> float | None:
        """The relative loss increase that an adaptive radius aims at; `None` with a fixed radius."""
        return self.radius.target if isinstance(self.radius, AutoRadius) else None

    @property
    def _adapts(self) -> bool:
        """Whether the radius changes by itself; a fixed one is read from `param_groups`."""
        return type(self.radius) is not Radius

    def report_val_loss(self, loss: float) -> None:
        """Report the loss of validation samples, with their labels as they are; used by rho="validation".

        Args:
            loss: Their mean loss. Report it at regular intervals, such as after every epoch, the same on every rank.
        """
        self.radius.report_val_loss(validate.val_loss(loss), self.progress)

    def _radius_of_step(self) -> float:
        """The radius of this step, with several groups the largest; an adaptive one is written to the groups."""
        self._fill_groups()
        if self._adapts:
            self.radius.at_progress(self.progress)
            rho = self.radius.rho
            for group in self.param_groups:
                group["rho"] = rho
            return rho
        for value in (radii := self._settings("rho")):
            if not (isinstance(value, float | int) and 0 <= value < math.inf):
                raise bad_value("rho", value, "a number, 0 or larger, in every parameter group")
        return float(max(radii))

    def _own_state(self) -> dict[str, Any]:
        own = {**super()._own_state(), "steps": self._steps, "progress": self._progress}
        own["unperturbed_steps"] = self.unperturbed_steps
        radius = self.radius.state_dict()
        return {**own, "radius": radius} if radius else own

    def _load_own_state(self, own: dict[str, Any]) -> None:
        super()._load_own_state(own)
        self._steps = int(own["steps"])
        self.progress = own["progress"]
        self.unperturbed_steps = int(own["unperturbed_steps"])
        if "radius" in own:
            self.radius.load_state_dict(own["radius"], self._params()[0].device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rho={self._shown_radius()}, base_optimizer={self.base_optimizer!r})"

    def _shown_radius(self) -> str:
        return repr(self.radius) if self._adapts else ", ".join(map(repr, dict.fromkeys(self._settings("rho"))))
