"""A model passed as a Python object: built as its signature says, refused in one sentence if it does not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import tree_map
from ncsam.data.modalities import Modality
from ncsam.engine.checkpoint import kept_random_state
from ncsam.engine.config import RunConfig
from ncsam.engine.learner import prepared

#: A model, or a function of the number of classes that builds one.
Model = nn.Module | Callable[..., nn.Module]
_EXPECTED = "a torch.nn.Module, or a function of the number of classes that returns one"


class GivenModel:
    """Builds the models of a run from what was passed as `model`.

    A module is returned once, because a method may need several. A function, which may be a class, is called with the
    number of classes: by the name of its parameter that says `class`, else in the first place if that must be given.

    Args:
        model: What was passed.
        config: The configuration of the run.
        num_classes: Number of classes.
    """

    def __init__(self, model: Model, config: RunConfig, num_classes: int) -> None:
        if not callable(model):
            raise bad_value("model", model, f"the name of a model, {_EXPECTED}")
        self.model = model
        self.config = config
        self.num_classes = num_classes
        self.used = False

    def __call__(self) -> nn.Module:
        if not isinstance(self.model, nn.Module):
            return prepared(self.config, build_model(self.model, self.num_classes))
        if self.used:
            name, method = type(self.model).__name__, self.config.method
            raise bad_value("model", name, f"a function of num_classes, because {method} builds several models")
        self.used = True
        return prepared(self.config, self.model)


def build_model(build: Callable[..., nn.Module], num_classes: int) -> nn.Module:
    """The model that a user's function or class makes.

    Args:
        build: Takes the number of classes, or nothing.
        num_classes: Number of classes.

    Raises:
        UsageError: It needs other arguments, or returns no module.
    """
    name = getattr(build, "__qualname__", type(build).__name__)
    args, named = _arguments(build, num_classes)
    try:
        inspect.signature(build).bind(*args, **named)
    except TypeError as error:
        raise bad_value("model", name, f"{_EXPECTED}, such as lambda num_classes: {name}(...): {error}") from None
    except ValueError:  # what is written in C has no signature
        pass
    network = build(*args, **named)
    if not isinstance(network, nn.Module):
        raise bad_value("model", name, f"{_EXPECTED}; this one returned {type(network).__name__}")
    return network


def _arguments(build: Callable[..., Any], num_classes: int) -> tuple[tuple[int, ...], dict[str, int]]:
    try:
        parameters = list(inspect.signature(build).parameters.values())
    except (TypeError, ValueError):
        return (num_classes,), {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for parameter in parameters:
        if parameter.kind in by_name and "class" in parameter.name:
            return (), {parameter.name: num_classes}
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return (), {"num_classes": num_classes}
    first = parameters[0] if parameters else None
    takes_any = first is not None and first.kind is inspect.Parameter.VAR_POSITIONAL
    needed = first is not None and first.default is first.empty and first.kind is not inspect.Parameter.KEYWORD_ONLY
    return ((num_classes,), {}) if takes_any or needed else ((), {})


def check_outputs(network: nn.Module, modality: Modality, num_classes: int) -> None:
    """Refuse a model that does not map samples of this kind to a logit for each class; it is left as it was.

    Args:
        network: A model from elsewhere.
        modality: The kind of data, which has an example.
        num_classes: Number of classes.

    Raises:
        UsageError: Its forward fails on two samples, or returns something else.
    """
    example, name = modality.example(2), type(network).__name__
    device = next((tensor.device for tensor in network.parameters()), torch.device("cpu"))
    shapes = tree_map(lambda tensor: tuple(tensor.shape), example)
    training = {module: module.training for module in network.modules()}
    with kept_random_state(), torch.no_grad():
        try:
            found = network.eval()(tree_map(lambda tensor: tensor.to(device), example))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
            expected = f"a model of inputs of shape {shapes}; it raised {type(error).__name__}: {error}"
            raise bad_value("model", name, expected) from error
        finally:
            for module, mode in training.items():
                module.training = mode
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (2, num_classes):
        expected = f"a model with a logit for each of the {num_classes} classes: (2, {num_classes}) for two samples"
        raise bad_value("model", name, f"{expected}, not {shape}")
