"""The seam between methods and optimizers: a plan is made once, its loss may be evaluated any number of times.

A sharpness-aware optimizer evaluates a step's loss two or three times at different weights. What the step trains on
(which samples, which labels, how they are mixed) must be the same each time. So a method splits its work:
`plan` decides, without gradients and with all its randomness; `loss` is a differentiable function of one network and
its plan, and draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._trees import Tree

if TYPE_CHECKING:
    from ncsam.data.loading.loader import Batch

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


class Engine(Protocol):
    """What a method may ask of the engine; see `State`, which passes it on."""

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor: ...

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]: ...

    def backward(self, loss: Tensor) -> None: ...


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
    #: For a method with `verified_share`: 1 where a label was checked and found right, 0 where wrong, -1 elsewhere.
    verified: Tensor | None = None
    engine: Engine | None = None
    #: Epochs are counted from 1, batches within an epoch from 0; stages, and the epochs within one, likewise.
    epoch: int = 1
    batch: int = 0
    stage: int = 0
    stage_epoch: int = 1
    #: The learning rate of this step.
    lr: float = 0.0

    @property
    def trained(self) -> Tensor:
        """The positions of the samples that are trained on."""
        if self.held_out is None:
            return torch.arange(len(self.labels), device=self.labels.device)
        return (~self.held_out).nonzero().flatten()

    def random(self, stream: int = 0) -> np.random.Generator:
        """Random numbers that depend on (seed, epoch, batch, stream) alone: the same after a restart, on all ranks.

        A call begins its stream anew. What must be drawn apart (two networks, say) takes two streams.
        """
        return np.random.default_rng((self.seed, self.epoch, self.batch, _METHOD_STREAM + stream))

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor:
        """Of the whole un-augmented training split, in evaluation mode: (samples, classes) or (samples, features).

        Probabilities are the method's prediction with these networks. "features", what the last layer sees, and the
        name of any other head (see `WithHeads`) are of one network.
        """
        return self._engine().predict(networks, output)

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """Shuffled batches of the samples at `index` (positions) for a loop inside `on_epoch_start`; this rank's part.

        `view` names one view of each sample or several. Order and augmentation depend on (seed, epoch, stream) alone.
        """
        return self._engine().batches(index, view, batch_size=batch_size, stream=stream)

    def backward(self, loss: Tensor) -> None:
        """Gradients of a loss of the method's own, through networks set up for devices, ranks and precision."""
        if self.engine is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.engine.backward(loss)

    def _engine(self) -> Engine:
        if self.engine is None:
            raise RuntimeError("this state belongs to no run: predictions and batches are the engine's to give")
        return self.engine


@dataclass(frozen=True)
class Stage:
    """A part of a run with an optimizer and a learning-rate schedule of its own, which both begin anew.

    `fresh`: the networks begin with new weights, too, by another seed. `lr` is a factor of the run's learning rate.
    `frozen_norms`: BatchNorm layers use and keep the statistics they have. The warm-up of a sharpness-aware optimizer
    and its ramp are counted over the whole run.
    """

    epochs: int
    fresh: bool = False
    lr: float = 1.0
    frozen_norms: bool = False


@dataclass(frozen=True)
class Plan:
    """What one network trains on in one step; methods add fields of their own by subclassing.

    `inputs` are a tensor, or a tree of tensors for data of more than one (see `ncsam._trees`); a network gets them
    as its one argument.
    `targets` are class numbers, or probabilities (rows, classes). `index` says which sample each row is, or is `None`
    where rows are mixtures of several.
    """

    inputs: Tree
    targets: Tensor
    index: Tensor | None = None


class LossOutput(NamedTuple):
    """A differentiable loss, with the logits and targets behind it, whose labels NCSAM may flip."""

    loss: Tensor
    logits: Tensor
    targets: Tensor


class Method:
    """A learning method. Subclasses define `plan`, and whatever else differs from plain cross-entropy."""

    #: What it is called; by default the name of the class in small letters.
    name: ClassVar[str]
    #: What it does, in some words; and what a step costs.
    about: ClassVar[str] = ""
    cost: ClassVar[str] = "as cross-entropy"
    #: How many networks it trains, each with an optimizer of its own.
    networks: int = 1
    #: Views of each image it wants from the loader; "train" is the run's own augmentation.
    views: tuple[str, ...] = ("train",)
    #: Whether it makes sense for images alone, because it compares differently augmented views of them.
    images_only: ClassVar[bool] = False
    #: Whether it is the training of cross-entropy with another loss function, and nothing else.
    is_loss: ClassVar[bool] = False
    #: Whether it keeps a model from memorizing wrong labels by itself. Next to such a method an adaptive radius takes a
    #: smaller target, because the full one costs more of what the model learns than it saves.
    resists_memorization: ClassVar[bool] = True
    #: Whether it relies on a model that has learned something (to drop samples, to teach another model), or learns
    #: nothing for a while. An adaptive radius then starts after a warm-up.
    needs_warmup: ClassVar[bool] = False
    #: Where SAM with an automatic radius was worse than SGD by more than a point and a standard error
    #: (docs/experiments/methods.md).
    worse_with_sam: ClassVar[tuple[str, ...]] = ()
    #: Share of the training samples whose label it may have checked where the dataset brings no verdicts of people.
    verified_share: float = 0.0
    #: Whether it averages the inputs of samples, which not every kind of data allows.
    mixes_inputs: bool = False
    #: What tells an automatic radius how much a perturbation takes away of what was learned: the "loss", or, where that
    #: is of another scale than guessing by label frequencies, the "criterion" of the outcome's logits and targets.
    effect: ClassVar[Literal["loss", "criterion"]] = "loss"
    #: Options by the name of a dataset and noise, where the literature has them.
    presets: ClassVar[Presets] = {}

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        """The parts of a run of so many epochs, which they add up to."""
        return (Stage(epochs),)

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """The networks to train; one that joins two (for one loss over both) counts as one."""
        return [create() for _ in range(self.networks)]

    def on_train_start(self, state: State) -> None:
        """Before the first epoch: make columns in `state.samples`."""

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Before each epoch: fit mixtures, estimate transitions, relabel, train further parts on `state.batches`."""

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Decide once, without gradients, what this batch trains on: one plan for each network."""
        raise NotImplementedError  # each method's own

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The loss of one network on its plan: the same value whenever it is called at the same weights."""
        logits = network(plan.inputs)
        return LossOutput(self.criterion(logits, plan.targets), logits, plan.targets)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over rows; also the one for flipped labels."""
        return F.cross_entropy(logits, targets)

    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        """After all networks have stepped: averages of weights, further steps (see `ncsam.methods.steps`)."""

    def predict(self, networks: Sequence[nn.Module], inputs: Tree) -> Tensor:
        """Logits for evaluation; of several networks, the mean."""
        logits: Tensor = sum(network(inputs) for network in networks) / len(networks)
        return logits

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart and is not in `State.samples`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
