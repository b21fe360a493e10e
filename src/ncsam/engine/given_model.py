"""A model passed as a Python object: built as its signature says, refused in one sentence if it does not fit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ncsam._errors import bad_value
from ncsam._trees import tree_map
from ncsam.data.modalities import Modality
from ncsam.engine.checkpoint import kept_random_state
from ncsam.engine.config import RunConfig
from ncsam.engine.learner import prepared
from ncsam.models.building import EXPECTED, build_model, instead

#: A model, or a function of the number of classes that builds one.
Model = nn.Module | Callable[..., nn.Module]


class GivenModel:
    """Builds the models of a run from what was passed as `model`.

    A module is returned once, because a method may need several.

    Args:
        model: What was passed.
        config: The configuration of the run.
        num_classes: Number of classes.
    """

    def __init__(self, model: Model, config: RunConfig, num_classes: int) -> None:
        if not callable(model):
            raise bad_value("model", model, f"the name of a model, {EXPECTED}{instead(model)}")
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


def check_outputs(network: nn.Module, modality: Modality, num_classes: int) -> None:
    """Refuse a model that does not map samples of this kind to a logit for each class; it is left as it was.

    Args:
        network: A model from elsewhere.
        modality: The kind of data, which has an example.
        num_classes: Number of classes.

    Raises:
        UsageError: Its forward fails on two samples, or returns something else, such as probabilities.
    """
    example, name = modality.example(2), type(network).__name__
    device = next((tensor.device for tensor in network.parameters()), torch.device("cpu"))
    if device.type == "meta":
        raise bad_value("model", name, "a model with weights; those of this one are on the meta device")
    shapes = tree_map(lambda tensor: tuple(tensor.shape), example)
    training = {module: module.training for module in network.modules()}
    with kept_random_state(), torch.no_grad():
        try:
            found = network.eval()(tree_map(lambda tensor: tensor.to(device), example))
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError, AssertionError) as error:
            expected = f"a model of inputs of shape {shapes}; it raised {type(error).__name__}: {error}"
            raise bad_value("model", name, expected) from error
        finally:
            for module, mode in training.items():
                module.training = mode
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if shape != (2, num_classes):
        expected = f"a model with a logit for each of the {num_classes} classes: (2, {num_classes}) for two samples"
        raise bad_value("model", name, f"{expected}, not {shape}")
    if _are_probabilities(found):
        raise bad_value("model", name, "a model that returns logits, not probabilities: leave out its final softmax")


def _are_probabilities(rows: Tensor) -> bool:
    sums = rows.double().sum(dim=1)
    return bool((rows >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
