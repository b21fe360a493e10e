"""Specs: a name with options, `NAME[:OPTION=VALUE]...`, such as `sam:rho=0.1:warmup=0.25`, `ncsam:kappa=0` or
`mixup:alpha=8`. An option is one of the run's (`rho`, `lr`, `warmup`, `base`, ...) or else one of the method's or
optimizer's own (`alpha`; `sign`, `compensation`, ...). Of a name that both have, the value must tell which is meant.
Values are read as YAML: numbers, true, false, null, words.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any, Literal

import torch

from ncsam import optim
from ncsam._errors import bad_value, need
from ncsam.engine import RunConfig
from ncsam.engine.optimizers import own_options
from ncsam.methods import create as create_method

Kind = Literal["method", "optimizer"]


def with_spec(config: RunConfig, kind: Kind, spec: str) -> RunConfig:
    """The configuration under a spec such as `sam:rho=0.1`; a method that cannot be made is refused."""
    yaml = need("yaml", "train", "reading a spec")
    name, *settings = re.split(r":(?=[^:=]*=)", spec)  # a value may hold a colon: model=timm:resnet18
    known = {f.name for f in dataclasses.fields(RunConfig)}
    if not name or ":" in name or "=" in name:
        raise bad_value(kind, spec, "NAME, or NAME:OPTION=VALUE with further options after further colons")
    changes: dict[str, Any] = {kind: name}
    own: dict[str, Any] = {}
    for setting in settings:
        option, _, value = setting.partition("=")
        if not option.isidentifier():
            raise bad_value(kind, spec, "NAME, or NAME:OPTION=VALUE with further options after further colons")
        try:
            read = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise bad_value(kind, spec, f"{option} has a value that is not YAML") from None
        of_the_run = option in known and not _is_own(config, kind, name, option, read, spec)
        (changes if of_the_run else own)[option] = read
    if own:
        changes[f"{kind}_options"] = {**getattr(config, f"{kind}_options"), **own}
    changed = config.replace(**changes)
    if kind == "method":
        create_method(changed.method, **changed.method_options)
    return changed


def _is_own(config: RunConfig, kind: Kind, name: str, option: str, value: Any, spec: str) -> bool:
    """Of an option that the run has: whether it is meant for the method or optimizer, by what the value fits.

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
        f"{option!r} is an option of the run and, for something else, of {name}. "
        f"Say --{option.replace('_', '-')} for the run's, --{kind}-options {option}=... for that of {name}",
    )


def _makes(kind: Kind, name: str, options: dict[str, Any]) -> bool:
    """Whether a method or optimizer of this name has these options for itself, and takes their values."""
    try:
        if kind == "method":
            create_method(name, **options)
            return True
        if not set(options) <= set(own_options(name)):
            return False
        base = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a former name is warned of when it is used
            optim.get(name)(base, **options)
    except (ValueError, TypeError):
        return False
    return True


def folder_name(method: str, optimizer: str, seed: int) -> str:
    """`METHOD-OPTIMIZER-sSEED`, with what a file system may not like replaced."""
    return re.sub(r"[^\w.=+-]", "_", f"{method}-{optimizer}-s{seed}")
