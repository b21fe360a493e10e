"""ncsam: learning with noisy labels. Train robust models, find label issues, fix them.

    import ncsam

    run = ncsam.train("photos/", out="runs/photos")      # also arrays, a DataFrame, a torch or Hugging Face dataset
    issues = run.find_label_issues(folds=5)              # a table: given label, predicted label, label quality
    run.report()
    run.cleaned(apply="confident").to_csv("cleaned.csv")

`NCSAM`, `SAM` and their relatives wrap any `torch.optim.Optimizer` in a training loop of your own.
"""

from typing import TYPE_CHECKING

from ncsam._version import __version__

if TYPE_CHECKING:
    from ncsam import data, errors, losses, methods, models, noise, optim, theory
    from ncsam.api import Comparison, Run, audit, auto, compare, load_run, train
    from ncsam.audits import Audit
    from ncsam.engine.config import RunConfig
    from ncsam.errors import DivergedError, Interrupted, NcsamError, RunError, UsageError
    from ncsam.integrations.sklearn import NoisyLabelClassifier
    from ncsam.issues.find import find_label_issues
    from ncsam.issues.table import LabelIssues
    from ncsam.optim import ASAM, BSAM, MSAM, NCSAM, SAM, SANER, AutoRadius, FriendlySAM, ValidationRadius
    from ncsam.predictions import Predictions

#: Where each public name lives: imported when it is asked for, so that `import ncsam` is fast.
_HOMES = {
    **dict.fromkeys(("train", "auto", "audit", "compare", "load_run", "Run", "Comparison"), "ncsam.api"),
    "Predictions": "ncsam.predictions",
    "Audit": "ncsam.audits",
    "find_label_issues": "ncsam.issues.find",
    "LabelIssues": "ncsam.issues.table",
    "RunConfig": "ncsam.engine.config",
    "NoisyLabelClassifier": "ncsam.integrations.sklearn",
    **dict.fromkeys(("NcsamError", "UsageError", "RunError", "DivergedError", "Interrupted"), "ncsam.errors"),
    **dict.fromkeys(
        ("NCSAM", "SAM", "MSAM", "ASAM", "BSAM", "SANER", "FriendlySAM", "AutoRadius", "ValidationRadius"),
        "ncsam.optim",
    ),
}
_MODULES = ("data", "errors", "losses", "methods", "models", "noise", "optim", "theory")

__all__ = [
    "ASAM",
    "BSAM",
    "MSAM",
    "NCSAM",
    "SAM",
    "SANER",
    "Audit",
    "AutoRadius",
    "Comparison",
    "DivergedError",
    "FriendlySAM",
    "Interrupted",
    "LabelIssues",
    "NcsamError",
    "NoisyLabelClassifier",
    "Predictions",
    "Run",
    "RunConfig",
    "RunError",
    "UsageError",
    "ValidationRadius",
    "__version__",
    "audit",
    "auto",
    "compare",
    "data",
    "errors",
    "find_label_issues",
    "load_run",
    "losses",
    "methods",
    "models",
    "noise",
    "optim",
    "theory",
    "train",
]


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"ncsam.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ncsam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
