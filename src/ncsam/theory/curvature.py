"""Largest eigenvalues and trace of the Hessian of the loss, from products H v."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import _arguments
from ncsam._errors import bad_value
from ncsam.theory.batches import Data
from ncsam.theory.estimate import Estimate, check_draws, seeded
from ncsam.theory.surface import Criterion, LossSurface, Vector


@dataclass(frozen=True)
class Eigenvalues:
    """The largest eigenvalues.

    Attributes:
        values: Largest first.
        errors: Some eigenvalue lies within `errors[i]` of `values[i]`.
        smallest: The least Ritz value, at or above the least eigenvalue: below 0, the weights are no minimum.
        steps: Number of Hessian products.
    """

    values: tuple[float, ...]
    errors: tuple[float, ...]
    smallest: float
    steps: int


def hessian_eigenvalues(
    model: nn.Module,
    data: Data,
    count: int = 1,
    *,
    criterion: Criterion = F.cross_entropy,
    max_steps: int = 60,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Eigenvalues:
    """The largest eigenvalues of the Hessian of the mean loss, by Lanczos with full reorthogonalization.

    Each step keeps one vector of the size of the weights. Equal eigenvalues are found once.

    Args:
        model: The model.
        data: A batch, or batches, of (inputs, labels).
        count: Number of eigenvalues.
        criterion: Mean loss of (logits, labels).
        max_steps: Largest number of Hessian products.
        tolerance: It stops when all errors are below this share of the largest eigenvalue in size.
        seed: Seed of the starting vector.
    """
    surface = LossSurface(model, data, criterion)
    size = surface.num_parameters
    if _arguments.positive("count", count) > size:
        raise bad_value("count", count, f"a whole number from 1 to {size:,}, the number of weights")
    if _arguments.positive("max_steps", max_steps) < count:
        raise bad_value("max_steps", max_steps, f"at least count={count}")
    _arguments.non_negative("tolerance", tolerance)
    basis = [_flat(surface.random_direction(seeded(seed)))]
    diagonal: list[float] = []
    below: list[float] = []
    while True:
        product = _flat(surface.hessian_times(_shaped(basis[-1], surface)))
        diagonal.append(float(product @ basis[-1]))
        if not math.isfinite(diagonal[-1]):
            raise bad_value("data", "a loss that is not finite", "samples on which the model's loss is finite")
        known = torch.stack(basis)
        for _ in range(2):  # once leaves rounding errors that bring back copies of eigenvalues already found
            product = product - known.T @ (known @ product)
        remainder = float(product.norm())
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(below, 1) + np.diag(below, -1))
        errors = remainder * np.abs(vectors[-1])
        top = slice(None, -count - 1, -1)
        scale = float(np.abs(values).max())
        exhausted = remainder <= 1e-6 * scale or len(diagonal) == min(max_steps, size)
        if exhausted or (len(diagonal) > count and errors[top].max() <= tolerance * scale):
            largest, bounds = (tuple(map(float, part[top])) for part in (values, errors))
            return Eigenvalues(largest, bounds, float(values[0]), len(diagonal))
        below.append(remainder)
        basis.append(product / remainder)


def hessian_trace(
    model: nn.Module,
    data: Data,
    *,
    criterion: Criterion = F.cross_entropy,
    draws: int = 10,
    seed: int = 0,
) -> Estimate:
    """tr(H) = E v.Hv with random signs v (Hutchinson).

    Args:
        model: The model.
        data: A batch, or batches, of (inputs, labels).
        criterion: Mean loss of (logits, labels).
        draws: Number of vectors v.
        seed: Seed of their signs.
    """
    surface = LossSurface(model, data, criterion)
    generator = seeded(seed)
    products = []
    for _ in range(check_draws(draws)):
        signs = torch.randint(0, 2, (surface.num_parameters,), generator=generator) * 2 - 1
        vector = signs.to(surface.params[0])
        products.append(float(vector @ _flat(surface.hessian_times(_shaped(vector, surface)))))
    return Estimate.of(products)


def _flat(vector: Vector) -> Tensor:
    return torch.cat([part.reshape(-1) for part in vector])


def _shaped(flat: Tensor, surface: LossSurface) -> Vector:
    parts = torch.split_with_sizes(flat, [p.numel() for p in surface.params])
    return [part.view(p.shape) for part, p in zip(parts, surface.params, strict=True)]
