"""Nested arrays: dicts, tuples and lists of tensors, from arrays or from any `torch.utils.data.Dataset`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ncsam._errors import bad_value
from ncsam._trees import Tree, TreeArrays, is_floating, named_leaves, take_rows, to_device, tree_map
from ncsam.data.loading.sampling import BatchRequest
from ncsam.data.modalities.base import BatchTransform, Modality, Store
from ncsam.data.readers.arrays import read_npz
from ncsam.data.types import DataSet, Inputs, LazyInputs


class LazyNested(LazyInputs):
    """Nested arrays that are made when asked for, one for each sample."""


@dataclass(frozen=True)
class Nested(Modality):
    """Any tree of tensors; a network gets it as its one argument, batched along the first axis.

    `form` is the tree with a word such as "float32 3 4", type and shape of one sample, in the place of each tensor.
    Floats get the run's precision, other types stay. There is no normalization and no usual network.

    Attributes:
        form: A dict, tuple or list of words, nested as the samples are.
    """

    form: Any

    name: ClassVar[str] = "nested arrays"

    @classmethod
    def holds(cls, inputs: Inputs) -> bool:
        return isinstance(inputs, (TreeArrays, LazyNested))

    @classmethod
    def of(cls, dataset: DataSet) -> Nested:
        return cls(tree_map(_form, as_tensors(dataset.train.inputs[0])))

    @classmethod
    def open(cls, inputs: Any, device: torch.device) -> Store:
        return NestedStore(inputs, device) if isinstance(inputs, TreeArrays) else ItemStore(inputs, device)

    @property
    def mixable(self) -> bool:
        return is_floating(self.example(1))

    def example(self, count: int = 2) -> Tree:
        generator = torch.Generator().manual_seed(0)

        def made(form: str) -> Tensor:
            name, *shape = form.split()
            dtype = getattr(torch, name)
            size = (count, *map(int, shape))
            return torch.randn(size, generator=generator) if dtype.is_floating_point else torch.ones(size, dtype=dtype)

        return tree_map(made, self.form)

    def read(self, paths: Sequence[Path]) -> tuple[list[str], Inputs]:
        """One .npz with an array `x.NAME` for each tensor, the names of deeper ones joined by dots.

        Args:
            paths: Must be one `.npz` file.

        Raises:
            UsageError: It is another file, arrays are missing, or samples have another form.
        """
        if len(paths) != 1 or paths[0].suffix.lower() != ".npz":
            raise bad_value("inputs", [str(path) for path in paths], "one .npz file")
        arrays = read_npz(paths[0])
        wanted = [f"x.{name}" if name else "x" for name, _ in named_leaves(self.form)]
        if not set(wanted) <= arrays.keys():
            raise bad_value("inputs", str(paths[0]), f"arrays {', '.join(wanted)}; it holds {', '.join(arrays)}")
        in_order = iter(wanted)
        found = TreeArrays(tree_map(lambda form: arrays[next(in_order)], self.form))
        if tree_map(_form, as_tensors(found[0])) != self.form:
            raise bad_value("inputs", str(paths[0]), f"samples of the form {self.form}")
        return [f"{paths[0]}[{row}]" for row in range(len(found))], found

    @classmethod
    def described(cls, inputs: Inputs) -> str:
        forms = [f"{name} {_form(leaf)}".strip() for name, leaf in named_leaves(as_tensors(inputs[0]))]
        return f"{', '.join(forms)}, {'in memory' if isinstance(inputs, TreeArrays) else 'made on demand'}"

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Nested:
        return cls(state["form"])


def as_tensors(tree: Tree) -> Tree:
    """Arrays, numbers and tensors as tensors; doubles as floats, for a network's weights are such.

    Args:
        tree: Dicts, tuples and lists, nested.
    """

    def tensor(leaf: Any) -> Tensor:
        found = leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.asarray(leaf))
        return found.float() if found.dtype == torch.float64 else found

    return tree_map(tensor, tree)


def _form(leaf: Tensor) -> str:
    return " ".join([str(leaf.dtype).removeprefix("torch."), *map(str, leaf.shape)])


class NestedStore(Store):
    """A tree of tensors on the device.

    Args:
        inputs: Arrays with one row per sample.
        device: Where they are kept.
    """

    kind = "nested arrays"

    def __init__(self, inputs: TreeArrays, device: torch.device) -> None:
        self.device = device
        self.tree = to_device(as_tensors(inputs.tree), device)

    def render(self, requests: Iterable[BatchRequest], transform: BatchTransform) -> Iterator[tuple[Tree, ...]]:
        for request in requests:
            index = torch.from_numpy(request.index).to(self.device)
            yield tuple(tree_map(transform.delivered, take_rows(self.tree, index)) for _ in transform.views)


class ItemStore(Store):
    """Nested arrays that are made sample by sample, by worker processes if asked, and stacked.

    Args:
        inputs: What makes the samples.
        device: Where batches arrive.
    """

    kind = "nested arrays"

    def __init__(self, inputs: LazyNested, device: torch.device) -> None:
        self.items = _Items(inputs)
        self.device = device

    def render(self, requests: Iterable[BatchRequest], transform: BatchTransform) -> Iterator[tuple[Tree, ...]]:
        batches = DataLoader(
            self.items,
            batch_sampler=(request.index.tolist() for request in requests),
            num_workers=transform.workers,
            collate_fn=_stacked,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else the DataLoader takes its base seed from the global generator
        )
        for batch in batches:
            if isinstance(batch, str):
                raise ValueError(batch)
            tree = to_device(batch, self.device, non_blocking=True)
            yield tuple(tree_map(lambda leaf: transform.delivered(leaf.clone()), tree) for _ in transform.views)


class _Items(Dataset[Any]):
    def __init__(self, inputs: LazyNested) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[int, Tree]:
        return index, as_tensors(self.inputs[index])


def _stacked(samples: list[tuple[int, Tree]]) -> Tree | str:
    """One tree with a row per sample, or a sentence on the first sample of another form."""
    first, like = samples[0]
    form = tree_map(_form, like)
    for index, tree in samples:
        if tree_map(_form, tree) != form:
            return (
                f"sample {index} is of the form {tree_map(_form, tree)}, sample {first} of {form}; all must be alike: "
                "pad sequences to one length, with a mask beside them"
            )
    return tree_map(lambda *leaves: torch.stack(leaves), *(tree for _, tree in samples))
