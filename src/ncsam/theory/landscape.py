"""The loss along a line or over a plane through the weights, on the observed and on the clean labels, with plots."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import LARGEST, count
from ncsam._errors import bad_value, need
from ncsam._files import atomic_path
from ncsam.theory.batches import Data
from ncsam.theory.estimate import seeded
from ncsam.theory.surface import Criterion, LossSurface, Vector, trainable
from ncsam.vectors.arithmetic import add_scaled_

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Landscape:
    """Losses along a line or over a plane through the weights.

    Attributes:
        at: The steps along each direction.
        losses: By set of labels ("observed" and, if known, "clean"): arrays (steps,) of a line, (steps, steps) of a
            plane, first direction down, second across.
    """

    at: Floats
    losses: dict[str, Floats]

    def plot(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Draw it as a PNG: lines in one diagram, or contours of a plane side by side.

        Args:
            path: The file to write.
            title: Title of the figure.
        """
        figure = need("matplotlib.figure", "plot", "drawing a landscape").Figure(layout="constrained")
        plane = next(iter(self.losses.values())).ndim == 2
        columns = len(self.losses) if plane else 1
        figure.set_size_inches(4.4 * columns, 3.6)
        axes = figure.subplots(1, columns, squeeze=False)[0]
        for number, (name, values) in enumerate(self.losses.items()):
            axis = axes[number if plane else 0]
            if plane:
                drawn = axis.contourf(self.at, self.at, values, levels=20)
                figure.colorbar(drawn, ax=axis)
                axis.set(title=f"{name} labels", xlabel="second direction", ylabel="first direction")
                axis.plot(0, 0, "+", color="white")
            else:
                axis.plot(self.at, values, "-" if number == 0 else "--", label=f"{name} labels")
                axis.set(xlabel="step along the direction", ylabel="mean loss")
                axis.legend(frameon=False)
        if title:
            figure.suptitle(title)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=130)
        return Path(path)


def filter_normalized(model: nn.Module, seed: int = 0) -> Vector:
    """A random direction in which every filter is as long as the model's own.

    A filter is a row along the first axis of a weight with two axes or more. Biases and the weights of normalization
    layers (one axis or none) do not move.

    Args:
        model: The model.
        seed: Seed of the direction.

    References:
        Li et al., 2018, Visualizing the loss landscape of neural nets, arXiv 1712.09913.
    """
    generator = seeded(seed)
    return [_filters(p.detach(), generator) for p in trainable(model)]


def loss_line(
    model: nn.Module,
    data: Data,
    direction: Sequence[Tensor] | None = None,
    at: npt.ArrayLike | None = None,
    *,
    criterion: Criterion = F.cross_entropy,
    seed: int = 0,
) -> Landscape:
    """L(w + a d) along a direction d.

    Args:
        model: The model.
        data: Batches (inputs, labels), or (inputs, labels, clean labels) for both sets of labels from the same passes.
        direction: One tensor for each trainable parameter; by default `filter_normalized`.
        at: The values of a; by default 21 from -1 to 1.
        criterion: Mean loss of (logits, labels).
        seed: Seed of the default direction.
    """
    surface = LossSurface(model, data, criterion)
    along = filter_normalized(model, seed) if direction is None else _checked(direction, surface)
    return _measured(surface, (along,), at)


def loss_plane(
    model: nn.Module,
    data: Data,
    directions: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    at: npt.ArrayLike | None = None,
    *,
    criterion: Criterion = F.cross_entropy,
    seed: int = 0,
) -> Landscape:
    """L(w + a d + b e) over a plane.

    Args:
        model: The model.
        data: Batches (inputs, labels), or (inputs, labels, clean labels) for both sets of labels from the same passes.
        directions: d and e, each one tensor for each trainable parameter; by default `filter_normalized`.
        at: The values of a and of b; by default 21 from -1 to 1.
        criterion: Mean loss of (logits, labels).
        seed: Seed of the default directions.
    """
    surface = LossSurface(model, data, criterion)
    if directions is None:
        count("seed", seed, most=2**62 - 1)  # two directions are drawn, from twice the seed and the next
        directions = (filter_normalized(model, 2 * seed), filter_normalized(model, 2 * seed + 1))
    if not isinstance(directions, (tuple, list)) or len(directions) != 2:
        raise bad_value("directions", directions, "a pair of directions")
    return _measured(surface, tuple(_checked(each, surface, "directions") for each in directions), at)


def _measured(surface: LossSurface, directions: tuple[Vector, ...], at: npt.ArrayLike | None) -> Landscape:
    try:
        steps = np.linspace(-1.0, 1.0, 21) if at is None else np.asarray(at, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        steps = np.empty(0)
    if steps.ndim != 1 or len(steps) == 0 or not np.abs(steps).max() <= LARGEST:
        raise bad_value("at", at, "a list of at least one finite step")
    shape = (len(steps),) * len(directions)
    losses: dict[str, Floats] = {}
    for place in np.ndindex(*shape):
        sum_of: Any = surface.zeros()
        for index, direction in zip(place, directions, strict=True):
            add_scaled_(sum_of, direction, float(steps[index]))
        with surface.moved(sum_of):
            for name, value in surface.value_by_labels().items():
                losses.setdefault(name, np.empty(shape))[place] = value
    return Landscape(steps, losses)


def _filters(weight: Tensor, generator: torch.Generator) -> Tensor:
    if weight.ndim < 2:
        return torch.zeros_like(weight)
    drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device).flatten(1)
    own = weight.flatten(1).norm(dim=1, keepdim=True)
    normalized: Tensor = drawn * (own / drawn.norm(dim=1, keepdim=True))
    return normalized.view_as(weight)


def _checked(direction: Sequence[Tensor], surface: LossSurface, name: str = "direction") -> Vector:
    if not isinstance(direction, (tuple, list)) or not all(isinstance(part, Tensor) for part in direction):
        raise bad_value(name, direction, "one tensor of its shape for each trainable parameter")
    shapes = [tuple(part.shape) for part in direction]
    if shapes != [tuple(p.shape) for p in surface.params]:
        raise bad_value(name, shapes, "one tensor of its shape for each trainable parameter")
    return list(direction)
