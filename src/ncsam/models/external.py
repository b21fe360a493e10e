"""Models from elsewhere: torchvision and timm where they are installed, and a user's own factory."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ncsam._arguments import find_named, is_reference
from ncsam._errors import bad_value, did_you_mean, need
from ncsam.models.backbone import Backbone, Family
from ncsam.models.building import build_model


class Wrapped(Backbone):
    """A model of another library without its head, so that it returns features, and a new linear head.

    Args:
        network: The model.
        num_features: Width of its features.
        num_classes: Number of classes.
    """

    def __init__(self, network: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.network = network
        self.num_features = num_features
        self.fc = nn.Linear(num_features, num_classes)
        self.family = guess_family(self)

    def features(self, x: Tensor) -> Tensor:
        """What the model returns without its head, (N, `num_features`).

        Args:
            x: A batch, in the form that the wrapped model takes.

        Raises:
            ValueError: The model returned something else than one vector for each sample.
        """
        out = self.network(x)
        if not isinstance(out, Tensor) or out.dim() != 2:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ValueError(f"{type(self.network).__name__} returned {shape} for features, not one vector a sample")
        return out


def from_torchvision(
    name: str, num_classes: int, in_channels: int, pretrained: bool | str, options: Mapping[str, Any]
) -> Wrapped:
    """A classification model of torchvision; `pretrained` may be the name of its weights ("IMAGENET1K_V2").

    Args:
        name: Name of the model.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        pretrained: Whether to load published weights, or which.
        options: The model's own options.
    """
    models = need("torchvision.models", None, f"model 'torchvision:{name}'")
    _check_known("torchvision", name, models.list_models(module=models))
    if in_channels != 3:
        raise bad_value(
            "in_channels", in_channels, f"3 for torchvision:{name}; models of timm and our own take any number"
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
    """A model of timm, whose weights are chosen in its name ("resnet50.a1_in1k").

    Args:
        name: Name of the model.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        pretrained: Whether to load published weights, or which.
        options: The model's own options.
    """
    timm = need("timm", None, f"model 'timm:{name}'")
    if isinstance(pretrained, str):
        raise bad_value(
            "pretrained", pretrained, "True, False or a file; timm's weights are chosen in the model's name"
        )
    if not timm.is_model(name):
        _check_known("timm", name, timm.list_models())
    network = timm.create_model(name, pretrained=pretrained, num_classes=0, in_chans=in_channels, **options)
    return Wrapped(network, int(getattr(network, "head_hidden_size", network.num_features)), num_classes)


def from_user(
    name: str, num_classes: int, in_channels: int, pretrained: bool | str, options: Mapping[str, Any]
) -> nn.Module:
    """The model that the user's factory returns; `in_channels` and `pretrained` reach it if it takes them.

    Args:
        name: Name of the model.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        pretrained: Whether to load published weights, or which.
        options: The model's own options.
    """
    if not is_reference(name):
        raise bad_value("name", name, "'module:factory', such as 'my_models:build'")
    try:
        build = find_named("model", name)
    except ImportError as error:
        module, _, factory = name.partition(":")
        near = difflib.get_close_matches(module, ("torchvision", "timm"), n=1)
        if not near:
            raise
        raise ImportError(f"{error}. Did you mean '{near[0]}:{factory}'?") from error
    if pretrained and not _takes(build, "pretrained"):
        raise bad_value("pretrained", pretrained, f"False or a file of weights, because {name} takes no `pretrained`")
    offered = {"in_channels": in_channels} | ({"pretrained": pretrained} if pretrained else {})
    arguments = {key: value for key, value in offered.items() if _takes(build, key)}
    return build_model(build, num_classes, **arguments, **options)


def takes_pretrained(name: str) -> bool:
    """Whether the model called `name` takes `pretrained=True`: a user's factory does if it has such an argument.

    Args:
        name: Name of the model.
    """
    if name.partition(":")[0] in ("torchvision", "timm") or not is_reference(name):
        return True
    return _takes(find_named("model", name), "pretrained")


def _takes(function: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # no signature to read, as in some compiled functions
        return False
    return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _check_known(library: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        raise ValueError(f"{library} has no classification model {name!r}.{did_you_mean(name, names, ' ')}")


def guess_family(model: nn.Module) -> Family:
    """The family of a complete model from elsewhere, by its layers.

    Args:
        model: The model.
    """
    modules = list(model.modules())
    if any("attention" in type(module).__name__.lower() for module in modules):
        return "transformer"
    if any(isinstance(module, _ConvNd) for module in modules):
        return "conv"
    if any(isinstance(module, nn.Embedding) for module in modules):
        return "other"
    return "mlp" if sum(isinstance(module, nn.Linear) for module in modules) > 1 else "linear"
