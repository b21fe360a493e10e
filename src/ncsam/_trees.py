"""Trees of tensors: inputs that are one tensor, or dicts, tuples and lists of them, nested as one likes.

Every leaf has one row per sample. A network gets the tree as it is, as its one argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: A tensor, or a dict, tuple or list of trees.
Tree: TypeAlias = Any


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The same tree with `function(leaf, leaves of the others ...)` in the place of each leaf."""
    if isinstance(tree, Mapping):
        return {key: tree_map(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        parts = [tree_map(function, *branches) for branches in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return function(tree, *others)


def named_leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with the way to it, joined by dots: `tokens.mask`, `1.0`; of a lone leaf it is empty."""
    branches: Iterator[tuple[Any, Any]]
    if isinstance(tree, Mapping):
        branches = iter(tree.items())
    elif isinstance(tree, (tuple, list)):
        branches = iter(enumerate(tree))
    else:
        yield prefix, tree
        return
    for key, branch in branches:
        yield from named_leaves(branch, f"{prefix}.{key}" if prefix else str(key))


def leaves(tree: Tree) -> list[Any]:
    """The leaves in order."""
    return [leaf for _, leaf in named_leaves(tree)]


def first_leaf(tree: Tree) -> Tensor:
    """The first leaf, for what all of them share: device and number of rows."""
    leaf: Tensor = next(named_leaves(tree))[1]
    return leaf


def take_rows(tree: Tree, rows: Any) -> Tree:
    """Some rows of every leaf."""
    return tree_map(lambda leaf: leaf[rows], tree)


def join_rows(trees: Sequence[Tree]) -> Tree:
    """Trees of one form, one below the other."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *parts: torch.cat(parts), *trees)


def to_device(tree: Tree, device: torch.device | str, *, non_blocking: bool = False) -> Tree:
    """The same tree on another device."""
    return tree_map(lambda leaf: leaf.to(device, non_blocking=non_blocking), tree)


def is_floating(tree: Tree) -> bool:
    """Whether every leaf holds floats, so that two trees can be averaged."""
    return all(leaf.is_floating_point() for leaf in leaves(tree))


class TreeArrays(Sequence[Any]):
    """A tree of arrays, with one row per sample in each, as the inputs of a split."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree_map(np.asarray, tree)
        rows = {leaf.shape[:1] for leaf in leaves(self.tree)}
        if len(rows) != 1 or () in rows:
            shapes = ", ".join(f"{name} {leaf.shape}" for name, leaf in named_leaves(self.tree))
            raise ValueError(f"every array of a tree needs one row per sample, and these have {shapes or 'no arrays'}")
        self._rows = int(rows.pop()[0])

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: Any) -> Any:
        chosen = take_rows(self.tree, index)
        return TreeArrays(chosen) if isinstance(index, slice) else chosen

    def take(self, index: npt.NDArray[np.int64]) -> TreeArrays:
        return TreeArrays(take_rows(self.tree, index))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dicts of dicts from dotted names: what `named_leaves` took apart, up to tuples and lists, which become dicts."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *parents, last = name.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = leaf
    return tree
