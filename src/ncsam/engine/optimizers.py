"""The optimizer of a run: a base optimizer, alone or inside a sharpness-aware one; and its learning-rate schedule."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ncsam import optim
from ncsam._arguments import coerce, find_named, is_reference
from ncsam._errors import bad_value, refuse_unknown
from ncsam._guards import without_guards
from ncsam.engine import recipes
from ncsam.engine.config import BASES, ResolvedConfig, RunConfig
from ncsam.methods import Method
from ncsam.methods import create as create_method
from ncsam.models.backbone import Backbone
from ncsam.optim.radii import FollowsValidation

#: Options of optimizers that are options of the run.
_OF_THE_RUN = ("rho", "rho_target", "kappa", "flip_ratio", "telemetry_every")
#: What the engine itself passes to the optimizer.
_OF_THE_ENGINE = ("criterion", "total_steps", "warmup_steps", "model", "process_group", "generator")
#: Values of options that are left to the data, where options are checked without it.
_STAND_INS: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.0, "rho_target": 0.5, "kappa": 0.1, "epochs": 1}
_STAND_INS |= {"batch_size": 1, "warmup": 0.0, "schedule": "cosine", "lr_warmup": 0.0, "clip_norm": None}
_STAND_INS |= {"head_init": "random", "interpolation": 1.0}
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
        "rho": config.rho,
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
    optimizer = kind(base, **{name: value for name, value in options.items() if name in names}, **given)
    if config.rho == "validation" and config.augment != "none" and isinstance(optimizer.radius, FollowsValidation):
        optimizer.radius.begin_at = 0.0  # next to augmentation, which prevents memorization, too
    return optimizer


def check_options(config: RunConfig) -> None:
    """Raise `UsageError` for a mistake in the options of method, optimizer or schedule, before any data is used.

    A tiny model stands in for the real one; your own optimizer may need the real one and is not checked.

    Args:
        config: What the user asked for; values that are left to the data may be open.
    """
    method = create_method(config.method, **config.method_options)
    base = config.base if config.sharpness_aware else config.optimizer
    if not (is_reference(config.optimizer) or is_reference(base)):
        options = {**config.to_dict(), "base": "sgd" if base == "auto" else base, "head_lr": None, "layer_decay": 1.0}
        options |= {name: value for name, value in _STAND_INS.items() if options[name] in (None, "auto")}
        if options["rho"] is None:
            options["rho"] = 0.05
        build_optimizer(ResolvedConfig(**options), nn.Linear(1, 1), method, steps_per_epoch=1)
    learning_rate(config)


def _groups(config: ResolvedConfig, network: nn.Module) -> list[dict[str, Any]]:
    """The trained parameters by learning rate and weight decay, those with the learning rate `lr` first.

    AdamW does not decay biases and norms of pretrained models, which is how these are fine-tuned; others train as by
    torch itself. With `layer_decay` d below 1, a parameter k layers below the head has the learning rate d^k lr.
    """
    named = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
    if not named:
        raise bad_value("model", config.model, "a model with a parameter that requires a gradient; all are frozen")
    head = _head(network) if config.head_lr is not None or config.layer_decay < 1 else None
    of_head = set() if head is None else {id(p) for p in head.parameters()}
    depths = layer_depths([name for name, p in named if id(p) not in of_head]) if config.layer_decay < 1 else {}
    top = 1 + max(depths.values(), default=0)
    spared = config.base == "adamw" and config.model.startswith(("transformers:", "timm:", "torchvision:"))
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in named:
        lr = config.lr * config.layer_decay ** (top - depths.get(name, top))
        if config.head_lr is not None and id(parameter) in of_head:
            lr = config.head_lr
        groups.setdefault((lr, spared and parameter.ndim < 2), []).append(parameter)
    if len(groups) == 1:
        return [{"params": params} for params in groups.values()]
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != config.lr, -item[0][0]))
    return [{"params": params, "lr": lr, **({"weight_decay": 0.0} if plain else {})} for (lr, plain), params in ordered]


def _head(network: nn.Module) -> nn.Module:
    found = next((module for module in network.modules() if isinstance(module, Backbone)), None)
    if found is None:
        raise bad_value("layer_decay", type(network).__name__, "a Backbone, such as all models of ncsam.models")
    return found.head


def layer_depths(names: list[str]) -> dict[str, int]:
    """The layer of each parameter, from 0, by the first number in its name; without one, that of the layers so far.

    Args:
        names: Parameter names in the order of the model.

    Examples:
        >>> layer_depths(["embed.weight", "blocks.0.w", "blocks.1.w", "norm.weight"])
        {'embed.weight': 0, 'blocks.0.w': 1, 'blocks.1.w': 2, 'norm.weight': 2}
    """
    found: dict[str, int] = {}
    deepest = 0
    for name in names:
        number = re.search(r"\d+", name)
        found[name] = deepest if number is None else 1 + int(number[0])
        deepest = max(deepest, found[name])
    return found


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
    """Options of the run that have no effect with an optimizer; unknown for `module:Name`, and then none.

    Args:
        optimizer: Name of an optimizer.
    """
    if optimizer in optim.names():
        return set(_OF_THE_RUN) - set(optim.option_names(optim.get(optimizer)))
    return set(_OF_THE_RUN) if optimizer in BASES else set()


def own_options(optimizer: str) -> list[str]:
    """What `optimizer_options` may contain: the options of an optimizer except those of the run.

    Args:
        optimizer: Name of an optimizer, or `module:Name`, which is imported; others have no options.
    """
    if optimizer not in optim.names() and not is_reference(optimizer):
        return []
    taken = (*_OF_THE_RUN, *_OF_THE_ENGINE)
    return [name for name in optim.option_names(optim.get(optimizer)) if name not in taken]


def learning_rate(config: RunConfig) -> Callable[[float], float]:
    """Factor of the learning rate as a function of t in [0, 1), the completed share of all iterations.

    cosine: (1 + cos(pi t)) / 2, per iteration to 0. linear: 1 - t. constant: 1.
    steps: gamma (default .1) to the number of `milestones` (shares of training, default .5 and .75) that are passed.
    With a warm-up of the learning rate over a share w of training, the factor is t / w before, and that of
    (t - w) / (1 - w) afterwards.

    Args:
        config: Names the schedule, its options and the warm-up of the learning rate; "auto" means cosine, without one.

    Raises:
        UsageError: An option of the schedule is unknown or invalid.
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
    named = "cosine" if config.schedule == "auto" else config.schedule
    refuse_unknown(named, options, ["milestones", "gamma"] if config.schedule == "steps" else [])
    rise = config.lr_warmup
    if not isinstance(rise, float) or rise == 0:
        return factor
    return lambda t: t / rise if t < rise else factor((t - rise) / (1 - rise))
