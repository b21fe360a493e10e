"""The optimizers as they read on paper: slow, one tensor at a time, the oracle of the tests.

Vectors are dictionaries from parameter name to tensor. Every pass but the clean one runs on a copy of the model, so
nothing needs to be restored. Each function returns the gradient for the base optimizer.
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
    """Gradient and logits of a copy of the model, at the weights `at` if given.

    Args:
        model: Not changed: the pass runs on a copy.
        x: The batch, as the model takes it.
        y: Targets, as the criterion takes them.
        criterion: Loss of (logits, targets).
        at: Weights by parameter name, in place of the model's own.

    Returns:
        The gradient of each trainable parameter that the loss depends on, and the logits.
    """
    network = copy.deepcopy(model)
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    for name, value in (at or {}).items():
        parameters[name].data.copy_(value)
    logits = network(x)
    grads = torch.autograd.grad(criterion(logits, y), list(parameters.values()), allow_unused=True)
    return {n: g for n, g in zip(parameters, grads, strict=True) if g is not None}, logits.detach()


def norm(vector: Vector) -> float:
    """Euclidean norm of all tensors as one vector, in double precision.

    Args:
        vector: Tensors by parameter name.
    """
    return math.sqrt(sum(float((v.double() ** 2).sum()) for v in vector.values()))


def weights(model: nn.Module) -> Vector:
    """A copy of all parameters of a model, by name.

    Args:
        model: The model; the copies are detached from it.
    """
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def moved(w: Vector, eps: Vector) -> Vector:
    """w + eps, of the parameters that eps has.

    Args:
        w: The weights.
        eps: The perturbation, possibly of fewer parameters.
    """
    return {name: w[name] + e for name, e in eps.items()}


def sam(model: nn.Module, x: Tensor, y: Tensor, rho: float, adaptive: bool = False, eta: float = 0.0) -> Vector:
    """grad L(w + eps), eps = rho T^2 g / ||T g||, T = 1 or |w| + eta.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of the perturbation.
        adaptive: Whether T = |w| + eta (ASAM) rather than 1.
        eta: The offset of T.
    """
    w = weights(model)
    g, _ = gradient(model, x, y)
    T = {n: w[n].abs() + eta if adaptive else torch.ones_like(v) for n, v in g.items()}
    length = norm({n: T[n] * g[n] for n in g})
    eps = {n: rho * T[n] * T[n] * g[n] / length for n in g}
    return gradient(model, x, y, at=moved(w, eps))[0]


def friendlysam(model: nn.Module, x: Tensor, y: Tensor, rho: float, sigma: float, average: Vector) -> Vector:
    """grad L(w + rho d/||d||), d = g - sigma m, m the average of the gradients before (empty at first).

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of the perturbation.
        sigma: Share of the average that is subtracted.
        average: m, the running mean of the gradients before this step.
    """
    g, _ = gradient(model, x, y)
    d = {n: v - sigma * average[n] if n in average else v for n, v in g.items()}
    return gradient(model, x, y, at=moved(weights(model), {n: rho * v / norm(d) for n, v in d.items()}))[0]


def saner(model: nn.Module, x: Tensor, y: Tensor, rho: float, alpha: float) -> Vector:
    """SAM's gradient, with alpha times the coordinates whose ratio to the gradient at w is between 0 and 1.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of the perturbation.
        alpha: Factor of these coordinates; 1 gives SAM.
    """
    here, there = gradient(model, x, y)[0], sam(model, x, y, rho)
    held = {n: (there[n] / here[n] > 0) & (there[n] / here[n] < 1) for n in there}
    return {n: torch.where(held[n], alpha * there[n], there[n]) for n in there}


def stablesam(model: nn.Module, x: Tensor, y: Tensor, rho: float) -> Vector:
    """(||g|| / ||g'||) g', g' SAM's gradient.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of the perturbation.
    """
    final = sam(model, x, y, rho)
    ratio = norm(gradient(model, x, y)[0]) / norm(final)
    return {n: ratio * v for n, v in final.items()}


def msam(
    model: nn.Module, x: Tensor, y: Tensor, rho: float, momentum: Vector, adaptive: bool = False, eta: float = 0.0
) -> Vector:
    """grad L(w - rho T^2 v / ||T v||), v the momentum (empty at first), T = 1 or |w| + eta.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of the perturbation.
        momentum: v, the base optimizer's momentum buffers by parameter name.
        adaptive: Whether T = |w| + eta rather than 1.
        eta: The offset of T.
    """
    w = weights(model)
    T = {n: w[n].abs() + eta if adaptive else torch.ones_like(v) for n, v in momentum.items()}
    length = norm({n: T[n] * v for n, v in momentum.items()})
    return gradient(model, x, y, at=moved(w, {n: -rho * T[n] ** 2 * v / length for n, v in momentum.items()}))[0]


def bsam(model: nn.Module, x: Tensor, y: Tensor, rho: float, rho_min: float) -> Vector:
    """d = g_+ + g - (||g_+|| / ||g_-||) g_-.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of the ascent, which gives g_+.
        rho_min: Radius of the descent, which gives g_-.
    """
    w = weights(model)
    g, _ = gradient(model, x, y)
    above, _ = gradient(model, x, y, at=moved(w, {n: rho * v / norm(g) for n, v in g.items()}))
    below, _ = gradient(model, x, y, at=moved(w, {n: -rho_min * v / norm(g) for n, v in g.items()}))
    ratio = norm(above) / norm(below)
    return {n: above[n] + g[n] - ratio * below[n] for n in g}


def selected(logits: Tensor, flip_ratio: float, rule: str, draws: Tensor) -> list[int]:
    """The m samples that win the race q_i / E_i, in the order of their positions.

    Args:
        logits: Of shape (samples, classes).
        flip_ratio: m is this share of the samples, rounded down.
        rule: "gap", "uniform" or "lowest_gap".
        draws: E_i, one standard exponential draw per sample.
    """
    keys = []
    for z, e in zip(logits, draws, strict=True):
        first, second = sorted(z.tolist(), reverse=True)[:2]
        q = 1.0 if rule == "uniform" else 1.0 / (1.0 + first - second)
        keys.append(second - first if rule == "lowest_gap" else q / float(e))
    m = math.floor(flip_ratio * len(logits) + 1e-9)
    return sorted(sorted(range(len(logits)), key=lambda i: -keys[i])[:m])


def flipped(z: Tensor, observed: int, rule: str) -> int:
    """The highest class other than the observed one; or the second highest.

    Args:
        z: Logits of one sample.
        observed: Its observed class.
        rule: "second" for the second highest; otherwise "not_observed".
    """
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
    """grad L(w + eps) with eps = Proj(rho g_B/||g_B|| + s g*); with `adaptive`, in the coordinates T g.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of the perturbation.
        strength: s, of this step.
        flip_ratio: Share of the batch that is flipped.
        draws: One standard exponential draw per sample.
        sign: +1 adds s g*, -1 subtracts it.
        projection: Whether eps is projected onto the ball of radius rho.
        compensation: "absolute" for s g*, "relative" for s rho g*/||g*||.
        noise_mean: g* is a mean over the "flipped" samples or the whole "batch".
        selection: "gap", "uniform" or "lowest_gap".
        flip_target: "not_observed" or "second".
        flip_criterion: Loss of (logits, flipped labels).
        adaptive: Whether T = |w| + eta rather than 1.
        eta: The offset of T.
    """
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


def kmeans(rows: list[list[float]], k: int, draws: list[list[float]]) -> list[int]:
    """Lloyd's iterations from k-means++ starts, one for each row of uniform draws; the first of the best.

    Args:
        rows: The points.
        k: Number of clusters.
        draws: For each start, k numbers in [0, 1) that choose its first centers.

    Returns:
        The cluster of each row, in 0 to k - 1.
    """

    def square(a: list[float], b: list[float]) -> float:
        return math.fsum((u - v) ** 2 for u, v in zip(a, b, strict=True))

    best, least = [0] * len(rows), math.inf
    for start in draws:
        centers = [rows[int(start[0] * len(rows))]]
        for draw in start[1:]:
            weights = [min(square(row, center) for center in centers) for row in rows]
            goal, reached = draw * math.fsum(weights), 0.0
            for row, weight in zip(rows, weights, strict=True):
                reached += weight
                if reached > goal:
                    centers.append(row)
                    break
        labels: list[int] = []
        while True:
            nearest = [min(range(k), key=lambda c, row=row: square(row, centers[c])) for row in rows]  # type: ignore[misc]
            if nearest == labels:
                break
            labels = nearest
            for c in range(k):
                members = [row for row, label in zip(rows, labels, strict=True) if label == c]
                if members:
                    centers[c] = [math.fsum(column) / len(members) for column in zip(*members, strict=True)]
        total = math.fsum(square(row, centers[label]) for row, label in zip(rows, labels, strict=True))
        if total < least * (1 - 1e-12):
            best, least = labels, total
    return best


def features(model: nn.Module, x: Tensor) -> list[list[float]]:
    """Input of the last linear layer in evaluation mode, before the statistics saw the batch; rows of length 1.

    Args:
        model: Not changed: the pass runs on a copy.
        x: The batch.
    """
    network = copy.deepcopy(model)
    with torch.no_grad():
        network.eval()
        seen: list[Tensor] = []
        for module in network.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        network(x)
    return [(row / max(float(row.norm()), 1e-12)).tolist() for row in seen[-1].float()]


def authors_flips(
    model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, largest_rate: float, generator: torch.Generator, k: int = 3
) -> dict[int, int]:
    """Positions and labels: each cluster's rate is r (1 - mean gap / largest gap); a flip goes to any other class.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        logits: Of the batch, in training mode.
        largest_rate: r, in [0, 1].
        generator: Source of the draws, in the order in which the optimizer draws them.
        k: Number of clusters.

    Returns:
        The new class of each flipped sample, by its position in the batch.
    """

    def uniform(size: int) -> list[float]:
        return torch.rand(size, dtype=torch.float64, generator=generator).tolist()

    starts = uniform(10 * k)
    cluster = kmeans(features(model, x), k, [starts[i : i + k] for i in range(0, 10 * k, k)])
    gaps = []
    for z in logits:
        first, second = sorted(z.tolist(), reverse=True)[:2]
        gaps.append(first - second)
    rates = []
    for c in range(k):
        inside = [gap for gap, label in zip(gaps, cluster, strict=True) if label == c]
        rates.append(largest_rate * (1 - sum(inside) / len(inside) / max(inside)) if inside else 0.0)
    selected = [i for i, draw in enumerate(uniform(len(x))) if draw < rates[cluster[i]]]
    draws = uniform(len(x)) if selected else []
    others = [[c for c in range(logits.shape[1]) if c != int(label)] for label in y]
    return {i: others[i][int(draws[i] * len(others[i]))] for i in selected}


def authors(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rho: float,
    strength: float,
    largest_rate: float,
    generator: torch.Generator,
    length_only: bool = False,
    k: int = 3,
) -> Vector:
    """grad L(w + eps), eps = rho g_B/||g_B|| + s g_n, g_n from a forward of the flipped rows alone.

    Their targets are .9 for the new label and .1 / (C - 1) for every other class. With `length_only`, eps has this
    length and the direction of g_B. A single flipped row counts where BatchNorm has several values of it.

    Args:
        model: The model at w.
        x: The batch.
        y: The observed classes.
        rho: Radius of SAM's part of the perturbation.
        strength: s, of this step.
        largest_rate: The largest share of a cluster that is flipped.
        generator: Source of the draws, in the order in which the optimizer draws them.
        length_only: Whether to keep the length of eps but perturb along g_B.
        k: Number of clusters.
    """
    w = weights(model)
    g, logits = gradient(model, x, y)
    flips = authors_flips(model, x, y, logits, largest_rate, generator, k)
    eps = {n: rho * v / norm(g) for n, v in g.items()}
    fewest = 2 if any(isinstance(module, nn.BatchNorm1d) for module in model.modules()) else 1
    if len(flips) >= fewest:
        S = list(flips)
        classes = logits.shape[1]
        soft = torch.full((len(S), classes), 0.1 / (classes - 1), dtype=x.dtype)
        soft[range(len(S)), list(flips.values())] = 0.9
        noise, _ = gradient(model, x[S], y[S], criterion=lambda z, _: -(soft * z.log_softmax(1)).sum(1).mean())
        v = {n: eps[n] + strength * noise[n] for n in g}
        eps = {n: norm(v) * each / norm(g) for n, each in g.items()} if length_only else v
    return gradient(model, x, y, at=moved(w, eps))[0]
