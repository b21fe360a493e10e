"""The optimizer of a run: a base optimizer, with or without a sharpness-aware one around it; and its learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ncsam._errors import bad_value, unknown_name
from ncsam.engine.config import RunConfig
from ncsam.methods import Method
from ncsam.optim import BSAM, NCSAM, SAM
from ncsam.optim.sharpness_aware import SharpnessAware

_SHARPNESS_AWARE: dict[str, type[SharpnessAware]] = {"sam": SAM, "bsam": BSAM, "ncsam": NCSAM}
#: What the engine itself hands to the optimizer, from options of the run.
_OURS = {"self", "base_optimizer", "criterion", "total_steps", "warmup_steps", "model", "process_group", "generator"}
_OWN_OPTIONS = {"rho", "target", "kappa", "flip_ratio", "telemetry_every"}
#: Where the noise rate is unknown and there is nothing yet to estimate it from: the paper's largest share.
LARGEST_FLIP_RATIO = 0.4


def build_optimizer(config: RunConfig, network: nn.Module, method: Method, steps_per_epoch: int) -> Optimizer:
    """The optimizer of one network; `network` is the one that training calls, wrapped for devices and ranks."""
    params = [p for p in network.parameters() if p.requires_grad]
    base: Optimizer
    if config.base == "sgd":
        base = torch.optim.SGD(params, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    else:
        base = torch.optim.AdamW(params, lr=config.lr, weight_decay=config.weight_decay)
    for group in base.param_groups:
        group["initial_lr"] = group["lr"]
    if config.optimizer == "sgd":
        _refuse_unknown(config.optimizer_options, [], "sgd")
        return base
    kind = _SHARPNESS_AWARE[config.optimizer]
    known = [name for name in inspect.signature(kind.__init__).parameters if name not in _OURS | _OWN_OPTIONS]
    for name in _OWN_OPTIONS & config.optimizer_options.keys():
        raise bad_value("optimizer_options", config.optimizer_options, f"not {name}, which is an option of the run")
    _refuse_unknown(config.optimizer_options, known, config.optimizer)
    options: dict[str, Any] = {"rho": config.rho, "target": config.target}
    options["telemetry_every"] = min(config.telemetry_every, steps_per_epoch)  # a short epoch is measured all the same
    if kind is NCSAM:
        ratio = config.flip_ratio if isinstance(config.flip_ratio, float) else LARGEST_FLIP_RATIO
        options |= {"kappa": config.kappa, "flip_ratio": ratio}
        options["generator"] = torch.Generator().manual_seed(config.seed)
    return kind(
        base,
        criterion=method.criterion,
        total_steps=config.epochs * steps_per_epoch,
        warmup_steps=config.warmup_epochs * steps_per_epoch,
        model=network,
        **options,
        **config.optimizer_options,
    )


def learning_rate(config: RunConfig) -> Callable[[float], float]:
    """Factor of the learning rate as a function of t in [0, 1), the share of all iterations that are done.

    cosine: (1 + cos(pi t)) / 2, per iteration to 0, across the end of warm-up. linear: 1 - t. constant: 1.
    steps: gamma (default .1) to the number of `milestones` (shares of training, default .5 and .75) that are passed.
    """
    options = dict(config.schedule_options)
    if config.schedule == "steps":
        milestones, gamma = options.pop("milestones", [0.5, 0.75]), options.pop("gamma", 0.1)
        if not isinstance(milestones, list) or any(not 0 <= m <= 1 for m in milestones):
            raise bad_value("milestones", milestones, "a list of shares of training in [0, 1]")
        factor: Callable[[float], float] = lambda t: gamma ** sum(t >= m for m in milestones)  # noqa: E731
    elif config.schedule == "linear":
        factor = lambda t: 1.0 - t  # noqa: E731
    elif config.schedule == "constant":
        factor = lambda t: 1.0  # noqa: E731
    else:
        factor = lambda t: 0.5 * (1.0 + math.cos(math.pi * t))  # noqa: E731
    _refuse_unknown(options, ["milestones", "gamma"] if config.schedule == "steps" else [], config.schedule)
    return factor


def _refuse_unknown(options: dict[str, Any], known: list[str], of: str) -> None:
    for name in options:
        if name not in known:
            raise unknown_name(f"option of {of}", name, known or ["none"])
