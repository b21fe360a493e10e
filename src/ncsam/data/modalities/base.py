"""What depends on the modality, in two classes: `Modality` knows the data as a whole, `Store` holds the samples.

A modality is one file in this folder with a subclass of each, found by itself (docs/data.md, "Adding a
modality"). Everything else (loader, engine, CLI, report) asks them and branches on no modality.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ncsam._errors import bad_value, unknown_name
from ncsam._trees import Tree
from ncsam.data.loading.sampling import BatchRequest
from ncsam.data.types import DataSet, Inputs

if TYPE_CHECKING:
    from PIL.Image import Image

_Kind = TypeVar("_Kind", bound="Modality")


@dataclass(frozen=True)
class BatchTransform:
    """How samples become inputs of a model; the options of `Loader` under the same names.

    Attributes:
        views: Resolved recipes, each with `draws`.
        mean, std: One number, or one per channel or feature; `None` for no normalization.
        size: (height, width) that a model sees, for images.
        resize: Length of the longer side before a window is cut, for image files.
        dtype: Floating-point type of the views.
        channels_last: Memory order of views with four axes.
        workers: Processes that make samples which are not in memory.
    """

    views: tuple[Any, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    size: tuple[int, int] | None
    resize: int | None
    dtype: torch.dtype
    channels_last: bool
    workers: int

    def normalizer(self, unit: float, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """Scale and shift with `x * scale + shift = (x / unit - mean) / std`.

        Args:
            unit: What the stored values are divided by first: 255 for uint8 images, 1 for features.
            shape: Of the result, such that it broadcasts over a batch.
            device: Where the result lies.
        """
        std = np.asarray(self.std or (1.0,), dtype=np.float64)
        shift = -np.asarray(self.mean or (0.0,), dtype=np.float64) / std
        scale, shift = np.broadcast_arrays(1 / (unit * std), shift)
        return tuple(  # type: ignore[return-value]
            torch.from_numpy(values.astype(np.float32)).reshape(shape).to(device) for values in (scale, shift)
        )

    def delivered(self, result: Tensor) -> Tensor:
        """In the type and memory order that were asked for; what is not a float keeps its type.

        Args:
            result: A view, or a part of one.
        """
        if not result.is_floating_point():
            return result
        if self.channels_last and result.ndim == 4:
            return result.to(self.dtype, memory_format=torch.channels_last)
        return result.to(self.dtype)

    def check_normalization(self, channels: int, what: str) -> None:
        """Mean and std are one number for all channels, or one for each.

        Args:
            channels: How many there are.
            what: What the message calls them, such as "channels".

        Raises:
            UsageError: The numbers of values do not fit, or a standard deviation is not above 0.
        """
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) not in (1, channels):
                raise bad_value(name, values, f"one number, or one for each of the {channels} {what}")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise bad_value("std", self.std, "numbers above 0")


@dataclass(frozen=True)
class Plain:
    """The view that changes nothing: a sample as it is, normalized where its kind is.

    Attributes:
        draws: Always 0.
    """

    draws: int = 0  # how many uniform numbers it needs for a sample


class Store(ABC):
    """Stored samples of one kind, ready to be made into batches. By default there is no view but "plain".

    Args:
        inputs: `Split.inputs` of this kind.
        device: Where samples in memory are kept, and where batches arrive.
    """

    #: What the samples are, in the plural, for messages.
    kind: ClassVar[str]
    #: The view of a loader that was not told which.
    usual_view: ClassVar[str] = "plain"
    #: The length of each sample where samples have different ones, such as texts; batches may be grouped by it.
    row_lengths: npt.NDArray[np.int64] | None = None

    @abstractmethod
    def __init__(self, inputs: Any, device: torch.device) -> None: ...

    def resolve(self, views: Any) -> tuple[Any, ...]:
        """Recipes from names or recipes, one or several. A recipe has `draws`: the uniform numbers it needs.

        Args:
            views: Names or recipes, one or a list.

        Raises:
            UsageError: There is no view, or this kind of data has no such view.
        """
        several = list(views) if isinstance(views, (list, tuple)) else [views]
        if not several:
            raise bad_value("views", views, "at least one view")
        for view in several:
            if view not in ("plain", Plain()):
                raise bad_value("views", view, f"'plain', the only view of {self.kind}")
        return (Plain(),) * len(several)

    def check(self, transform: BatchTransform) -> BatchTransform:
        """Verify the options once, and resolve those that are open.

        Args:
            transform: As the loader was told.

        Returns:
            The transform that `render` gets.
        """
        return transform

    @abstractmethod
    def render(self, requests: Iterable[BatchRequest], transform: BatchTransform) -> Iterator[tuple[Tree, ...]]:
        """One tree for each view of each batch, lazily and in order. Views must not share memory.

        Args:
            requests: The batches, with the random numbers of each view; several may be taken before one is returned.
            transform: What `check` returned.
        """


class Modality(ABC):
    """All that the rest of the library must know of one modality. Its fields are plain values, saved with a run."""

    #: What the samples are, in the plural.
    name: ClassVar[str]
    #: Axes of the inputs whose length may vary, by name, for exporters.
    axes: ClassVar[Mapping[int, str]] = {0: "batch"}
    #: How a network's inputs are made from a sample, for whoever uses exported weights.
    prepared: ClassVar[str] = "as they are"

    # --- which data

    @classmethod
    @abstractmethod
    def holds(cls, inputs: Inputs) -> bool:
        """Whether `Split.inputs` are of this kind.

        Args:
            inputs: Of any kind.
        """

    @classmethod
    @abstractmethod
    def of(cls: type[_Kind], dataset: DataSet) -> _Kind:
        """The kind with what it must know of this dataset.

        Args:
            dataset: One whose training inputs are of this kind.
        """

    @classmethod
    @abstractmethod
    def open(cls, inputs: Any, device: torch.device) -> Store:
        """The samples, ready to be made into batches.

        Args:
            inputs: `Split.inputs` of this kind.
            device: Where samples in memory are kept, and where batches arrive.
        """

    # --- models

    def default_model(self) -> tuple[str, dict[str, Any]]:
        """Name and options of the model of `model: auto`; the engine knows those of the built-in modalities."""
        raise bad_value("model", "auto", f"a name, such as 'module:factory': {self.name} have no default model")

    def input_sizes(self) -> dict[str, int]:
        """What a model may have to know of its inputs: `in_features` numbers of a sample, `tokens` of a vocabulary."""
        return {}

    @property
    def in_channels(self) -> int:
        """Channels of the inputs, as a model is told."""
        return 1

    @property
    def mixable(self) -> bool:
        """Whether two inputs may be averaged, as mixup does."""
        return True

    # --- views

    #: What `augment` may be, and the training view that each means.
    augmentations: ClassVar[Mapping[str, str]] = {"none": "plain"}

    def augmentation(self) -> str:
        """What `augment: auto` means."""
        return "none"

    def second_view(self, augment: str, named: str) -> str:
        """What a method gets that asks for the view `named` if the data can have it.

        Args:
            augment: The run's augmentation, a key of `augmentations`.
            named: The view that the method asks for.
        """
        return "plain"

    @classmethod
    def has_view(cls, view: str) -> bool:
        """Whether a view of that name is possible.

        Args:
            view: A name.
        """
        return view == "plain"

    # --- in and out

    def preparation(self, inputs: Inputs) -> dict[str, Any]:
        """Options of a `Loader` for these inputs, beside those of the run: how they are normalized and cut.

        Args:
            inputs: Those of the loader's split, which may be stored otherwise than the training samples.
        """
        return {}

    @abstractmethod
    def example(self, count: int = 2) -> Tree:
        """Made-up inputs of the right form, as an exporter wants to see them.

        Args:
            count: Samples of the batch.
        """

    @abstractmethod
    def read(self, paths: Sequence[Path]) -> tuple[list[str], Inputs]:
        """What `ncsam predict` is given: the samples, each with a name for the table.

        Args:
            paths: Files or folders, as typed.

        Returns:
            A name for each sample, and the samples as `Split.inputs`.
        """

    def preview(self, inputs: Inputs, index: int) -> Image | str | None:
        """A sample as a report shows it: an image or a text; `None` where there is nothing to show.

        Args:
            inputs: `Split.inputs`.
            index: Position of the sample.
        """
        return None

    @classmethod
    def described(cls, inputs: Inputs) -> str:
        """How the inputs are stored, in a few words.

        Args:
            inputs: `Split.inputs`.
        """
        return f"{cls.name}, in memory"

    # --- saved with a run

    def state(self) -> dict[str, Any]:
        """Plain values from which `restored` makes the kind again."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def restored(cls: type[_Kind], state: Mapping[str, Any]) -> _Kind:
        """The kind as `state` described it.

        Args:
            state: What `state` returned, perhaps with lists in the place of tuples.
        """
        return cls(**{name: _tuples(value) for name, value in state.items()})


