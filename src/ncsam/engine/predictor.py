"""The trained model of a run: its weights, its classes, and the preparation of its inputs.

It needs the checkpoint alone; the dataset may be gone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ncsam._arguments import is_reference, require_explicit_import
from ncsam._errors import bad_value
from ncsam._trees import Tree
from ncsam.data.loading.loader import Loader
from ncsam.data.modalities import Modality, restored_modality
from ncsam.data.types import Inputs, Split
from ncsam.engine.checkpoint import load_checkpoint, mismatch_as_run_error
from ncsam.engine.config import RunConfig
from ncsam.engine.given_model import GivenModel, Model
from ncsam.engine.learner import create_network
from ncsam.errors import RunError
from ncsam.methods import Method
from ncsam.methods import create as create_method
from ncsam.models.backbone import is_convolutional
from ncsam.runs import layout


class Predictor(nn.Module):
    """The networks of a method as one: inputs in, logits out.

    `kept` are models of the method itself, such as an average of the weights.

    Args:
        method: The learning method, which joins the predictions.
        networks: Its models.
    """

    def __init__(self, method: Method, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.method = method
        self.networks = nn.ModuleList(networks)
        self.kept = nn.ModuleList(value for value in vars(method).values() if isinstance(value, nn.Module))

    def forward(self, inputs: Tree) -> Tensor:
        """Logits (batch, classes) of a batch.

        Args:
            inputs: A batch as the models take it.
        """
        return self.method.predict(list(self.networks), inputs)

    @torch.no_grad()
    def predictors(self, inputs: Tree) -> list[nn.Module]:
        """The networks that predict: of a method that predicts with an average, the average alone.

        Args:
            inputs: A batch as the models take it; it is predicted once.
        """
        used: dict[nn.Module, None] = {}
        hooks = [
            network.register_forward_hook(lambda module, *_: used.setdefault(module))
            for network in [*self.networks, *self.kept]
        ]
        self(inputs)
        for hook in hooks:
            hook.remove()
        return list(used)


@dataclass(frozen=True)
class LoadedRun:
    """A model in evaluation mode, with what its use needs (`about`: classes and modality).

    Attributes:
        network: The models of the method as one.
        config: The configuration of the run.
        about: Name, classes and modality of the data, as the checkpoint describes them.
        labels_sha256: Checksum of the training labels.
    """

    network: Predictor
    config: RunConfig
    about: dict[str, Any]
    labels_sha256: str = ""

    @property
    def classes(self) -> list[str]:
        return list(self.about["classes"])

    @cached_property
    def modality(self) -> Modality:
        """The kind of data it was trained on."""
        return restored_modality(self.about)

    def example(self, count: int = 2) -> Tree:
        """Inputs of the right form, for an exporter.

        Args:
            count: Number of samples.
        """
        return self.modality.example(count)

    @torch.no_grad()
    def probabilities(self, inputs: Inputs, *, batch_size: int = 256, workers: int = 0) -> Iterator[Tensor]:
        """Class probabilities (batch, classes) of inputs, prepared as in the run's own evaluation.

        Args:
            inputs: Samples of the kind of data that the run was trained on.
            batch_size: Samples per batch.
            workers: Processes that decode image files.

        Yields:
            One tensor per batch, in the order of the inputs.
        """
        split = Split(inputs, np.zeros(len(inputs), dtype=np.int64))
        prepared = {**self.modality.preparation(inputs), "channels_last": is_convolutional(self.network)}
        loader = Loader(split, batch_size, **prepared, workers=workers).evaluation(batch_size)
        for batch in loader.iterate(0):
            yield self.network(batch.views[0]).softmax(dim=1)


def load_predictor(
    folder: Path,
    *,
    model: str | Model | None = None,
    method: str | None = None,
) -> LoadedRun:
    """The trained model of a run folder, from its last checkpoint.

    A folder does not decide what code is run: it may name models and methods of ncsam only.

    Args:
        folder: the run folder.
        model: the `module:factory` that the run names as its model, which is then imported; or the object that was
            passed to training. A module is copied.
        method: the `module:Name` that the run names as its method, likewise.
    """
    state = load_checkpoint(folder / layout.CHECKPOINTS)
    if state is None:
        raise bad_value("run", str(folder), "a run folder with a checkpoint, as training writes it; this one has none")
    foreign = [option for option in ("optimizer", "base") if is_reference(state["config"].get(option))]
    own = {**state["config"], **dict.fromkeys(foreign, "sgd")}  # a trained model needs neither
    named = {"model": model if isinstance(model, str) else None, "method": method}
    require_explicit_import(f"the checkpoint of {folder}", {**own, "data": ""}, named)
    config, about = RunConfig.from_dict(own), state["data"]
    kind = _described_data(about, folder)
    learned = create_method(config.method, **config.method_options)
    create: Callable[[], nn.Module]
    if model is None or isinstance(model, str):
        create = partial(create_network, config, len(about["classes"]), kind.in_channels)
    else:
        own_copy = copy.deepcopy(model) if isinstance(model, nn.Module) else model
        create = GivenModel(own_copy, config, len(about["classes"]))
    networks = learned.build(create)
    with mismatch_as_run_error(folder):
        for network, learner in zip(networks, state["learners"], strict=True):
            network.load_state_dict(learner["network"])
        learned.load_state_dict(state["method"])
    return LoadedRun(Predictor(learned, networks).float().eval(), config, about, state["labels_sha256"])


def _described_data(about: dict[str, Any], folder: Path) -> Modality:
    """The kind of data that a network is used with, if its description is complete and of the right types."""
    classes = about.get("classes")
    problem = f"the checkpoint of {folder} does not say what its inputs and classes are"
    if not isinstance(classes, list) or not classes or any(not isinstance(each, str) for each in classes):
        raise RunError(problem)
    try:
        return restored_modality(about)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunError(f"{problem}: {error}") from error
