"""The options that all sharpness-aware optimizers share, in one record."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, TypedDict, cast

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack  # comes with torch

from ncsam._checks import choice, count, flag, function, instance, non_negative
from ncsam._errors import unknown_name
from ncsam.optim.radius import check_target

__all__ = ["Criterion", "Options", "Unpack", "completed", "renamed"]

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Options(TypedDict, total=False):
    """What every variant takes beside the base optimizer, the radius and options of its own."""

    #: `loss(logits, targets)`, a mean over the batch; cross-entropy by default.
    criterion: Criterion
    #: Length of training, of which `progress` is a share.
    total_steps: int | None
    #: This many first steps are the base optimizer's own.
    warmup_steps: int
    #: Of rho="auto" and "validation": the share of what was learned that a perturbation is to take away, .5 by default.
    rho_target: float
    #: Of rho="auto" and "validation": the loss of guessing, where it cannot be told from class labels.
    guess_loss: float | None
    #: Of rho="auto" and "validation": what tells how much a perturbation takes away, the "loss", or the "criterion" of
    #: logits and targets where the loss is of another scale; then `backward` is given these in both phases.
    effect: Literal["loss", "criterion"]
    #: "synced": all ranks share the perturbation of the joined batch. "local": each rank of a DDP model perturbs by
    #: its own batch (m-sharpness).
    perturbation: Literal["synced", "local"]
    #: Draw the same random numbers (dropout masks) in every pass of a step.
    same_dropout: bool
    #: The network, or several. `step(forward, targets)` finds it behind `forward`; the two phases need it.
    model: nn.Module | Iterable[nn.Module] | None
    #: The ranks that hold different samples; found from DDP or sharded parameters if not given.
    process_group: dist.ProcessGroup | None
    #: Measure the costly part of `last_step` every so many steps; 0 never.
    telemetry_every: int


_DEFAULTS: Options = {
    "criterion": F.cross_entropy,
    "total_steps": None,
    "warmup_steps": 0,
    "rho_target": 0.5,
    "guess_loss": None,
    "effect": "loss",
    "perturbation": "synced",
    "same_dropout": False,
    "model": None,
    "process_group": None,
    "telemetry_every": 0,
}


def renamed(options: Any, old: str, new: str) -> None:
    """Let an option go by its old name for one more version."""
    if old in options:
        warnings.warn(f"the option {old!r} is called {new!r} now; the old name goes with 0.2", FutureWarning, 4)
        options[new] = options.pop(old)


def completed(name: str, options: Any) -> Options:
    """The options of an optimizer with defaults filled in; unknown names and bad values are refused."""
    renamed(options, "target", "rho_target")
    for option in options:
        if option not in _DEFAULTS:
            raise TypeError(str(unknown_name(f"option of {name}", option, _DEFAULTS)))
    complete = cast("Options", {**_DEFAULTS, **options})
    if complete["total_steps"] is not None:
        complete["total_steps"] = count("total_steps", complete["total_steps"])
    complete["warmup_steps"] = count("warmup_steps", complete["warmup_steps"])
    complete["telemetry_every"] = count("telemetry_every", complete["telemetry_every"])
    check_target(complete["rho_target"])
    if complete["guess_loss"] is not None:
        non_negative("guess_loss", complete["guess_loss"])
    function("criterion", complete["criterion"])
    if complete["process_group"] is not None:
        instance("process_group", complete["process_group"], dist.ProcessGroup, "a torch.distributed.ProcessGroup")
    choice("effect", complete["effect"], ("loss", "criterion"))
    choice("perturbation", complete["perturbation"], ("synced", "local"))
    flag("same_dropout", complete["same_dropout"])
    return complete
