"""The interface between methods and optimizers: a plan is made once, its loss may be evaluated any number of times.

A sharpness-aware optimizer evaluates a step's loss two or three times at different weights. What the step trains on
(which samples, which labels, how they are mixed) must be the same each time. So a method splits its work: `plan`
decides, without gradients and with all its randomness; `loss` is a differentiable function of one model and its plan,
and draws nothing.
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
    """Memory per training sample, keyed by its index; kept in checkpoints and shared between ranks."""

    def column(self, name: str, shape: Sequence[int] = (), dtype: torch.dtype = ..., fill: float = 0.0) -> Tensor:
        """Create a column, or return it if it exists.

        Args:
            name: Name of the column.
            shape: Shape of one sample's value.
            dtype: Type of the values.
            fill: Initial value.

        Returns:
            The tensor (samples, *shape).
        """

    def __getitem__(self, name: str) -> Tensor:
        """A column as this rank sees it."""

    def write(self, name: str, index: Tensor, values: Tensor) -> None:
        """Set the rows `index`; other ranks see them from the next epoch on.

        Args:
            name: Name of the column.
            index: Positions of the samples.
            values: Their new values.
        """

    def add(self, name: str, index: Tensor, values: Tensor | float) -> None:
        """Add to the rows `index`; the additions of all ranks are summed.

        Args:
            name: Name of the column.
            index: Positions of the samples.
            values: What to add.
        """


class Engine(Protocol):
    """What a method may ask of the engine, through `State`."""

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor:
        """See `State.predict`.

        Args:
            networks: The models to predict with.
            output: "probabilities", "features", or the name of another head.
        """

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """See `State.batches`.

        Args:
            index: Positions of the samples in the training split.
            view: Name of one view of each sample, or of several.
            batch_size: Samples per batch over all ranks; by default the run's.
            stream: Number of the random stream.
        """

    def backward(self, loss: Tensor) -> None:
        """See `State.backward`.

        Args:
            loss: A scalar.
        """


@dataclass
class State:
    """The state of training, for a method's decisions. It holds observed labels only, never clean ones.

    Attributes:
        num_classes: Number of classes.
        labels: Observed labels of all training samples, (samples,).
        epochs: Length of the run.
        steps_per_epoch: Batches of an epoch.
        samples: Memory per sample.
        seed: Seed of the run.
        noise_rate: The noise rate given by the user, if any.
        held_out: True for the samples held out of training; `None` if all are trained on.
        verified: For a method with `verified_share`: 1 where a label was checked and found right, 0 where wrong, -1
            elsewhere.
        engine: Answers `predict`, `batches` and `backward`.
        epoch: The current epoch, from 1.
        batch: The current batch of the epoch, from 0.
        stage: The current stage, from 0.
        stage_epoch: The current epoch of the stage, from 1.
        lr: The learning rate of this step.
    """

    num_classes: int
    labels: Tensor
    epochs: int
    steps_per_epoch: int
    samples: Samples
    seed: int = 0
    noise_rate: float | None = None
    held_out: Tensor | None = None
    verified: Tensor | None = None
    engine: Engine | None = None
    epoch: int = 1
    batch: int = 0
    stage: int = 0
    stage_epoch: int = 1
    lr: float = 0.0

    @property
    def trained(self) -> Tensor:
        """The positions of the samples that are trained on."""
        if self.held_out is None:
            return torch.arange(len(self.labels), device=self.labels.device)
        return (~self.held_out).nonzero().flatten()

    def random(self, stream: int = 0) -> np.random.Generator:
        """Random numbers that depend only on (seed, epoch, batch, stream): the same after a restart, and on all ranks.

        Each call starts its stream from the beginning. What must be drawn independently (for two models, say) takes two
        streams.

        Args:
            stream: Number of the stream.
        """
        return np.random.default_rng((self.seed, self.epoch, self.batch, _METHOD_STREAM + stream))

    def predict(self, networks: Sequence[nn.Module], output: str = "probabilities") -> Tensor:
        """Predictions for the whole un-augmented training split, in evaluation mode.

        Args:
            networks: The models to predict with.
            output: "probabilities", the method's prediction with these models; "features", the input of the last layer;
                or the name of another head (see `WithHeads`). The latter two are of one model.

        Returns:
            (samples, classes) or (samples, features).
        """
        return self._engine().predict(networks, output)

    def batches(
        self, index: Tensor, view: str | Sequence[str] = "plain", *, batch_size: int | None = None, stream: int = 0
    ) -> Iterator[Batch]:
        """Shuffled batches for a loop inside `on_epoch_start`; this rank's part.

        Order and augmentation depend only on (seed, epoch, stream).

        Args:
            index: Positions of the samples.
            view: Name of one view of each sample, or of several.
            batch_size: By default the run's.
            stream: Number of the random stream.
        """
        return self._engine().batches(index, view, batch_size=batch_size, stream=stream)

    def backward(self, loss: Tensor) -> None:
        """Backpropagate a loss of the method's own, through models set up for devices, ranks and precision.

        Args:
            loss: A scalar.
        """
        if self.engine is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.engine.backward(loss)

    def _engine(self) -> Engine:
        if self.engine is None:
            raise RuntimeError("this state has no engine, which predictions and batches come from")
        return self.engine


@dataclass(frozen=True)
class Stage:
    """A part of a run with its own optimizer and learning-rate schedule, both of which start again.

    The warm-up of a sharpness-aware optimizer and its ramp are counted over the whole run.

    Attributes:
        epochs: Length of the stage.
        fresh: Whether the models start with new weights, from another seed.
        lr: Factor of the run's learning rate.
        frozen_norms: Whether BatchNorm layers use and keep the statistics they have.
    """

    epochs: int
    fresh: bool = False
    lr: float = 1.0
    frozen_norms: bool = False


@dataclass(frozen=True)
class Plan:
    """What one model trains on in one step; methods add fields by subclassing.

    Attributes:
        inputs: A tensor, or a tree of tensors for data of more than one (see `ncsam._trees`); the one argument of the
            model.
        targets: Class numbers (rows,), or probabilities (rows, classes).
        index: Which sample each row is; `None` where rows are mixtures of several.
    """

    inputs: Tree
    targets: Tensor
    index: Tensor | None = None


class LossOutput(NamedTuple):
    """A differentiable loss, with the logits and targets behind it, whose labels NCSAM may flip.

    Attributes:
        loss: A scalar.
        logits: (rows, classes).
        targets: Class numbers (rows,), or probabilities (rows, classes).
    """

    loss: Tensor
    logits: Tensor
    targets: Tensor


class Method:
    """A learning method. Subclasses define `plan`, and whatever else differs from cross-entropy.

    Options are the arguments of `__init__`, typed and each with a default. Class attributes below are traits: the
    engine reads them for defaults and checks.
    """

    #: What it is called; by default the name of the class in small letters.
    name: ClassVar[str]
    #: What it does, in some words; and what a step costs.
    about: ClassVar[str] = ""
    cost: ClassVar[str] = "as cross-entropy"
    #: How many models it trains, each with an optimizer of its own.
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
    #: The options that `create` was given.
    created_with: Mapping[str, Any] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.created_with.items())})"

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        """The stages of a run.

        Args:
            epochs: Length of the run, to which the stages add up.
        """
        return (Stage(epochs),)

    def build(self, create: Callable[[], nn.Module]) -> list[nn.Module]:
        """The models to train; one that joins two (for one loss over both) counts as one.

        Args:
            create: Builds a model of the run.
        """
        return [create() for _ in range(self.networks)]

    def on_train_start(self, state: State) -> None:
        """Called before the first epoch: create columns in `state.samples`.

        Args:
            state: The state of training, before the first epoch.
        """

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        """Called before each epoch: fit mixtures, estimate T, relabel, train further parts on `state.batches`.

        Args:
            networks: The models.
            state: The state of training, at the start of the epoch.
        """

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        """Decide once, without gradients, what this batch trains on.

        Args:
            batch: Views, observed labels and positions of some samples.
            networks: The models.
            state: Where training stands, and the source of all randomness.

        Returns:
            One plan for each model.
        """
        raise NotImplementedError  # each method's own

    def loss(self, network: nn.Module, plan: Plan) -> LossOutput:
        """The loss of one model on its plan: the same value whenever it is called at the same weights.

        Args:
            network: The model.
            plan: Its plan.
        """
        logits = network(plan.inputs)
        return LossOutput(self.criterion(logits, plan.targets), logits, plan.targets)

    def criterion(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean loss over rows; also applied to flipped labels.

        Args:
            logits: (rows, classes).
            targets: Class numbers (rows,), or probabilities (rows, classes).
        """
        return F.cross_entropy(logits, targets)

    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        """Called after all models have stepped: averages of weights, further steps (see `ncsam.methods.steps`).

        Args:
            networks: The models, after their steps.
            state: The state of training, whose `lr` is that of the step.
        """

    def predict(self, networks: Sequence[nn.Module], inputs: Tree) -> Tensor:
        """Logits for evaluation; of several models, the mean.

        Args:
            networks: The models, in evaluation mode.
            inputs: A batch of inputs.
        """
        logits: Tensor = sum(network(inputs) for network in networks) / len(networks)
        return logits

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart and is not in `State.samples`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: What `state_dict` returned.
        """
