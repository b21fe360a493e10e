"""The optimizers as one reads them on paper: slow, one tensor at a time, the oracle of the tests.

Vectors are dictionaries from parameter name to tensor. Every pass but the clean one runs on a copy of the network, so
nothing needs to be restored. Each function returns the gradient to hand to the base optimizer.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Vector = dict[str, Tensor]


def gradient(
    model: nn.Module, x: Tensor, y: Tensor, criterion: Any = F.cross_entropy, at: Vector | None = None
) -> tuple[Vector, Tensor]:
    """Gradient and logits of a copy of the network, at the weights `at` if given."""
    network = copy.deepcopy(model)
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    for name, value in (at or {}).items():
        parameters[name].data.copy_(value)
    logits = network(x)
    grads = torch.autograd.grad(criterion(logits, y), list(parameters.values()), allow_unused=True)
    return {n: g for n, g in zip(parameters, grads, strict=True) if g is not None}, logits.detach()


def norm(vector: Vector) -> float:
    return math.sqrt(sum(float((v.double() ** 2).sum()) for v in vector.values()))


def weights(model: nn.Module) -> Vector:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def moved(w: Vector, eps: Vector) -> Vector:
    return {name: w[name] + e for name, e in eps.items()}


def sam(model: nn.Module, x: Tensor, y: Tensor, rho: float, adaptive: bool = False, eta: float = 0.0) -> Vector:
    """grad L(w + eps), eps = rho T^2 g / ||T g||, T = 1 or |w| + eta."""
    w = weights(model)
    g, _ = gradient(model, x, y)
    T = {n: w[n].abs() + eta if adaptive else torch.ones_like(v) for n, v in g.items()}
    length = norm({n: T[n] * g[n] for n in g})
    eps = {n: rho * T[n] * T[n] * g[n] / length for n in g}
    return gradient(model, x, y, at=moved(w, eps))[0]


def friendlysam(model: nn.Module, x: Tensor, y: Tensor, rho: float, sigma: float, average: Vector) -> Vector:
    """grad L(w + rho d/||d||), d = g - sigma m, m the average of the gradients before (empty at first)."""
    g, _ = gradient(model, x, y)
    d = {n: v - sigma * average[n] if n in average else v for n, v in g.items()}
    return gradient(model, x, y, at=moved(weights(model), {n: rho * v / norm(d) for n, v in d.items()}))[0]


def saner(model: nn.Module, x: Tensor, y: Tensor, rho: float, alpha: float) -> Vector:
    """SAM's gradient, with alpha times the coordinates whose ratio to the gradient at w is between 0 and 1."""
    here, there = gradient(model, x, y)[0], sam(model, x, y, rho)
    held = {n: (there[n] / here[n] > 0) & (there[n] / here[n] < 1) for n in there}
    return {n: torch.where(held[n], alpha * there[n], there[n]) for n in there}


def bsam(model: nn.Module, x: Tensor, y: Tensor, rho: float, rho_min: float) -> Vector:
    """d = g_+ + g - (||g_+|| / ||g_-||) g_-."""
    w = weights(model)
    g, _ = gradient(model, x, y)
    above, _ = gradient(model, x, y, at=moved(w, {n: rho * v / norm(g) for n, v in g.items()}))
    below, _ = gradient(model, x, y, at=moved(w, {n: -rho_min * v / norm(g) for n, v in g.items()}))
    ratio = norm(above) / norm(below)
    return {n: above[n] + g[n] - ratio * below[n] for n in g}


def selected(logits: Tensor, flip_ratio: float, rule: str, draws: Tensor) -> list[int]:
    """The m samples that win the race q_i / E_i, in the order of their positions."""
    keys = []
    for z, e in zip(logits, draws, strict=True):
        first, second = sorted(z.tolist(), reverse=True)[:2]
        q = 1.0 if rule == "uniform" else 1.0 / (1.0 + first - second)
        keys.append(second - first if rule == "lowest_gap" else q / float(e))
    m = math.floor(flip_ratio * len(logits) + 1e-9)
    return sorted(sorted(range(len(logits)), key=lambda i: -keys[i])[:m])


def flipped(z: Tensor, observed: int, rule: str) -> int:
    """The highest class other than the observed one; or the second highest."""
    order = sorted(range(len(z)), key=lambda c: -float(z[c]))
    return order[1] if rule == "second" else next(c for c in order if c != observed)


def ncsam(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rho: float,
    strength: float,
    flip_ratio: float,
    draws: Tensor,
    *,
    sign: int = 1,
    projection: bool = True,
    compensation: str = "absolute",
    noise_mean: str = "flipped",
    selection: str = "gap",
    flip_target: str = "not_observed",
    flip_criterion: Any = F.cross_entropy,
    adaptive: bool = False,
    eta: float = 0.0,
) -> Vector:
    """grad L(w + eps) with eps = Proj(rho g_B/||g_B|| + s g*); with `adaptive`, in the coordinates T g."""
    w = weights(model)
    g, logits = gradient(model, x, y)
    S = selected(logits, flip_ratio, selection, draws)
    labels = torch.tensor([flipped(logits[i], int(y[i]), flip_target) for i in S])
    noise, _ = gradient(model, x, y, criterion=lambda z, _: flip_criterion(z[S], labels))
    if noise_mean == "batch":
        noise = {n: v * len(S) / len(x) for n, v in noise.items()}
    T = {n: w[n].abs() + eta if adaptive else torch.ones_like(v) for n, v in g.items()}
    g = {n: T[n] * g[n] for n in g}
    noise = {n: T[n] * noise.get(n, torch.zeros_like(g[n])) for n in g}
    size = strength * rho / norm(noise) if compensation == "relative" else strength
    v = {n: rho * g[n] / norm(g) + sign * size * noise[n] for n in g}
    shrink = min(1.0, rho / norm(v)) if projection else 1.0
    return gradient(model, x, y, at=moved(w, {n: T[n] * shrink * v[n] for n in v}))[0]
