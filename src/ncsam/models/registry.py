"""Models by name: ours, a library's (`transformers:`, `torchvision:`, `timm:NAME`), or your own (`module:factory`)."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ncsam._arguments import add, check_options, positive
from ncsam._errors import bad_value, unknown_name
from ncsam.models.backbone import MOST, Backbone, Family
from ncsam.models.external import from_timm, from_torchvision, from_user
from ncsam.models.fitted import CLOSED_FORM
from ncsam.models.mean import mean
from ncsam.models.stacked import stacked
from ncsam.models.transformer import from_transformers
from ncsam.models.weights import is_file, load_published, load_weights
from ncsam.pretrained.hub import PREFIX, model_folder

_MOST_WEIGHTS = 10_000_000_000  # 40 GB
#: Libraries whose models are reached by a prefix of the name.
_LIBRARIES = (PREFIX, "torchvision:", "timm:")
_GIVEN = ("num_classes", "in_channels")
#: Of other models, so they are on no list: without members there is nothing to build.
_COMBINED: dict[str, Callable[..., nn.Module]] = {"mean": mean, "stacked": stacked}
_BUILDERS: dict[str, Callable[..., Backbone]] = {}
_Builder = TypeVar("_Builder", bound=Callable[..., Backbone])


def register(builder: _Builder) -> _Builder:
    """Make a model available by the name of the function that builds it; a decorator.

    Args:
        builder: A function `builder(num_classes, in_channels=3, *, options...) -> Backbone`.

    Returns:
        The function itself.

    Raises:
        ValueError: The name is taken.
    """
    add(_BUILDERS, "model", builder.__name__, builder)
    return builder


def names() -> list[str]:
    """The names of our own models, sorted."""
    return sorted(_BUILDERS)


def options(name: str) -> dict[str, Any]:
    """The options of one of our own models, with their defaults; empty for a model from elsewhere.

    Args:
        name: As for `create`.

    Examples:
        >>> options("mlp")
        {'in_features': None, 'hidden': (256,), 'dropout': 0.0}
    """
    if name not in _BUILDERS:
        return {}
    return {p.name: p.default for p in inspect.signature(_BUILDERS[name]).parameters.values() if p.name not in _GIVEN}


@dataclass(frozen=True)
class Traits:
    """What defaults of training depend on.

    Attributes:
        family: "linear", "mlp", "conv", "transformer" or "text"; "other" for your own `module:factory`, which is built
            only where it is used.
        weights: Number of weights; 0 where it is not known.
        batch_norm: Whether it has batch normalization, as ResNets have; transformers and ConvNeXt have none.
    """

    family: Family
    weights: int = 0
    batch_norm: bool = False


def traits(name: str, **options: Any) -> Traits:
    """The traits of the model called `name`, without allocating its weights where that can be avoided.

    Args:
        name: As for `create`.
        **options: The model's own.

    Examples:
        >>> [traits(name).family for name in ("mlp", "resnet18", "text_mean")], traits("mlp", hidden=()).family
        (['mlp', 'conv', 'text'], 'linear')
    """
    library = name.partition(":")[0] if name.startswith(_LIBRARIES) else ""
    if name not in _BUILDERS and not library:
        return Traits("other")
    if library == "transformers":
        model_folder(name.removeprefix(PREFIX))  # `create` itself downloads nothing unless it is to load weights
    try:
        with torch.device("meta"):
            model = create(name, 2, **options)
    except (NotImplementedError, RuntimeError):  # what torch raises where a builder reads values of weights on "meta"
        model = create(name, 2, **options)
    known = model.family if isinstance(model, Backbone) else "other"
    weights = sum(p.numel() for p in model.parameters())
    return Traits(known, weights, any(isinstance(module, _BatchNorm) for module in model.modules()))


def closed_form_names() -> list[str]:
    """The names of the models that are fitted rather than trained, sorted."""
    return sorted(CLOSED_FORM)


def is_closed_form(name: str) -> bool:
    """Whether the model called `name` is fitted by `ncsam.classifiers` rather than trained by steps.

    Args:
        name: Name of a model.
    """
    return name in CLOSED_FORM


def is_combined(name: str) -> bool:
    """Whether the model called `name` consists of trained models, as `ncsam auto` combines them.

    Args:
        name: Name of a model.
    """
    return name in _COMBINED


def _refuse_huge(name: str, build: Callable[[], nn.Module], options: dict[str, Any]) -> None:
    """Count the weights where they take no memory: an option too large would end the machine, not the call."""
    with torch.device("meta"):
        weights = sum(p.numel() for p in build().parameters())
    if weights > _MOST_WEIGHTS:
        raise bad_value(f"options of {name}", options, f"at most {_MOST_WEIGHTS:,} weights, not {weights:,}")


def create(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    *,
    pretrained: bool | str | os.PathLike[str] = False,
    **options: Any,
) -> nn.Module:
    """Build a model by name.

    Args:
        name: One of `names()`, "torchvision:NAME", "timm:NAME", "transformers:NAME" (a folder or a model of the
            Hugging Face hub, for texts), or "module:factory" for your own function or class, which is called with
            `num_classes`, `options`, and with `in_channels` if it takes that.
        num_classes: Number of classes.
        in_channels: Channels of the input images.
        pretrained: True for the usual published weights, a string for particular ones ("imagenet1k_v2"), or a file
            (.pt, .pth, .safetensors) that holds a state dict. If the number of classes differs, the file's head is
            left out. Missing and unused entries are reported as a warning; a shape that does not fit is an error.
        **options: The model's own, such as `stem` or `final_bn`; see `options`.

    Returns:
        A `Backbone`, or whatever module your own factory returns.

    Raises:
        UsageError: An argument is invalid, or a name unknown.
        ImportError: The library or module cannot be imported.

    Examples:
        >>> create("mlp", 10, in_features=64, hidden=(32,)).num_features
        32
    """
    if not isinstance(name, str):
        raise bad_value("name", name, "the name of a model, as text")
    num_classes, in_channels = positive("num_classes", num_classes, MOST), positive("in_channels", in_channels, MOST)
    if isinstance(pretrained, bool):
        model = _build(name, num_classes, in_channels, pretrained, options)
    elif is_file(pretrained):
        model = create(name, num_classes, in_channels, **options)
        load_weights(model, os.fspath(pretrained))
    elif isinstance(pretrained, str):
        model = _build(name, num_classes, in_channels, pretrained, options)
    else:
        raise bad_value("pretrained", pretrained, "True, False, the name of published weights, or a file of weights")
    if isinstance(model, Backbone):
        model.pretrained = bool(pretrained)
    return model


def _build(name: str, num_classes: int, in_channels: int, pretrained: bool | str, options: dict[str, Any]) -> nn.Module:
    source, colon, rest = name.partition(":")
    if source == "torchvision" and colon:
        return from_torchvision(rest, num_classes, in_channels, pretrained, options)
    if source == "timm" and colon:
        return from_timm(rest, num_classes, in_channels, pretrained, options)
    if source == "transformers" and colon:
        given = check_options("transformers", from_transformers, options, but=("name", "num_classes", "pretrained"))
        return from_transformers(rest, num_classes, pretrained, **given)
    if colon:
        return from_user(name, num_classes, in_channels, pretrained, options)
    if name in _COMBINED:
        check_options(name, _COMBINED[name], options, but=("create", *_GIVEN))
        return _COMBINED[name](create, num_classes, in_channels, **options)
    if name in CLOSED_FORM:
        if pretrained:
            raise bad_value("pretrained", pretrained, f"False: {name} is fitted to the data")
        options = check_options(name, CLOSED_FORM[name], options, but=_GIVEN)
        return CLOSED_FORM[name](num_classes, in_channels, **options)
    if name not in _BUILDERS:
        raise unknown_name(
            "model", name, [*_BUILDERS, *CLOSED_FORM, *(f"{each}NAME" for each in _LIBRARIES), "module:factory"]
        )
    options = check_options(name, _BUILDERS[name], options, but=_GIVEN)
    build = functools.partial(_BUILDERS[name], num_classes, in_channels, **options)
    _refuse_huge(name, build, {"num_classes": num_classes, "in_channels": in_channels, **options})
    model = build()
    load_packaged: Callable[[], None] | None = getattr(model, "load_packaged", None)
    if pretrained and load_packaged is not None:  # weights that ship in a pip package
        load_packaged()
    elif pretrained:
        load_published(model, name, pretrained)
    return model
