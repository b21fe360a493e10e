"""The optimizer of a run: a base optimizer, alone or inside a sharpness-aware one; and its learning-rate schedule."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ncsam import optim
from ncsam._errors import bad_value, refuse_unknown
from ncsam._guards import without_guards
from ncsam._named import find_named, is_reference
from ncsam._options import coerce
from ncsam.engine import recipes
from ncsam.engine.config import BASES, ResolvedConfig, RunConfig
from ncsam.methods import Method
from ncsam.methods import create as create_method
from ncsam.models.backbone import Backbone
from ncsam.optim.radii import RadiusLike

#: Options of optimizers that are options of the run.
_OF_THE_RUN = ("rho", "rho_target", "kappa", "flip_ratio", "telemetry_every")
#: What the engine itself passes to the optimizer.
_OF_THE_ENGINE = ("criterion", "total_steps", "warmup_steps", "model", "process_group", "generator")
#: Values of options that are left to the data, where options are checked without it.
_STAND_INS = {"lr": 0.05, "weight_decay": 0.0, "rho_target": 0.5, "kappa": 0.1, "epochs": 1}
_STAND_INS |= {"batch_size": 1, "warmup": 0.0}
_SEED_STRIDE = 2**20  # between the draws of a method's models, far larger than seeds that people choose


def build_optimizer(
    config: ResolvedConfig, network: nn.Module, method: Method, steps_per_epoch: int, number: int = 0
) -> Optimizer:
    """Build the optimizer of one of a method's models.

    Args:
        config: The resolved configuration.
        network: The model that training calls, wrapped for device and ranks.
        method: The learning method.
        steps_per_epoch: Optimizer steps per epoch.
        number: Which of the method's models it is; each draws its own flips.

    Returns:
        The base optimizer, inside a sharpness-aware one where the configuration names one.
    """
    base = _build_base(config, _groups(config, network))
    for group in base.param_groups:
        group["initial_lr"] = group["lr"]
    given = config.optimizer_options
    if not config.sharpness_aware:
        refuse_unknown(config.optimizer, given, [])
        return base
    kind = optim.get(config.optimizer)
    names = optim.option_names(kind)
    for name in given:
        if name in _OF_THE_RUN:
            raise bad_value("optimizer_options", given, f"options other than {name!r}, which is an option of the run")
    refuse_unknown(config.optimizer, given, own_options(config.optimizer))
    ratio = config.flip_ratio if isinstance(config.flip_ratio, float) else recipes.MAX_FLIP_RATIO.value
    options: dict[str, Any] = {
        "rho": _radius(config),
        "rho_target": config.rho_target,
        "kappa": config.kappa,
        "flip_ratio": ratio,
        "telemetry_every": min(config.telemetry_every, steps_per_epoch),  # short epochs are measured, too
        "generator": torch.Generator().manual_seed(config.seed + number * _SEED_STRIDE),
        "criterion": method.criterion,
        "radius_signal": method.effect,
        "total_steps": config.epochs * steps_per_epoch,
        "warmup_steps": config.warmup_epochs * steps_per_epoch,
        "model": network,
    }
    return kind(base, **{name: value for name, value in options.items() if name in names}, **given)


def check_options(config: RunConfig) -> None:
    """Raise `UsageError` for a mistake in the options of method, optimizer or schedule, before any data is used.

    A tiny model stands in for the real one; your own optimizer may need the real one and is not checked.
    """
    method = create_method(config.method, **config.method_options)
    base = config.base if config.sharpness_aware else config.optimizer
    if not (is_reference(config.optimizer) or is_reference(base)):
        options = {**config.to_dict(), "base": base, "head_lr": None}
        options |= {name: value for name, value in _STAND_INS.items() if options[name] in (None, "auto")}
        if options["rho"] is None:
            options["rho"] = 0.05
        build_optimizer(ResolvedConfig(**options), nn.Linear(1, 1), method, steps_per_epoch=1)
    learning_rate(config)


def _radius(config: ResolvedConfig) -> RadiusLike:
    """Next to augmentation, which prevents memorization, too, validation guides the radius from the first step."""
    if config.rho == "validation" and config.augment != "none":
        return optim.ValidationRadius(config.rho_target, begin=0.0)
    assert config.rho is not None, "resolved for sharpness-aware optimizers"
    return config.rho


def _groups(config: ResolvedConfig, network: nn.Module) -> list[dict[str, Any]]:
    """The trained parameters in one group; or two, where the head has its own learning rate."""
    trained = [p for p in network.parameters() if p.requires_grad]
    if config.head_lr is None:
        return [{"params": trained}]
    head = next(module for module in network.modules() if isinstance(module, Backbone)).head
    own = {id(p) for p in head.parameters()}
    rest = [p for p in trained if id(p) not in own]
    groups = [{"params": rest}] if rest else []
    return [*groups, {"params": [p for p in trained if id(p) in own], "lr": config.head_lr}]


def _build_base(config: ResolvedConfig, params: list[dict[str, Any]]) -> Optimizer:
    if is_reference(config.base):
        return _own_base(config, params)
    kind: Any = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[config.base]
    momentum = {"momentum": config.momentum} if config.base == "sgd" else {}
    kind = kind if config.compile else without_guards(kind)
    return kind(params, lr=config.lr, weight_decay=config.weight_decay, **momentum)  # type: ignore[no-any-return]


def _own_base(config: ResolvedConfig, params: list[dict[str, Any]]) -> Optimizer:
    """The optimizer of `module:Name`, called with the parameters and the options of the run that it takes."""
    build = find_named("base", config.base)
    offered = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    taken = inspect.signature(build).parameters
    found: Any = build(params, **{name: value for name, value in offered.items() if name in taken})
    if not isinstance(found, Optimizer):
        raise bad_value(
            "base", config.base, f"a factory of a torch.optim.Optimizer, which returned {type(found).__name__}"
        )
    return found


def unused_options(optimizer: str) -> set[str]:
    """Options of the run that have no effect with an optimizer; unknown for `module:Name`, and then none."""
    if optimizer in optim.names():
        return set(_OF_THE_RUN) - set(optim.option_names(optim.get(optimizer)))
    return set(_OF_THE_RUN) if optimizer in BASES else set()


def own_options(optimizer: str) -> list[str]:
    """What `optimizer_options` may contain: the options of an optimizer except those of the run."""
    if optimizer not in optim.names() and not is_reference(optimizer):
        return []
    taken = (*_OF_THE_RUN, *_OF_THE_ENGINE)
    return [name for name in optim.option_names(optim.get(optimizer)) if name not in taken]


def learning_rate(config: RunConfig) -> Callable[[float], float]:
    """Factor of the learning rate as a function of t in [0, 1), the completed share of all iterations.

    cosine: (1 + cos(pi t)) / 2, per iteration to 0. linear: 1 - t. constant: 1.
    steps: gamma (default .1) to the number of `milestones` (shares of training, default .5 and .75) that are passed.
    """
    options = dict(config.schedule_options)
    if config.schedule == "steps":
        milestones = coerce("milestones", options.pop("milestones", [0.5, 0.75]), list[float])
        gamma = coerce("gamma", options.pop("gamma", 0.1), float)
        if any(not 0 <= m <= 1 for m in milestones):
            raise bad_value("milestones", milestones, "shares of training in [0, 1]")
        if not 0 < gamma <= 1:
            raise bad_value("gamma", gamma, "a factor above 0 and at most 1")
        factor: Callable[[float], float] = lambda t: gamma ** sum(t >= m for m in milestones)  # noqa: E731
    elif config.schedule == "linear":
        factor = lambda t: 1.0 - t  # noqa: E731
    elif config.schedule == "constant":
        factor = lambda t: 1.0  # noqa: E731
    else:
        factor = lambda t: 0.5 * (1.0 + math.cos(math.pi * t))  # noqa: E731
    refuse_unknown(config.schedule, options, ["milestones", "gamma"] if config.schedule == "steps" else [])
    return factor
