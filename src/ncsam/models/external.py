"""Networks from elsewhere: torchvision and timm where they are installed, and a user's own factory."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam.models.backbone import Backbone


class Wrapped(Backbone):
    """A library's network without its head, which then returns features, and a head of ours."""

    def __init__(self, network: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.network = network
        self.num_features = num_features
        self.fc = nn.Linear(num_features, num_classes)

    def features(self, x: Tensor) -> Tensor:
        out = self.network(x)
        if not isinstance(out, Tensor) or out.dim() != 2:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"{type(self.network).__name__} returned {shape} for features, not one vector a sample")
        return out


def import_library(module: str, purpose: str) -> ModuleType:
    """Import an optional library, or say in one sentence that it is not installed or does not import."""
    package = module.partition(".")[0]
    try:
        installed = importlib.util.find_spec(package) is not None
    except ValueError:  # a half-imported package without a spec
        installed = True
    if not installed:
        raise ImportError(
            f"{purpose} needs {package!r}, which is not installed; install it with: pip install {package}"
        )
    try:
        return importlib.import_module(module)
    except Exception as error:  # a torchvision built for another torch raises RuntimeError, OSError or AttributeError
        raise ImportError(
            f"{purpose} needs {package!r}, which is installed but does not import ({error}); "
            "its version has to fit your torch, and torchvision if it uses that"
        ) from error


def from_torchvision(
    name: str, num_classes: int, in_channels: int, pretrained: bool | str, options: Mapping[str, Any]
) -> Wrapped:
    """A classification network of torchvision; `pretrained` may be the name of its weights ("IMAGENET1K_V2")."""
    models = import_library("torchvision.models", f"model 'torchvision:{name}'")
    _check_known("torchvision", name, models.list_models(module=models))
    if in_channels != 3:
        raise bad_value(
            "in_channels", in_channels, f"torchvision:{name} takes 3 channels; timm: and our own take others"
        )
    weights = ("DEFAULT" if pretrained else None) if isinstance(pretrained, bool) else pretrained.upper()
    network: nn.Module = models.get_model(name, weights=weights, **options)
    linear = [path for path, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"torchvision:{name} has no linear head to replace")
    parent, _, last = linear[-1].rpartition(".")
    num_features = network.get_submodule(linear[-1]).in_features
    setattr(network.get_submodule(parent), last, nn.Identity())
    return Wrapped(network, int(num_features), num_classes)  # type: ignore[arg-type]


def from_timm(
    name: str, num_classes: int, in_channels: int, pretrained: bool | str, options: Mapping[str, Any]
) -> Wrapped:
    """A network of timm, whose weights are chosen in its name ("resnet50.a1_in1k")."""
    timm = import_library("timm", f"model 'timm:{name}'")
    if isinstance(pretrained, str):
        raise bad_value(
            "pretrained", pretrained, "True, False or a file; timm's weights are chosen in the model's name"
        )
    if not timm.is_model(name):
        _check_known("timm", name, timm.list_models())
    network = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=in_channels, **options)
    return Wrapped(network, int(getattr(network, "head_hidden_size", network.num_features)), num_classes)


def from_user(
    module: str, factory: str, num_classes: int, in_channels: int, pretrained: bool | str, options: Mapping[str, Any]
) -> nn.Module:
    """The network that the user's factory returns; `in_channels` and `pretrained` reach it if it takes them."""
    name = f"{module}:{factory}"
    if not module or not factory:
        raise bad_value("name", name, "'module:factory', such as 'my_networks:build'")
    try:
        build: Any = importlib.import_module(module)
    except Exception as error:  # whatever the user's own module raises
        near = difflib.get_close_matches(module, ("torchvision", "timm"), n=1)
        hint = f"; did you mean '{near[0]}:{factory}'?" if near else ""
        raise ImportError(f"model {name!r}: importing {module!r} failed ({error}){hint}") from error
    for part in factory.split("."):
        if not hasattr(build, part):
            raise bad_value("name", name, f"{module!r} has no {factory!r}")
        build = getattr(build, part)
    if not callable(build):
        raise bad_value(
            "name", name, f"{factory!r} is a {type(build).__name__}, and only a function or class is called"
        )
    if pretrained and not _takes(build, "pretrained"):
        raise bad_value("pretrained", pretrained, f"{name} takes no such argument; give False or a file of weights")
    offered = {"in_channels": in_channels} | ({"pretrained": pretrained} if pretrained else {})
    arguments = {key: value for key, value in offered.items() if _takes(build, key)}
    model = build(num_classes=num_classes, **arguments, **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def takes_pretrained(name: str) -> bool:
    """Whether published weights can be asked of the model called `name`: of a user's factory, if it takes the word."""
    module, colon, factory = name.partition(":")
    if not colon or module in ("torchvision", "timm"):
        return True
    build: Any = importlib.import_module(module)
    for part in factory.split("."):
        build = getattr(build, part, None)
    return build is not None and _takes(build, "pretrained")


def _takes(function: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # no signature to read, as in some compiled functions
        return False
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _check_known(library: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"{library} has no classification model {name!r}.{hint}")
