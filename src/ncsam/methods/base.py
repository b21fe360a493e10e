"""The seam between methods and optimizers: a plan is made once, its loss may be evaluated any number of times.

A sharpness-aware optimizer evaluates a step's loss two or three times at different weights. What the step trains on
(which samples, which labels, how they are mixed) must be the same each time. So a method splits its work:
`plan` decides, without gradients and with all its randomness; `loss` is a differentiable function of one network and
its plan, and draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from ncsam.data.loader import Batch

Presets: TypeAlias = "Mapping[str, Mapping[str, Any]]"

_METHOD_STREAM = 2**16  # apart from the streams of the loader's order and views


class Samples(Protocol):
    """Memory per training sample, keyed by its index; the engine keeps it through checkpoints and over ranks."""

    def column(self, name: str, shape: Sequence[int] = (), dtype: torch.dtype = ..., fill: float = 0.0) -> Tensor:
        """Make a column once; the tensor (samples, *shape)."""

    def __getitem__(self, name: str) -> Tensor:
        """A column as this rank sees it."""

    def write(self, name: str, index: Tensor, values: Tensor) -> None:
        """Set the rows `index`; other ranks see them from the next epoch on."""

    def add(self, name: str, index: Tensor, values: Tensor | float) -> None:
        """Add to the rows `index`; the ranks' additions are summed."""


def _no_predictions(networks: Sequence[nn.Module]) -> Tensor:
    raise NotImplementedError("predictions on the training split are the engine's to give")


@dataclass
class State:
    """Where training stands, for a method's decisions. It holds observed labels only, never clean ones."""

    num_classes: int
    labels: Tensor
    epochs: int
    steps_per_epoch: int
    samples: Samples
    seed: int = 0
    #: The noise rate that the user named, if any.
    noise_rate: float | None = None
    #: True for the samples that are held out of training; `None` if all are trained on.
    held_out: Tensor | None = None
    #: Class probabilities (samples, classes) of the un-augmented training split, by some of the networks.
    predict: Callable[[Sequence[nn.Module]], Tensor] = _no_predictions
    #: Epochs are counted from 1, batches within an epoch from 0.
    epoch: int = 1
    batch: int = 0

    def random(self) -> np.random.Generator:
        """Random numbers that depend on (seed, epoch, batch) alone: the same after a restart, and on all ranks."""
        return np.random.default_rng((self.seed, self.epoch, self.batch, _METHOD_STREAM))


@dataclass(frozen=True)
class Plan:
    """What one network trains on in one step; methods add fields of their own by subclassing.

    `targets` are class numbers, or probabilities (rows, classes). `index` says which sample each row is, or is `None`
    where rows are mixtures of several.
    """

    inputs: Tensor
    targets: Tensor
    index: Tensor | None = None


class Outcome(NamedTuple):
    """A differentiable loss, with the logits and targets behind it, whose labels NCSAM may flip."""

    loss: Tensor
    logits: Tensor
    targets: Tensor


class Method:
    """A learning method. Subclasses define `plan`, and whatever else differs from plain cross-entropy."""

    #: What it is called; by default the name of the class in small letters.
    name: ClassVar[str]
    #: How many networks it trains, each with an optimizer of its own.
    networks: int = 1
    #: Views of each picture it wants from the loader; "train" is the run's own augmentation.
    views: tuple[str, ...] = ("train",)
    #: Options by the name of a data set and noise, where the literature has them.
    presets: ClassVar[Presets] = {}

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """The networks to train; one that joins two (for one loss over both) counts as one."""
        return [create() for _ in range(self.networks)]

    def start(self, state: State) -> None:
        """Before the first epoch: make columns in `state.samples`."""

    def begin_epoch(self, networks: Sequence[nn.Module], state: State) -> None:
        """Before each epoch: fit mixtures, estimate transitions, relabel."""

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Decide once, without gradients, what this batch trains on: one plan for each network."""
        raise NotImplementedError  # each method's own

    def loss(self, network: nn.Module, plan: Plan) -> Outcome:
        """The loss of one network on its plan: the same value whenever it is called at the same weights."""
        logits = network(plan.inputs)
        return Outcome(self.criterion(logits, plan.targets), logits, plan.targets)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over rows; also the one for flipped labels."""
        return F.cross_entropy(logits, targets)

    def after_step(self, networks: Sequence[nn.Module], state: State) -> None:
        """After all networks have stepped: averages of weights, schedules."""

    def predict(self, networks: Sequence[nn.Module], inputs: Tensor) -> Tensor:
        """Logits for evaluation; of several networks, the mean."""
        logits: Tensor = sum(network(inputs) for network in networks) / len(networks)
        return logits

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart and is not in `State.samples`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
