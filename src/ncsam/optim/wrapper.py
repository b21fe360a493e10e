"""An optimizer around an optimizer: one set of parameter groups, one state, one checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from ncsam._errors import bad_value
from ncsam.optim import validate
from ncsam.vectors.ranks import placed_like

_OWN_STATE = "sharpness_aware"  # the wrapper's entry in a state_dict, beside the base optimizer's own
_FILLED_IN = "_filled_in_by_wrapper"  # on the base optimizer: (number of a group, setting)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncompiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a compiled caller run a function as it is, like `torch.compiler.disable`, which would import the compiler in
    every program; this does so only while something is being compiled."""
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

    def __init__(self, base_optimizer: Optimizer) -> None:
        if not isinstance(base_optimizer, Optimizer) or isinstance(base_optimizer, OptimizerWrapper):
            raise TypeError(
                f"invalid base_optimizer={base_optimizer!r}: expected an instance of a plain torch optimizer, "
                "such as torch.optim.SGD(model.parameters(), lr=0.05)"
            )
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
        """Load what `state_dict` returned, or a state_dict of the bare base optimizer."""
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
