"""Learning methods, each a file around one small interface; any of them goes with any optimizer.

`create("mixup", alpha=8)` gives a method; `names()` lists them. A new one subclasses `Method` and defines `plan`.

>>> create("mixup", alpha=8).alpha
8.0
>>> "dividemix" in names()
True
"""

import importlib
import pkgutil

from ncsam.methods.base import LossOutput, Method, Plan, Samples, Stage, State
from ncsam.methods.registry import create, get, names, register

# each file enters its method when it is imported
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["LossOutput", "Method", "Plan", "Samples", "Stage", "State", "create", "get", "names", "register"]
