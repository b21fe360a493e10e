"""An optimizer around an optimizer: one set of parameter groups, one state, one checkpoint."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer
from typing_extensions import Self, Unpack  # comes with torch

from ncsam._arguments import non_negative, ratio
from ncsam._errors import bad_value, shown
from ncsam.optim import validate
from ncsam.optim.radii import RadiusLike, make_radius
from ncsam.optim.radius import AutoRadius, Radius
from ncsam.optim.registry import Options, with_defaults
from ncsam.vectors.arithmetic import placed_like

_OWN_STATE = "sharpness_aware"  # the wrapper's entry in a state_dict, beside the base optimizer's own
_FILLED_IN = "_filled_in_by_wrapper"  # on the base optimizer: (number of a group, setting)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncompiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a compiled caller run a function as it is, like `torch.compiler.disable`, which would import the compiler in
    every program; this does so only while something is being compiled.

    Args:
        function: The function to protect.
    """
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _T:
        return (disabled if torch.compiler.is_dynamo_compiling() else function)(*args, **options)

    return call


class OptimizerWrapper(Optimizer):
    """Shares the base optimizer's `param_groups` and `state`, always the same objects.

    Schedulers, `add_param_group`, clipping and checkpoints therefore work through either of the two.

    Args:
        base_optimizer: An instance of a plain torch optimizer.
    """

    #: Settings that live in `param_groups`: the value of groups that do not have their own.
    _group_defaults: dict[str, Any]

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Refuse what other packages take in the first place, parameters, before Python misses another argument."""
        given = [*arguments[:1], *(options[name] for name in ("base_optimizer",) if name in options)]
        for base in given:  # none where a copy is made
            if not isinstance(base, Optimizer) or isinstance(base, OptimizerWrapper):
                example = f"{cls.__name__}(torch.optim.SGD(model.parameters(), lr=0.05))"
                expected = f"an instance of a plain torch optimizer, as in {example}"
                raise TypeError(f"invalid base_optimizer={shown(base)}: expected {expected}")
        return super().__new__(cls)

    def __init__(self, base_optimizer: Optimizer) -> None:
        self.base_optimizer = base_optimizer
        self._group_defaults = {}
        for number, name in vars(base_optimizer).pop(_FILLED_IN, ()):  # what an earlier wrapper put into the groups
            base_optimizer.param_groups[number].pop(name, None)
        #: Vectors over the parameters that live from step to step, by name; saved with the state.
        self.vectors: dict[str, dict[Tensor, Tensor]] = {}
        if not self._params():
            raise ValueError("base_optimizer has no parameters: a sharpness-aware step needs at least one")
        validate.full_precision(self._params())
        super().__setstate__({})  # hooks and the profiled `step`, without groups and state of our own

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.base_optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.base_optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.base_optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer, with the wrapper's settings where it has none of its own.

        Args:
            param_group: As for torch; may have settings of the wrapper, such as "rho".

        Raises:
            ValueError: If a parameter is of dtype float16 or bfloat16; the group is not added then.
        """
        self.base_optimizer.add_param_group(param_group)
        try:
            validate.full_precision(self._params())
        except ValueError:
            self.base_optimizer.param_groups.pop()
            raise
        self._fill_groups()

    def _add_group_setting(self, name: str, value: Any, check: Callable[[str, Any], Any]) -> None:
        """Put a setting into `param_groups`; a group that has its own value keeps it."""
        self._group_defaults[name] = check(name, value)
        self._fill_groups()
        for group in self.param_groups:
            group[name] = check(name, group[name])

    def _fill_groups(self) -> None:
        filled = vars(self.base_optimizer).setdefault(_FILLED_IN, set())
        for number, group in enumerate(self.param_groups):
            for name, value in self._group_defaults.items():
                if name not in group:
                    group[name] = value
                    filled.add((number, name))

    def _settings(self, name: str) -> list[Any]:
        """The value of a setting in each group."""
        return [group.get(name, self._group_defaults[name]) for group in self.param_groups]

    def _set_in_groups(self, name: str, value: Any) -> None:
        self._group_defaults[name] = value
        for group in self.param_groups:
            group[name] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state_dict with one entry more: the wrapper's counters and random state."""
        return {**self.base_optimizer.state_dict(), _OWN_STATE: self._own_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, or a state_dict of the bare base optimizer.

        Args:
            state_dict: Groups and state as torch saves them, with or without the wrapper's entry.
        """
        state = dict(state_dict)
        own = state.pop(_OWN_STATE, None)
        self.base_optimizer.load_state_dict(state)
        self._fill_groups()
        if own is not None:
            self._load_own_state(own)

    def __getstate__(self) -> dict[str, Any]:
        # torch's own drops all but groups and state; `step` may be a scheduler's patch of this very instance
        return {name: value for name, value in self.__dict__.items() if name != "step"}

    def _own_state(self) -> dict[str, Any]:
        """What must survive a restart beyond the base optimizer's state; vectors by the parameters' positions."""
        numbers = {p: i for i, p in enumerate(p for group in self.param_groups for p in group["params"])}
        vectors = {name: {numbers[p]: v for p, v in vector.items()} for name, vector in self.vectors.items()}
        return {"vectors": vectors} if vectors else {}

    def _load_own_state(self, own: dict[str, Any]) -> None:
        """Load what `_own_state` returned."""
        params = [p for group in self.param_groups for p in group["params"]]
        self.vectors.clear()  # in place: an estimator may hold this dictionary
        for name, vector in own.get("vectors", {}).items():
            if any(v.shape != params[i].shape for i, v in vector.items()):
                raise bad_value("state_dict", f"vectors {name!r}", "vectors of the shapes of the parameters")
            self.vectors[name] = {params[i]: placed_like(params[i], v) for i, v in vector.items()}

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]


class Settings(OptimizerWrapper):
    """The shared options, the radius and the count of steps; `SharpnessAware` inherits them.

    Args:
        base_optimizer: An instance of any `torch.optim.Optimizer`; its groups and state are shared.
        rho: Radius of the perturbation: a number, "auto", "validation", "budget", or a `Radius`.
        **options: The options that all variants share (`Options`).
    """

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
