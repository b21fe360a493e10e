"""Sharpness-aware optimizers by name, and the options that all of them share.

One file of this package with one `@register` line adds an optimizer.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, cast, get_type_hints

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import add, choice, count, find_named, flag, function, instance, is_reference, non_negative
from ncsam._errors import bad_value, unknown_name
from ncsam.optim.radius import check_target

if TYPE_CHECKING:
    from ncsam.optim.sharpness_aware import SharpnessAware


_OPTIMIZERS: dict[str, type[SharpnessAware]] = {}
_Kind = TypeVar("_Kind", bound="type[SharpnessAware]")


def register(kind: _Kind) -> _Kind:
    """Register a class under its `name`, by default that of the class in lower case; a decorator.

    Args:
        kind: A subclass of `SharpnessAware`.

    Returns:
        The class.

    Raises:
        ValueError: If the name is taken.
    """
    kind.name = vars(kind).get("name", kind.__name__.lower())
    add(_OPTIMIZERS, "optimizer", kind.name, kind)
    return kind


def names() -> list[str]:
    """The names of all sharpness-aware optimizers, sorted."""
    _discover()
    return sorted(_OPTIMIZERS)


def get(name: str) -> type[SharpnessAware]:
    """Find an optimizer by name.

    Args:
        name: A registered name, or "module:Name" for your own class.

    Returns:
        The class.

    Raises:
        UsageError: If there is none of that name.
    """
    if is_reference(name):
        from ncsam.optim.sharpness_aware import SharpnessAware

        kind = find_named("optimizer", name)
        if not (isinstance(kind, type) and issubclass(kind, SharpnessAware)):
            raise bad_value("optimizer", name, "a subclass of ncsam.optim.SharpnessAware (others go under --base)")
        return kind
    _discover()
    if name not in _OPTIMIZERS:
        raise unknown_name("optimizer", name, [*_OPTIMIZERS, "module:Name"])
    return _OPTIMIZERS[name]


def option_names(kind: type[SharpnessAware]) -> list[str]:
    """The names of all options of an optimizer, its own before the shared ones.

    Args:
        kind: A subclass of `SharpnessAware`.
    """
    return [name for name in inspect.signature(kind).parameters if name != "base_optimizer"]


def _discover() -> None:
    import ncsam.optim

    _import_all(tuple(ncsam.optim.__path__))


@functools.cache
def _import_all(folders: tuple[str, ...]) -> None:
    """Once for the same folders: a file of your own may lie in another one."""
    for module in pkgutil.iter_modules(folders):
        importlib.import_module(f"ncsam.optim.{module.name}")


Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Options(TypedDict, total=False):
    """Options of every sharpness-aware optimizer, beside the base optimizer, the radius and those of its own.

    Attributes:
        criterion: Loss of `(logits, targets)`, a mean over the batch. Default: cross-entropy.
        total_steps: Length of training in steps; `progress` is the share of it that is done. Default: None.
        warmup_steps: The first steps, which are the base optimizer's own. Default: 0.
        rho_target: For rho="auto" and "validation": the relative loss increase that a perturbation should cause.
            Default: 0.5.
        chance_loss: For rho="auto" and "validation": the loss of guessing, where class labels do not give it.
        radius_signal: For rho="auto" and "validation": which loss the radius follows, "loss" (what is trained) or
            "criterion" (of logits and targets, where the trained loss has another scale; both phases then get logits
            and targets). Default: "loss".
        perturbation: "synced": all ranks share the perturbation of the joined batch. "local": each rank of a DDP model
            perturbs by its own batch (m-sharpness). Default: "synced".
        same_dropout: Draw the same random numbers (dropout masks) in every pass of a step. Default: False.
        model: The model or models. `step(forward, targets)` finds it behind `forward`; the two phases need it.
        process_group: The ranks that hold different samples. Default: found from DDP or sharded parameters.
        telemetry_every: Measure the costly part of `last_step` every so many steps; 0 for never. Default: 0.
    """

    criterion: Criterion
    total_steps: int | None
    warmup_steps: int
    rho_target: float
    chance_loss: float | None
    radius_signal: Literal["loss", "criterion"]
    perturbation: Literal["synced", "local"]
    same_dropout: bool
    model: nn.Module | Iterable[nn.Module] | None
    process_group: dist.ProcessGroup | None
    telemetry_every: int


_DEFAULTS: Options = {
    "criterion": F.cross_entropy,
    "total_steps": None,
    "warmup_steps": 0,
    "rho_target": 0.5,
    "chance_loss": None,
    "radius_signal": "loss",
    "perturbation": "synced",
    "same_dropout": False,
    "model": None,
    "process_group": None,
    "telemetry_every": 0,
}


def with_defaults(name: str, options: Any) -> Options:
    """Check the options of an optimizer and fill in the defaults.

    Args:
        name: The optimizer's class, for messages.
        options: What the user gave.

    Returns:
        All options.

    Raises:
        TypeError: For an option that does not exist.
        UsageError: For a value that does not fit.
    """
    for option in options:
        if option not in _DEFAULTS:
            raise TypeError(str(unknown_name(f"option of {name}", option, _DEFAULTS)))
    complete = cast("Options", {**_DEFAULTS, **options})
    if complete["total_steps"] is not None:
        complete["total_steps"] = count("total_steps", complete["total_steps"])
    complete["warmup_steps"] = count("warmup_steps", complete["warmup_steps"])
    complete["telemetry_every"] = count("telemetry_every", complete["telemetry_every"])
    check_target(complete["rho_target"])
    if complete["chance_loss"] is not None:
        non_negative("chance_loss", complete["chance_loss"])
    function("criterion", complete["criterion"])
    if complete["process_group"] is not None:
        instance("process_group", complete["process_group"], dist.ProcessGroup, "a torch.distributed.ProcessGroup")
    choice("radius_signal", complete["radius_signal"], ("loss", "criterion"))
    choice("perturbation", complete["perturbation"], ("synced", "local"))
    flag("same_dropout", complete["same_dropout"])
    return complete


def complete_documentation(kind: type) -> None:
    """Write the options behind `**options` into a class's signature and docstring, where `help()` shows them.

    A class that passes `**options` on takes its parents' options as well; the last of them takes `Options`.

    Args:
        kind: The class, changed in place; its docstring only if that has an "Args" section.
    """
    kind.__signature__ = _signature(kind)  # type: ignore[attr-defined]
    if kind.__doc__ is not None and "Args:\n" in kind.__doc__ and "total_steps:" not in kind.__doc__:
        before, _, own = inspect.cleandoc(kind.__doc__).partition("Args:\n")
        args, gap, rest = own.partition("\n\n")
        shared = inspect.cleandoc(Options.__doc__ or "").partition("Attributes:\n")[2]
        kind.__doc__ = f"{before}Args:\n{args}\n{shared}{gap}{rest}"


def _signature(kind: type) -> inspect.Signature:
    """The parameters of `kind(...)`, those of its parents and of `Options` in the place of `**options`."""
    own = list(inspect.signature(vars(kind).get("__init__", kind.__init__)).parameters.values())[1:]  # type: ignore[misc]
    passes_on = any(p.kind is p.VAR_KEYWORD for p in own)
    any_position = any(p.kind is p.VAR_POSITIONAL for p in own)
    named = [p for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if passes_on:
        parent = next((each for each in kind.__mro__[1:] if hasattr(each, "__signature__")), None)
        known = list(parent.__signature__.parameters.values()) if parent is not None else _shared_parameters()
        for parameter in known:
            if parameter.name not in [p.name for p in named]:
                named.append(parameter if any_position else parameter.replace(kind=parameter.KEYWORD_ONLY))
    return inspect.Signature(sorted(named, key=lambda p: p.kind))


def _shared_parameters() -> list[inspect.Parameter]:
    hints = get_type_hints(Options)
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in _DEFAULTS.items()
    ]
