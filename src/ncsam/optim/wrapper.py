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
_P = ParamSpec("_P")
_T = TypeVar("_T")


def uncompiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that a compiled caller runs as it is, like `torch.compiler.disable`; that would import the compiler
    in every program, and this does where something is being compiled."""
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _T:
        return (disabled if torch.compiler.is_dynamo_compiling() else function)(*args, **options)

    return call


class OptimizerWrapper(Optimizer):
    """Shares the base optimizer's `param_groups` and `state`, always the same objects.

    Schedulers, `add_param_group`, clipping and checkpoints therefore work through either of the two.
    """

    def __init__(self, base_optimizer: Optimizer) -> None:
        if not isinstance(base_optimizer, Optimizer) or isinstance(base_optimizer, OptimizerWrapper):
            raise TypeError(
                f"base_optimizer={base_optimizer!r} is not allowed: it must be an instance of a plain torch optimizer, "
                "such as torch.optim.SGD(model.parameters(), lr=0.05)"
            )
        self.base_optimizer = base_optimizer
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

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base_optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state_dict with one entry more: the wrapper's counters and random state."""
        return {**self.base_optimizer.state_dict(), _OWN_STATE: self._own_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave, or a state_dict of the bare base optimizer."""
        state = dict(state_dict)
        own = state.pop(_OWN_STATE, None)
        self.base_optimizer.load_state_dict(state)
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
        """Take back what `_own_state` gave."""
        params = [p for group in self.param_groups for p in group["params"]]
        self.vectors.clear()  # in place: an estimator may hold this dictionary
        for name, vector in own.get("vectors", {}).items():
            if any(v.shape != params[i].shape for i, v in vector.items()):
                raise bad_value("state_dict", f"vectors {name!r}", "each of the shape of its parameter")
            self.vectors[name] = {params[i]: placed_like(params[i], v) for i, v in vector.items()}

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]
