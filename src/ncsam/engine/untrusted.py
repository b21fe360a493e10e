"""What a file may name: a configuration or checkpoint from elsewhere must not decide what code runs here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncsam._named import is_reference
from ncsam.errors import UsageError

_LIBRARIES = ("torchvision:", "timm:")  # whose own list of names is asked before anything is built


def require_explicit_import(where: str, config: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a configuration read from `where` names code that only its user may name.

    A name without a colon can only be one of the registry. Those of torchvision and timm are fine without options, for
    some of timm's are files to load. Anything else, a `module:factory` above all, is imported and called only where the
    same name was given with the call itself, among the options `named`. The same holds for a `module:Name` in the
    place of a method, an optimizer, its base, the data, or a backbone.
    """
    backbone = str(config.get("backbone") or "")
    listed = backbone.startswith(_LIBRARIES)
    for option in ("method", "optimizer", "base", "data", *(() if listed else ("backbone",))):
        if is_reference(config.get(option)) and config[option] != named.get(option):
            raise UsageError(
                f"{where} asks for {option} {config[option]!r}, which is not one of ours: to have it imported and "
                f"called, name it yourself with --{option} (in Python: {option}={config[option]!r}), if you trust "
                "where the file is from"
            )
    model, options = config.get("model"), config.get("model_options")
    if not isinstance(model, str) or ":" not in model or model == named.get("model"):
        return
    listed = model.startswith(_LIBRARIES)
    if not listed or options:
        asks = f"the model {model!r}" + (" with options" if listed else "")
        raise UsageError(
            f"{where} asks for {asks}, which is not one of ours: to have it imported and called, name it yourself with "
            f"--model {model} (in Python: model={model!r}), if you trust where the file is from"
        )