def _tuples(value: Any) -> Any:
    """Lists, which is what a file makes of tuples, as tuples again."""
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def check_numbers(**values: Sequence[Any]) -> None:
    """What a file claims to be numbers must be such.

    Args:
        **values: Tuples, by the name for the message.

    Raises:
        UsageError: One of them is no tuple of numbers.
    """
    for name, numbers in values.items():
        if not isinstance(numbers, tuple) or any(not isinstance(number, (int, float)) for number in numbers):
            raise bad_value(name, numbers, "a list of numbers")


def check_counts(**values: Sequence[Any]) -> None:
    """What a file claims to be counts must be whole numbers above 0.

    Args:
        **values: Tuples, by the name for the message.

    Raises:
        UsageError: One of them is no tuple of whole numbers above 0.
    """
    for name, counts in values.items():
        if not isinstance(counts, tuple) or any(type(count) is not int or count < 1 for count in counts):
            raise bad_value(name, counts, "whole numbers above 0")


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")


def modalities() -> dict[str, type[Modality]]:
    """The kinds of data by name."""
    _import_all()
    found: dict[str, type[Modality]] = {}
    waiting = list(Modality.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        found[kind.name] = kind
        waiting += kind.__subclasses__()
    return found


def _class_of(inputs: Inputs) -> type[Modality]:
    # the one that was defined last is asked first, so that yours may take what one of ours would
    found = next((kind for kind in reversed(modalities().values()) if kind.holds(inputs)), None)
    if found is None:
        held = type(inputs).__name__
        if isinstance(inputs, np.ndarray):
            held = f"{inputs.dtype} array of shape {inputs.shape}"
        raise bad_value(
            "split.inputs", held, "uint8 (N, H, W, C) images, float (N, ...) features, paths, texts or nested arrays"
        )
    return found


def modality_of(dataset: DataSet) -> Modality:
    """What kind of data a dataset holds, with what must be known of it.

    Args:
        dataset: Its training split decides.

    Raises:
        UsageError: No modality knows such inputs.
    """
    return _class_of(dataset.train.inputs).of(dataset)


def open_store(inputs: Inputs, device: torch.device) -> Store:
    """Whatever `Split.inputs` holds, ready to be made into batches.

    Args:
        inputs: `Split.inputs`.
        device: Where samples in memory are kept, and where batches arrive.

    Raises:
        UsageError: No modality knows such inputs.
    """
    return _class_of(inputs).open(inputs, device)


def described(inputs: Inputs) -> str:
    """How inputs are stored, in a few words.

    Args:
        inputs: `Split.inputs`.
    """
    return _class_of(inputs).described(inputs)


def saved_modality(kind: Modality) -> dict[str, Any]:
    """Plain values to keep with a run.

    Args:
        kind: What `modality_of` returned for the dataset of the run.
    """
    return {"kind": kind.name, **kind.state()}


def restored_modality(saved: Mapping[str, Any]) -> Modality:
    """What `saved_modality` described; other values beside it do not matter.

    Args:
        saved: The modality's name as `kind`, and its fields.

    Raises:
        UsageError: There is no modality of that name.
    """
    known = modalities()
    if saved["kind"] not in known:
        raise unknown_name("kind of data", saved["kind"], known)
    kind: Any = known[saved["kind"]]
    restored: Modality = kind.restored({field.name: saved[field.name] for field in fields(kind)})
    return restored
