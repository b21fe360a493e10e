"""The largest loss in the neighborhood of the weights, which SAM bounds, estimated from below."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor, nn

from ncsam._arguments import above_zero, function, non_negative, positive
from ncsam._errors import bad_value, unknown_name
from ncsam.optim import validate
from ncsam.theory.batches import Data
from ncsam.theory.estimate import seeded
from ncsam.theory.surface import Criterion, LossSurface, Vector
from ncsam.vectors.arithmetic import add_scaled_, global_norm, scale_

_MOST_POINTS = 1_000_000


def zero_one(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of samples whose largest logit is not their label's.

    Args:
        logits: (samples, classes).
        labels: Class numbers (samples,).
    """
    labels = _class_numbers(labels, logits)
    return (logits.argmax(dim=1) != labels).to(logits.dtype).mean()


def clipped(cap: float | None = None) -> Criterion:
    """A criterion: cross-entropy clipped at `cap` and scaled to [0, 1], mean of min(loss / cap, 1).

    Args:
        cap: Above 0. By default log C, the loss of a uniform guess among C classes: no better than guessing costs 1.
    """
    if cap is not None:
        above_zero("cap", cap)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        labels = _class_numbers(labels, logits)
        limit = math.log(logits.shape[1]) if cap is None else float(cap)
        return (F.cross_entropy(logits, labels, reduction="none") / limit).clamp(max=1.0).mean()

    return loss


def improbability(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of 1 - p_y, a smooth loss in [0, 1] that replaces `zero_one`, which has no gradient.

    Args:
        logits: (samples, classes).
        labels: Class numbers (samples,).
    """
    labels = _class_numbers(labels, logits)
    return 1.0 - logits.softmax(dim=1).gather(1, labels.unsqueeze(1)).mean()


def _class_numbers(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels that are class numbers within range, as 64-bit numbers."""
    found = validate.class_targets(labels, validate.class_logits(logits), first=True)
    if found.is_floating_point():
        raise bad_value("labels.dtype", str(found.dtype), "class numbers")
    return found.long()


#: The losses in [0, 1] that the theorem allows, by name, each with the smooth one that its ascent follows.
BOUNDED: dict[str, tuple[Criterion, Criterion]] = {
    "zero_one": (zero_one, improbability),
    "clipped": (clipped(), clipped()),
}


@dataclass(frozen=True)
class NeighborhoodMaximum:
    """The largest loss found within the ball; the true maximum is at least that.

    Attributes:
        value: The largest loss found.
        center: The loss at w itself.
        length: The length of the best perturbation.
        restarts: The best value of each ascent.
        evaluations: Number of passes over the data.
        perturbation: The best perturbation.
    """

    value: float
    center: float
    length: float
    restarts: tuple[float, ...]
    evaluations: int
    perturbation: Vector = field(repr=False)


def neighborhood_maximum(
    model: nn.Module,
    data: Data,
    rho: float,
    *,
    loss: str | Criterion = "zero_one",
    ascent: Criterion | None = None,
    steps: int = 20,
    restarts: int = 4,
    step_size: float | None = None,
    seed: int = 0,
) -> NeighborhoodMaximum:
    """A lower estimate of max over ||eps|| <= rho of L_M(w + eps), by projected gradient ascent over all of `data`.

        eps <- Proj_{||eps|| <= rho}(eps + eta g / ||g||),  g = gradient of L_ascent at w + eps.

    The loss is evaluated at every visited point, and the largest value is kept. For a named loss the ascents follow in
    turn its smooth replacement (`improbability` for "zero_one", "clipped" itself) and cross-entropy, whose first step
    is SAM's; cross-entropy alone would not do, because it climbs by making a few samples very wrong, which a bounded
    loss hardly notices. For your own loss they follow that loss. The first ascent of each kind starts at w, further
    ones at random points of the sphere. Each point costs one forward and one backward pass over the data: (steps + 1) *
    restarts of them.

    Args:
        model: The model.
        data: A batch, or batches, of (inputs, labels).
        rho: Radius of the ball.
        loss: "zero_one", "clipped" (see `clipped`), or your own function of (logits, labels).
        ascent: The loss to climb, instead of the ones above.
        steps: Steps of each ascent.
        restarts: Number of ascents.
        step_size: eta; by default 2.5 rho / steps, enough to cross the ball.
        seed: Seed of the random starting points.
    """
    rho = non_negative("rho", rho)
    for name, count in (("steps", steps), ("restarts", restarts)):
        positive(name, count, _MOST_POINTS)
    if isinstance(loss, str) and loss not in BOUNDED:
        raise unknown_name("loss", loss, BOUNDED)
    if isinstance(loss, str):
        bounded, smooth = BOUNDED[loss]
        followed: tuple[Criterion, ...] = (smooth, F.cross_entropy)
    else:
        bounded, followed = function("loss", loss, "'zero_one', 'clipped', or a function of (logits, labels)"), (loss,)
    if ascent is not None:
        followed = (function("ascent", ascent),)
    eta = 2.5 * rho / steps if step_size is None else non_negative("step_size", step_size)
    surfaces = [LossSurface(model, data, criterion) for criterion in followed]
    generator = seeded(seed)
    center = surfaces[0].value(bounded)[0]
    best, best_at, found, evaluations = center, surfaces[0].zeros(), [], 1
    for restart in range(restarts if rho > 0 else 0):
        surface = surfaces[restart % len(surfaces)]
        eps = surface.zeros() if restart < len(surfaces) else surface.random_direction(generator)
        scale_(eps, rho)
        _project(eps, rho)
        top = -math.inf
        for step in range(steps + 1):
            with surface.moved(eps):
                gradient, (_, value) = surface.gradient(bounded)
            evaluations += 1
            top = max(top, value)
            if value > best:
                best, best_at = value, [e.clone() for e in eps]
            norm = global_norm(gradient)
            if step == steps or not (math.isfinite(norm) and norm > 0):
                break
            add_scaled_(eps, gradient, eta / norm)
            _project(eps, rho)
        found.append(top)
    return NeighborhoodMaximum(best, center, global_norm(best_at), tuple(found), evaluations, best_at)


def _project(eps: Vector, rho: float) -> None:
    """Back into the ball, and not a rounding error beyond it."""
    norm = global_norm(eps)
    if norm > rho:
        scale_(eps, rho / norm * (1.0 - 1e-6))
