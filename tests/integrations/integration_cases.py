"""What the tests of all frameworks share: a small network, batches with noisy labels, and the plain loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import NCSAM, SAM
from ncsam.optim import MSAM

Batches = list[tuple[Tensor, Tensor]]


def network(seed: int = 0) -> nn.Module:
    """With BatchNorm, whose statistics must come from w alone, and dropout, which is off unless a test wants it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def batches(count: int, size: int = 16, seed: int = 1) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (count, size), generator=generator)
    x = torch.randn(count, size, 6, generator=generator) + 1.5 * F.one_hot(y, 6)
    wrong = torch.rand(count, size, generator=generator) < 0.3
    y = torch.where(wrong, torch.randint(4, (count, size), generator=generator), y)
    return list(zip(x, y, strict=True))


def make(kind: str, parameters: Any, model: Any, steps: int = 20, **options: Any) -> SAM:
    """SAM, SAM with the automatic radius, MSAM, or NCSAM (also with a separate forward), on SGD with momentum."""
    base = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3)
    if kind == "msam":
        return MSAM(base, rho=0.3, model=model, **options)  # type: ignore[return-value]
    if kind in ("ncsam", "separate"):
        generator = torch.Generator().manual_seed(0)
        options |= {"flip_forward": "separate"} if kind == "separate" else {}
        return NCSAM(base, rho=0.1, kappa=0.5, total_steps=steps, generator=generator, model=model, **options)
    return SAM(base, rho="auto" if kind == "auto" else 0.1, model=model, **options)


def plain_loop(
    kind: str, model: nn.Module, groups: Sequence[Batches], clip: float | None = None, dtype: torch.dtype | None = None
) -> tuple[SAM, list[float]]:
    """Train by the two phases as the documentation shows them; each group of micro-batches is one step.

    Returns the optimizer and the losses at w.
    """
    losses = []
    optimizer = make(kind, model.parameters(), model, steps=len(groups))

    def loss_of(x: Tensor, y: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=False):
            logits = model(x)
            return F.cross_entropy(logits.float(), y) / parts, logits

    for group in groups:
        optimizer.zero_grad()
        with optimizer.first_pass():
            for x, y in group:
                loss, logits = loss_of(x, y, len(group))
                optimizer.backward(loss, logits, y)
                losses.append(float(loss.detach()) * len(group))
        for perturbed in optimizer.perturbations():
            with perturbed:
                for x, y in group:
                    optimizer.backward(loss_of(x, y, len(group))[0])
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return optimizer, losses


def twin(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def largest_parameter_difference(one: nn.Module, two: nn.Module) -> float:
    """For where ranks or frameworks keep buffers of their own."""
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return max(float((left - right).detach().abs().max()) for left, right in pairs)


def largest_difference(one: nn.Module, two: nn.Module) -> float:
    """Over all weights and buffers."""
    left, right = one.state_dict(), two.state_dict()
    assert left.keys() == right.keys()
    return max(float((left[k].double() - right[k].double()).abs().max()) for k in left)
