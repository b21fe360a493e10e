"""Exact nearest neighbors: blocks of matrix products, no index."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ncsam._errors import bad_value

Floats = npt.NDArray[np.float32]
_BLOCK = 4096  # rows and columns: 64 MB of distances


@dataclass(frozen=True)
class Neighbors:
    """The nearest rows: `index` (N, k), and their Euclidean distances `distance` (N, k), the nearest first."""

    index: npt.NDArray[np.int64]
    distance: Floats


@torch.no_grad()
def nearest(x: npt.ArrayLike, k: int = 10, *, among: npt.ArrayLike | None = None) -> Neighbors:
    r"""The k nearest rows by Euclidean distance, exactly.

    Candidates are ranked by :math:`\|b\|^2 - 2 a^\top b` in blocks; distances of those kept are computed again from
    the differences, so that identical rows have a distance of exactly 0.

    Args:
        x: rows (N, d), finite.
        k: neighbors of each row.
        among: the rows to search (M, d); by default the others of `x`.

    Returns:
        min(k, N - 1) neighbors of every row; min(k, M) with `among`.

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
    index = _among_themselves(rows - center, k) if among is None else _among(rows - center, others - center, k)
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
        near, place = block.topk(min(k, block.shape[1]), dim=1, largest=False, sorted=False)
        values, kept = torch.cat([self.values[rows], near], dim=1).topk(k, dim=1, largest=False, sorted=False)
        self.values[rows] = values
        self.index[rows] = torch.cat([self.index[rows], place + first], dim=1).gather(1, kept)


def _among_themselves(a: torch.Tensor, k: int) -> torch.Tensor:
    """Each product serves both of its blocks, which halves the work."""
    half, best = a.square().sum(dim=1) / 2, _Best(len(a), k)
    for start in range(0, len(a), _BLOCK):
        one = slice(start, start + _BLOCK)
        for first in range(start, len(a), _BLOCK):
            other = slice(first, first + _BLOCK)
            product = a[one] @ a[other].T
            if first == start:
                product.fill_diagonal_(-torch.inf)  # a row is not its own neighbor
            else:
                best.update(first, (half[one, None] - product).T, start)
            best.update(start, half[None, other] - product, first)
    return best.index


def _among(a: torch.Tensor, b: torch.Tensor, k: int) -> torch.Tensor:
    half, best = b.square().sum(dim=1) / 2, _Best(len(a), k)
    for start in range(0, len(a), _BLOCK):
        for first in range(0, len(b), _BLOCK):
            other = slice(first, first + _BLOCK)
            best.update(start, torch.addmm(half[None, other], a[start : start + _BLOCK], b[other].T, alpha=-1), first)
    return best.index


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
