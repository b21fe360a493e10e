"""A finished (or stopped) run as a network that answers: its weights, its classes, and how it wants its inputs.

The checkpoint alone is needed; the data set may be gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ncsam import models
from ncsam._errors import bad_value
from ncsam.data.types import DataSet, Inputs, Split
from ncsam.engine.checkpoint import fitting, load_checkpoint
from ncsam.engine.config import RunConfig
from ncsam.engine.errors import RunError
from ncsam.engine.task import Task
from ncsam.engine.trust import refuse_unnamed
from ncsam.methods import Method
from ncsam.methods import create as create_method


class Answer(nn.Module):
    """The networks of a method as one: inputs in, logits out.

    `kept` are networks that the method itself holds, such as an average of the weights.
    """

    def __init__(self, method: Method, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.method = method
        self.networks = nn.ModuleList(networks)
        self.kept = nn.ModuleList(value for value in vars(method).values() if isinstance(value, nn.Module))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.method.predict(list(self.networks), inputs)

    @torch.no_grad()
    def speakers(self, inputs: Tensor) -> list[nn.Module]:
        """The networks that really answer: of a method that predicts with an average, the average alone."""
        heard: dict[nn.Module, None] = {}
        hooks = [
            network.register_forward_hook(lambda module, *_: heard.setdefault(module))
            for network in [*self.networks, *self.kept]
        ]
        self(inputs)
        for hook in hooks:
            hook.remove()
        return list(heard)


@dataclass(frozen=True)
class Trained:
    """A network in evaluation mode, with what one must know to use it (`about`: classes, mean, std, size, channels)."""

    network: Answer
    config: RunConfig
    about: dict[str, Any]
    labels_sha256: str = ""

    @property
    def classes(self) -> list[str]:
        return list(self.about["classes"])

    def example(self, count: int = 2) -> Tensor:
        """Inputs of the right shape, as an exporter wants to see them."""
        size = self.about["size"]
        shape = [self.about["channels"]] if size is None else [self.about["channels"], *size]
        return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def probabilities(self, inputs: Inputs, *, batch_size: int = 256, workers: int = 0) -> Iterator[Tensor]:
        """Class probabilities (batch, classes) of pictures, prepared as in the run's own evaluation."""
        nobody = np.zeros(len(inputs), dtype=np.int64)
        split = Split(inputs, nobody)
        size = self.about["size"]
        dataset = DataSet(
            name=self.about["name"],
            classes=tuple(self.classes),
            train=split,
            test=None,
            mean=tuple(self.about["mean"]),
            std=tuple(self.about["std"]),
            size=None if size is None else (size[0], size[1]),
        )
        config = self.config.replace(workers=workers, precision="32-true")
        loader = Task(dataset, nobody, None, None).loader(split, config, batch_size).evaluation(batch_size)
        for batch in loader.iterate(0):
            yield self.network(batch.views[0]).softmax(dim=1)


def load_trained(folder: Path, *, model: str | None = None) -> Trained:
    """The network of a run folder, from its last checkpoint.

    Nothing of the folder is run: it may name networks of `ncsam.models` alone. One that comes from elsewhere
    (`module:factory`) is built only if `model` is that very name.
    """
    state = load_checkpoint(folder / "checkpoints")
    if state is None:
        raise bad_value("run", str(folder), "a run folder with a checkpoint, as training writes it; this one has none")
    refuse_unnamed(f"the checkpoint of {folder}", state["config"], model)
    config, about = RunConfig.from_dict(state["config"]), state["data"]
    if not _describes_data(about):
        raise RunError(f"the checkpoint of {folder} does not say what its inputs and classes are")
    method = create_method(config.method, **config.method_options)
    channels = about["channels"] if about["size"] is not None else 1

    def create() -> nn.Module:
        return models.create(config.model, len(about["classes"]), channels, **config.model_options)

    networks = method.build(create)
    with fitting(folder):
        for network, learner in zip(networks, state["learners"], strict=True):
            network.load_state_dict(learner["network"])
        method.load_state_dict(state["method"])
    return Trained(Answer(method, networks).float().eval(), config, about, state["labels_sha256"])


def _describes_data(about: dict[str, Any]) -> bool:
    """Whether the parts that a network is used with are there, and of the right types."""
    classes, size = about.get("classes"), about.get("size")
    numbers = [about.get(name) for name in ("mean", "std")]
    return (
        isinstance(about.get("name"), str)
        and isinstance(classes, list)
        and len(classes) > 0
        and all(isinstance(each, str) for each in classes)
        and all(isinstance(each, list) and all(isinstance(n, float) for n in each) for each in numbers)
        and isinstance(about.get("channels"), int)
        and about["channels"] > 0
        and (size is None or (isinstance(size, list) and len(size) == 2 and all(isinstance(n, int) for n in size)))
    )
