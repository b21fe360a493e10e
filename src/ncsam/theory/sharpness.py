"""How steeply the loss rises around the weights: worst case per m samples, and on average over directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import nn

from ncsam._arguments import function, non_negative, positive
from ncsam._errors import bad_value
from ncsam.theory.batches import Data, batches, label_sets
from ncsam.theory.curvature import hessian_eigenvalues, hessian_trace
from ncsam.theory.estimate import Estimate, check_draws, seeded
from ncsam.theory.neighborhood import neighborhood_maximum
from ncsam.theory.surface import Criterion, LossSurface, trainable


def m_sharpness(
    model: nn.Module,
    data: Data,
    rho: float,
    m: int | None = None,
    *,
    criterion: Criterion = F.cross_entropy,
    steps: int = 1,
) -> float:
    """Mean over groups G of m samples of the largest rise of their loss within the ball.

        1/n sum_G |G| (max_{||eps|| <= rho} L_G(w + eps) - L_G(w))

    The maximum is SAM's own one step, or projected ascent of several steps: a lower estimate, never below 0. Groups are
    taken in the order of the data; the last of a batch may be smaller.

    Args:
        model: The model.
        data: A batch, or batches, of (inputs, labels).
        rho: Radius of the ball.
        m: Size of a group; by default each batch is a group.
        criterion: Mean loss of (logits, labels).
        steps: Steps of the ascent.

    References:
        Foret et al., 2021, Sharpness-aware minimization, arXiv 2010.01412.
    """
    m = None if m is None else positive("m", m)
    non_negative("rho", rho)
    function("criterion", criterion)
    steps = positive("steps", steps)
    total, samples = 0.0, 0
    for x, y, *_ in batches(data, trainable(model)[0].device):
        for start in range(0, len(x), m or len(x)):
            group = (x[start : start + (m or len(x))], y[start : start + (m or len(x))])
            found = neighborhood_maximum(
                model,
                group,
                rho,
                loss=criterion,
                ascent=criterion,
                steps=steps,
                restarts=1,
                step_size=rho if steps == 1 else None,
            )
            total += (found.value - found.center) * len(group[1])
            samples += len(group[1])
    if not samples:
        raise bad_value("data", "0 samples", "at least one sample")
    return total / samples


def average_sharpness(
    model: nn.Module,
    data: Data,
    rho: float,
    *,
    criterion: Criterion = F.cross_entropy,
    draws: int = 10,
    seed: int = 0,
) -> Estimate:
    """E L(w + rho u) - L(w), u uniform on the unit sphere; about rho^2 tr(H) / (2 K) where the loss is smooth.

    Args:
        model: The model.
        data: A batch, or batches, of (inputs, labels).
        rho: Length of the perturbations.
        criterion: Mean loss of (logits, labels).
        draws: Number of directions.
        seed: Their seed.
    """
    rho = non_negative("rho", rho)
    surface = LossSurface(model, data, criterion)
    generator = seeded(seed)
    center = surface.value()[0]
    rises = []
    for _ in range(check_draws(draws)):
        with surface.moved(surface.random_direction(generator), rho):
            rises.append(surface.value()[0] - center)
    return Estimate.of(rises)


class Sharpness(NamedTuple):
    """All measures of sharpness on one set of labels.

    Attributes:
        loss: The mean loss.
        m_sharpness: See `m_sharpness`.
        average: See `average_sharpness`.
        top_eigenvalue: The largest eigenvalue of the Hessian.
        trace: Its trace.
    """

    loss: float
    m_sharpness: float
    average: Estimate
    top_eigenvalue: float
    trace: Estimate


def sharpness_by_labels(
    model: nn.Module,
    data: Data,
    rho: float,
    m: int | None = None,
    *,
    criterion: Criterion = F.cross_entropy,
    draws: int = 10,
    seed: int = 0,
) -> dict[str, Sharpness]:
    """All measures on the observed and on the clean labels, and on the correctly and the wrongly labeled samples.

    A model that fits its wrong labels is sharp on `wrong` and on `clean`, and may look flat on `observed`.

    Args:
        model: The model.
        data: Batches (inputs, observed labels, clean labels).
        rho: Radius of the ball.
        m: Size of a group; see `m_sharpness`.
        criterion: Mean loss of (logits, labels).
        draws: Number of directions of random measures.
        seed: Their seed.

    Returns:
        Measures by the sets of `label_sets`.
    """
    found = {}
    for name, part in label_sets(data).items():
        shared: dict[str, Any] = {"criterion": criterion, "seed": seed}
        found[name] = Sharpness(
            LossSurface(model, part, criterion).value()[0],
            m_sharpness(model, part, rho, m, criterion=criterion),
            average_sharpness(model, part, rho, draws=draws, **shared),
            hessian_eigenvalues(model, part, **shared).values[0],
            hessian_trace(model, part, draws=draws, **shared),
        )
    if not found:
        raise bad_value("data", "0 samples", "at least one sample")
    return found
