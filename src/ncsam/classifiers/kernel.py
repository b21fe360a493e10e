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
    targets = F.one_hot(y, num_classes).to(x)
    bias = targets.mean(dim=0)
    coefficients = KernelSystem(x, targets - bias, rows, width).solve(penalty)
    return {"rows": rows, "coefficients": coefficients, "bias": bias, "width": torch.tensor(width)}


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
    """The equations of one kernel ridge regression, to be solved for several penalties.

    Args:
        x: training rows (N, d).
        targets: centered one-hot labels (N, K).
        rows: rows (n, d) of the kernel expansion; the system is exact if this is the same tensor as `x`.
        width: squared width of the Gaussian kernel.
    """

    def __init__(self, x: Tensor, targets: Tensor, rows: Tensor, width: float) -> None:
        self.kernel = gaussian_kernel(rows, rows, width)
        self.exact = rows is x
        self.right = targets
        if not self.exact:
            inner = torch.zeros(len(rows), len(rows), dtype=torch.float64)
            right = torch.zeros(len(rows), targets.shape[1], dtype=torch.float64)
            for start in range(0, len(x), _CHUNK):
                part = gaussian_kernel(x[start : start + _CHUNK], rows, width)
                inner += part.T @ part  # the sum, not the products, needs double precision
                right += part.T @ targets[start : start + _CHUNK]
            self.inner, self.right = inner, right

    def solve(self, penalty: float) -> Tensor:
        """Solve for the coefficients (n, K) of the kernel expansion.

        Args:
            penalty: ridge penalty, positive.
        """
        if self.exact:
            system = self.kernel.clone()
            system.diagonal().add_(penalty)
            factor = torch.linalg.cholesky(system)
        else:
            factor = _cholesky(self.inner + penalty * self.kernel.double())
        return torch.cholesky_solve(self.right.to(factor), factor).float()


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
