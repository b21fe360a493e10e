"""torch's optimizers without what they do for `torch.compile`."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.optim import Optimizer


@functools.cache
def without_guards(kind: type[Optimizer]) -> Any:
    """torch's optimizer without its guards against being traced by `torch.compile`, where nothing is compiled.

    A guard imports the compiler when it is first called, which takes as long as importing torch itself. The functions
    underneath are torch's own, so a step is the same to the bit.
    """
    guarded = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in guarded}
    return type(kind.__name__, (kind,), {**plain, "step": torch.no_grad()(inspect.unwrap(kind.step))})
