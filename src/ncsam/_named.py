"""`module:Name`: a class or function of the user's own, named in text; and which names a file may contain."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from typing import Any

from ncsam._errors import bad_value
from ncsam.errors import UsageError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TRANSFORMERS = "transformers:"  # never its code, only safetensors; nothing is downloaded for a run that is read
_LIBRARIES = ("torchvision:", "timm:")  # whose own list of names is asked before anything is built


def is_reference(name: object) -> bool:
    """Whether a name has the form `module:Name`, both possibly with dots; a Windows path has not."""
    return isinstance(name, str) and _REFERENCE.fullmatch(name) is not None


def find_named(kind: str, reference: str) -> Any:
    """Import what `module:Name` stands for. Only for names that the user gave with the call itself."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever the user's own module raises
        raise ImportError(
            f"{kind} {reference!r}: importing {module!r} failed ({type(error).__name__}: {error})"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise bad_value(kind, reference, f"a name defined in {module!r}, which has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise bad_value(kind, reference, f"a class or function, but {name!r} is of type {type(found).__name__}")
    return found


def require_explicit_import(where: str, config: Mapping[str, Any], named: Mapping[str, Any]) -> None:
    """Raise `UsageError` if a configuration read from `where` names code that only its user may name.

    A name without a colon can only be one of the registry. Those of torchvision and timm are fine without options, for
    some of timm's are files to load. Anything else, a `module:factory` above all, is imported and called only where the
    same name was given with the call itself, among the options `named`. The same holds for a `module:Name` in the
    place of a method, an optimizer, its base, the data, or a backbone.
    """
    backbone = str(config.get("backbone") or "")
    listed = backbone.startswith((_TRANSFORMERS, *_LIBRARIES))
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
    if model.startswith(_TRANSFORMERS):
        return
    listed = model.startswith(_LIBRARIES)
    if not listed or options:
        asks = f"the model {model!r}" + (" with options" if listed else "")
        raise UsageError(
            f"{where} asks for {asks}, which is not one of ours: to have it imported and called, name it yourself with "
            f"--model {model} (in Python: model={model!r}), if you trust where the file is from"
        )
