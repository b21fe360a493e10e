"""Specs: a name with options, `NAME[:OPTION=VALUE]...`, such as `sam:rho=0.1:warmup=0.25`, `ncsam:kappa=0` or
`mixup:alpha=8`. An option is one of the run's (`rho`, `lr`, `warmup`, `base`, ...) or else one of the method's or
optimizer's own (`alpha`; `sign`, `compensation`, ...). Values are read as YAML: numbers, true, false, null, words.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

from ncsam._errors import bad_value, need
from ncsam.engine import RunConfig
from ncsam.methods import create as create_method


def with_spec(config: RunConfig, kind: Literal["method", "optimizer"], spec: str) -> RunConfig:
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
            (changes if option in known else own)[option] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise bad_value(kind, spec, f"{option} has a value that is not YAML") from None
    if own:
        changes[f"{kind}_options"] = {**getattr(config, f"{kind}_options"), **own}
    changed = config.replace(**changes)
    if kind == "method":
        create_method(changed.method, **changed.method_options)
    return changed


def folder_name(method: str, optimizer: str, seed: int) -> str:
    """`METHOD-OPTIMIZER-sSEED`, with what a file system may not like replaced."""
    return re.sub(r"[^\w.=+-]", "_", f"{method}-{optimizer}-s{seed}")
