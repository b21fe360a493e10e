"""Kernel ridge regression on one-hot labels, exact for up to `EXACT` rows and on landmarks beyond."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ncsam.classifiers.linear import State
from ncsam.models.closed_form import gaussian_kernel

EXACT = 2500  # rows
LANDMARKS = 2000  # of larger data
_CHUNK = 4096


def kernel_ridge(x: Tensor, y: Tensor, num_classes: int, *, penalty: float) -> State:
    r"""Minimize :math:`|T - \bar t - K a|^2 + \lambda\, a^\top K a` with the Gaussian kernel.

    .. math:: a = (K + \lambda I)^{-1} (T - \bar t), \qquad K_{ij} = \exp(-|x_i - x_j|^2 / w)

    T are one-hot labels, w the mean squared distance of the rows. Beyond 2,500 rows a is over 2,000 of them, drawn with
    a fixed seed: (K_mn K_nm + lambda K_mm) a = K_mn (T - mean).

    Args:
        x: rows (N, d).
        y: labels (N,).
        num_classes: number of classes K.
        penalty: lambda.
    """
    rows = landmarks(x)
    width = mean_squared_distance(rows)
    system = KernelSystem(x, F.one_hot(y, num_classes).to(x), rows, width)
    (coefficients,) = system.solve(penalty)
    return {"rows": rows, "coefficients": coefficients, "bias": system.offsets[0], "width": torch.tensor(width)}


def landmarks(x: Tensor) -> Tensor:
    """All rows, or `LANDMARKS` of them drawn with a fixed seed where there are more than `EXACT`.

    Args:
        x: rows (N, d).
    """
    if len(x) <= EXACT:
        return x
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:LANDMARKS]
    return x[chosen.sort().values]


def mean_squared_distance(rows: Tensor) -> float:
    """Mean of |x_i - x_j|^2 over all pairs: 2 (mean |x|^2 - |mean x|^2).

    Args:
        rows: rows (N, d).
    """
    rows = rows.double()
    return max(2 * float(rows.square().sum(dim=1).mean() - rows.mean(dim=0).square().sum()), 1e-12)


class KernelSystem:
    """The equations of kernel ridge regression on all rows, and on a subset of them, for any penalties.

    The two share what can be shared. Exact: with the subset first, the Cholesky factor of its equations is the leading
    block of the factor of all. On landmarks: the sums over the subset are part of the sums over all rows.

    Args:
        x: training rows (N, d).
        targets: one-hot labels (N, K).
        rows: rows (n, d) of the kernel expansion; the system is exact if this is the same tensor as `x`.
        width: squared width of the Gaussian kernel.
        subset: rows (N,) of a second regression, bool; `None` for none.

    Attributes:
        offsets: of each regression the mean (K,) of its targets, first that on all rows.
    """

    def __init__(self, x: Tensor, targets: Tensor, rows: Tensor, width: float, subset: Tensor | None = None) -> None:
        self._exact = rows is x
        order, sizes = torch.arange(len(x)), [len(x)]
        if subset is not None:
            order = torch.cat([order[subset], order[~subset]])
            sizes.append(int(subset.sum()))
        self._index = [order[:size] for size in sizes]
        self.offsets = [targets[index].mean(dim=0) for index in self._index]
        self._right = [targets[index] - mean for index, mean in zip(self._index, self.offsets, strict=True)]
        expansion = x[order] if self._exact else rows
        self._kernel = gaussian_kernel(expansion, expansion, width)
        if not self._exact:
            self._add_up(x[order], rows, width, sizes)

    def _add_up(self, x: Tensor, rows: Tensor, width: float, sizes: list[int]) -> None:
        """K_mn K_nm and K_mn (T - mean) of each regression, whose rows are the first of `x`."""
        centered, self._right = self._right, [torch.zeros(len(rows), t.shape[1]).double() for t in self._right]
        inner = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        inner_of: dict[int, Tensor] = {}
        begin = 0
        for end in sorted(set(sizes)):
            for start in range(begin, end, _CHUNK):
                chunk = slice(start, min(start + _CHUNK, end))
                part = gaussian_kernel(x[chunk], rows, width)
                inner += part.T @ part  # the sum, not the products, needs double precision
                for right, targets in zip(self._right, centered, strict=True):
                    if end <= len(targets):
                        right += part.T @ targets[chunk]
            inner_of[end], begin = inner.clone(), end
        self._inner = [inner_of[size] for size in sizes]

    def solve(self, penalty: float) -> list[Tensor]:
        """Solve for the coefficients (n, K) of the kernel expansion of each regression; 0 for rows that it leaves out.

        Args:
            penalty: ridge penalty, positive.
        """
        if not self._exact:
            factors = [_cholesky(inner + penalty * self._kernel.double()) for inner in self._inner]
            return [torch.cholesky_solve(b, f).float() for b, f in zip(self._right, factors, strict=True)]
        system = self._kernel.clone()
        system.diagonal().add_(penalty)
        factor = torch.linalg.cholesky(system)
        found = []
        for index, right in zip(self._index, self._right, strict=True):
            coefficients = torch.zeros(len(system), right.shape[1])
            coefficients[index] = torch.cholesky_solve(right, factor[: len(index), : len(index)])
            found.append(coefficients)
        return found


def _cholesky(system: Tensor) -> Tensor:
    """The factor of a matrix that rounding may have made singular: its diagonal is raised until it has one.

    Kernels of few columns are smooth: their matrices have tiny eigenvalues, below the errors of float32 products.
    """
    level = float(system.diagonal().mean())
    for share in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        raised = system.clone()
        raised.diagonal().add_(share * level)
        found = torch.linalg.cholesky_ex(raised)
        if not found.info:
            factor: Tensor = found.L
            return factor
    last: Tensor = torch.linalg.cholesky(raised)
    return last
