"""Learning methods, each a file around one small interface; any of them works with any optimizer.

`create("mixup", alpha=8)` builds a method, `names()` lists them, `get(name)` returns the class with its traits. A new
method subclasses `Method` and defines `plan`; the helpers of `ncsam.methods.planning` (re-exported here) do what most
methods need. Several methods share their class name with a loss of `ncsam.losses`: `losses.GCE` is the loss as a
`torch.nn.Module`, `methods.gce.GCE` the method that trains with it.

Examples:
    >>> create("mixup", alpha=8).alpha
    8.0
    >>> "dividemix" in names()
    True
"""

import importlib
import pkgutil

from ncsam.methods.base import LossOutput, Method, Plan, Samples, Stage, State
from ncsam.methods.loss_method import LossMethod
from ncsam.methods.planning import (
    PlanWithExtra,
    SubsetMethod,
    SubsetPlan,
    forward_frozen_stats,
    losses_of,
    train_on,
)
from ncsam.methods.registry import create, get, names, register

# each file registers its method when it is imported
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "LossMethod",
    "LossOutput",
    "Method",
    "Plan",
    "PlanWithExtra",
    "Samples",
    "Stage",
    "State",
    "SubsetMethod",
    "SubsetPlan",
    "create",
    "forward_frozen_stats",
    "get",
    "losses_of",
    "names",
    "register",
    "train_on",
]
