"""Nearest neighbors: exact, in blocks of matrix products, or with a faiss index for very many rows."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import torch

from ncsam._errors import bad_value

_BLOCK = 4096  # rows and columns: 64 MB of distances
_EXACT = 200_000  # rows to search, beyond which faiss is used where it is installed
_GROUP = 32  # columns of a block whose smallest value is looked at first


@dataclass(frozen=True)
class Neighbors:
    """The nearest rows of every row, nearest first.

    Attributes:
        index: positions of the neighbors (N, k).
        distance: their Euclidean distances (N, k).
    """

    index: npt.NDArray[np.int64]
    distance: npt.NDArray[np.float32]


@torch.no_grad()
def nearest(x: npt.ArrayLike, k: int = 10, *, among: npt.ArrayLike | None = None) -> Neighbors:
    r"""Find the k nearest rows by Euclidean distance.

    The search is exact, except for more than 200,000 rows if faiss is installed. Candidates are ranked by
    :math:`\|a\|^2 + \|b\|^2 - 2 a^\top b` in blocks. The distances of the neighbors are then recomputed from the
    differences, so that identical rows have a distance of exactly 0.

    Args:
        x: finite rows (N, d).
        k: number of neighbors per row.
        among: finite rows to search (M, d). `None` searches the other rows of `x`.

    Returns:
        min(k, N - 1) neighbors of every row; min(k, M) with `among`.

    Raises:
        UsageError: if rows are not finite or their widths differ.

    Examples:
        >>> nearest([[0.0], [1.0], [5.0]], 1)
        Neighbors(index=array([[1],
               [0],
               [1]]), distance=array([[1.],
               [1.],
               [4.]], dtype=float32))
    """
    rows = _matrix("x", x)
    others = rows if among is None else _matrix("among", among)
    if rows.shape[1] != others.shape[1]:
        raise bad_value("among", tuple(others.shape), f"rows of {rows.shape[1]} features")
    k = min(k, len(others) - (among is None))
    if k < 1 or not len(rows):
        return Neighbors(np.zeros((len(rows), 0), dtype=np.int64), np.zeros((len(rows), 0), dtype=np.float32))
    center = others.mean(dim=0)  # small norms lose fewer digits in the product
    a, b = rows - center, others - center
    if len(others) > _EXACT and find_spec("faiss"):
        index = _by_faiss(a, b, k, own=among is None)
    else:
        index = _among_themselves(a, k) if among is None else _among(a, b, k)
    distance = _distances(rows, others, index)
    order = distance.argsort(dim=1, stable=True)
    return Neighbors(index.gather(1, order).numpy(), distance.gather(1, order).numpy())


class _Best:
    """The k smallest values seen so far in each row, and where they are."""

    def __init__(self, rows: int, k: int) -> None:
        self.values = torch.full((rows, k), torch.inf)
        self.index = torch.zeros(rows, k, dtype=torch.int64)

    def update(self, start: int, block: torch.Tensor, first: int) -> None:
        """Take in the values of rows from `start` on, whose columns are numbered from `first` on."""
        rows, k = slice(start, start + len(block)), self.values.shape[1]
        near, place = _smallest(block, k)
        values, kept = torch.cat([self.values[rows], near], dim=1).topk(k, dim=1, largest=False, sorted=False)
        self.values[rows] = values
        self.index[rows] = torch.cat([self.index[rows], place + first], dim=1).gather(1, kept)


def _smallest(block: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k smallest values of each row and their columns, all of which are in the k groups of smallest minimum."""
    columns = None
    if block.shape[1] % _GROUP == 0 and block.shape[1] > k * _GROUP:
        least = block.reshape(len(block), -1, _GROUP).amin(dim=2)
        group = least.topk(k, dim=1, largest=False, sorted=False).indices
        columns = (group[:, :, None] * _GROUP + torch.arange(_GROUP)).flatten(1)
        block = block.gather(1, columns)
    near, place = block.topk(min(k, block.shape[1]), dim=1, largest=False, sorted=False)
    return near, place if columns is None else columns.gather(1, place)


def _among_themselves(a: torch.Tensor, k: int) -> torch.Tensor:
    """Each block of squared distances, halved, serves both of its sides: half the work."""
    half, best = a.square().sum(dim=1, keepdim=True) / 2, _Best(len(a), k)
    ones = torch.ones_like(half)
    left, right = torch.cat([a, half, ones], dim=1), torch.cat([-a, ones, half], dim=1)
    for start in range(0, len(a), _BLOCK):
        one = slice(start, start + _BLOCK)
        for first in range(start, len(a), _BLOCK):
            other = slice(first, first + _BLOCK)
            block = left[one] @ right[other].T
            if first == start:
                block.fill_diagonal_(torch.inf)  # a row is not its own neighbor
            else:
                best.update(first, block.T, start)
            best.update(start, block, first)
    return best.index


def _among(a: torch.Tensor, b: torch.Tensor, k: int) -> torch.Tensor:
    half, best = b.square().sum(dim=1) / 2, _Best(len(a), k)
    for start in range(0, len(a), _BLOCK):
        for first in range(0, len(b), _BLOCK):
            other = slice(first, first + _BLOCK)
            best.update(start, torch.addmm(half[None, other], a[start : start + _BLOCK], b[other].T, alpha=-1), first)
    return best.index


def _by_faiss(a: torch.Tensor, b: torch.Tensor, k: int, own: bool) -> torch.Tensor:
    """By a graph of 32 neighbors a row (HNSW); rows for which it finds fewer than k are searched exactly."""
    import faiss

    graph = faiss.IndexHNSWFlat(b.shape[1], 32)
    graph.hnsw.efSearch = max(64, 2 * k)
    graph.add(b.numpy())
    index = torch.from_numpy(graph.search(a.numpy(), k + own)[1])
    if len(few := (index < 0).any(dim=1).nonzero()[:, 0]):
        index[few] = _among(a[few], b, k + own)
    itself = index == torch.arange(len(a))[:, None] if own else torch.zeros_like(index, dtype=torch.bool)
    return index.gather(1, itself.long().argsort(dim=1, stable=True)[:, :k])


def _distances(rows: torch.Tensor, others: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    parts = [
        (others[near] - part[:, None]).square().sum(dim=2).sqrt()
        for part, near in zip(torch.split(rows, _BLOCK), torch.split(index, _BLOCK), strict=True)
    ]
    return torch.cat(parts)


def _matrix(name: str, x: npt.ArrayLike) -> torch.Tensor:
    found = np.ascontiguousarray(x, dtype=np.float32)
    if found.ndim != 2 or not np.isfinite(found).all():
        raise bad_value(name, f"{found.dtype} {found.shape}", "finite rows (samples, features)")
    return torch.from_numpy(found)
