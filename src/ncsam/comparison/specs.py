"""Specs: a name with options, `NAME[:OPTION=VALUE]...`.

Examples are `sam:rho=0.1:warmup=0.25`, `ncsam:kappa=0` and `mixup:alpha=8`. NAME may be `module:Name`, your own class.
An option belongs to the run (`rho`, `lr`, `warmup`, `base`, ...) or else to the method or optimizer (`alpha`; `sign`,
`compensation`, ...). If both have an option of that name, the value must fit only one of them. Values are read as YAML:
numbers, true, false, null, words.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any, Literal

import torch

from ncsam import optim
from ncsam._arguments import is_reference
from ncsam._errors import bad_value, need
from ncsam.engine import RunConfig
from ncsam.engine.config import optimizer_names
from ncsam.engine.optimizers import check_options, own_options
from ncsam.methods import create as create_method
from ncsam.methods import names as method_names

Kind = Literal["method", "optimizer"]
_FORM = "NAME, or NAME:OPTION=VALUE with more options after more colons"
_LONGEST_NAME = 255  # bytes of a file's name, on most file systems


def with_spec(config: RunConfig, kind: Kind, spec: str) -> RunConfig:
    """Apply a spec to a configuration.

    Args:
        config: the configuration, which is not changed.
        kind: "method" or "optimizer".
        spec: `NAME[:OPTION=VALUE]...`, such as "sam:rho=0.1".

    Returns:
        The changed configuration.

    Raises:
        UsageError: if the spec is malformed, or the method or class cannot be built.
    """
    yaml = need("yaml", "train", "reading a spec")
    name, *settings = _split(spec)
    known = {f.name for f in dataclasses.fields(RunConfig)}
    if not name or "=" in name or (":" in name and not _is_own_class(kind, name)):
        raise bad_value(kind, spec, _FORM)
    changes: dict[str, Any] = {kind: name}
    own: dict[str, Any] = {}
    for setting in settings:
        option, _, value = setting.partition("=")
        if not option.isidentifier():
            raise bad_value(kind, spec, _FORM)
        try:
            read = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise bad_value(kind, spec, f"a value of {option} that is valid YAML") from None
        of_the_run = option in known and not _is_own(config, kind, name, option, read, spec)
        (changes if of_the_run else own)[option] = read
    if own:
        changes[f"{kind}_options"] = {**getattr(config, f"{kind}_options"), **own}
    changed = config.replace(**changes)
    if kind == "method":
        create_method(changed.method, **changed.method_options)
    elif is_reference(name):
        optim.get(name)
    return changed


def check_combination(config: RunConfig) -> None:
    """Refuse options of method, optimizer and schedule that are invalid for any data.

    Placeholders are used for values that depend on the data. Your own optimizers are only checked when they run.

    Args:
        config: the configuration of a run.

    Raises:
        UsageError: if an option is invalid.
    """
    if is_reference(config.optimizer):
        return
    placeholders = {"epochs": 1, "lr": None, "weight_decay": 0.0, "rho_target": 0.5}
    placeholders = {name: value for name, value in placeholders.items() if getattr(config, name) == "auto"}
    base = {"base": "sgd"} if is_reference(config.base) else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_options(config.replace(**placeholders, **base))


def names_code(spec: str) -> bool:
    """Return whether a spec refers to a `module:Name`, as its name or as the value of an option.

    Args:
        spec: `NAME[:OPTION=VALUE]...`.
    """
    name, *settings = _split(spec)
    return any(is_reference(text) for text in (name, *(setting.partition("=")[2] for setting in settings)))


def _is_own_class(kind: Kind, name: str) -> bool:
    """Whether it is a `module:Name` rather than a built-in name with an option that lacks its value (`sam:rho`)."""
    ours = method_names() if kind == "method" else optimizer_names()
    return is_reference(name) and name.partition(":")[0] not in ours


def _split(spec: str) -> list[str]:
    return re.split(r":(?=[^:=]*=)", spec)  # a value may hold a colon: model=timm:resnet18


def _is_own(config: RunConfig, kind: Kind, name: str, option: str, value: Any, spec: str) -> bool:
    """Whether an option that the run also has is meant for the method or optimizer, judging by its value.

    A value that fits both is refused.
    """
    if not _makes(kind, name, {option: value}):
        return False
    try:
        config.replace(**{option: value})
    except (ValueError, TypeError):
        return True
    raise bad_value(
        kind,
        spec,
        f"an option that only the run or only {name} has: {option!r} belongs to both. "
        f"Use --{option.replace('_', '-')} for the run, --{kind}-options {option}=... for {name}",
    )


def _makes(kind: Kind, name: str, options: dict[str, Any]) -> bool:
    """Whether the method or optimizer of this name has these options and accepts their values."""
    try:
        if kind == "method":
            create_method(name, **options)
            return True
        if not set(options) <= set(own_options(name)):
            return False
        base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optim.get(name)(base, **options)
    except (ValueError, TypeError):
        return False
    return True


def folder_name(method: str, optimizer: str, seed: int) -> str:
    """Return `METHOD-OPTIMIZER-sSEED`, with special characters replaced.

    Args:
        method: spec of the method.
        optimizer: spec of the optimizer.
        seed: seed of the run.

    Raises:
        UsageError: if the name is longer than 255 bytes.
    """
    name = re.sub(r"[^\w.=+-]", "_", f"{method}-{optimizer}-s{seed}")
    if len(name.encode()) > _LONGEST_NAME:
        raise bad_value(
            "optimizer",
            optimizer,
            f"a shorter spec: with {method} it makes a folder name of more than {_LONGEST_NAME} bytes",
        )
    return name
