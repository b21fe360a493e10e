"""SAM, ASAM and FriendlySAM with any loss and any targets: each step is the formula's, and each task is learned."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import ASAM, SAM, FriendlySAM

KINDS = [SAM, ASAM, FriendlySAM]


class Case(NamedTuple):
    """A network, its loss on a fixed batch, and, for losses of (output, targets), these two."""

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]
    forward: Callable[[nn.Module], Any] | None = None
    targets: Any = None
    criterion: Any = None


def regression() -> Case:
    x, model = torch.randn(32, 3), nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    y = x[:, :1] * 2 - x[:, 1:2]
    return Case(model, lambda m: F.mse_loss(m(x), y), lambda m: m(x), y, F.mse_loss)


def segmentation() -> Case:
    """Logits (batch, classes, h, w), 32-bit targets, some pixels ignored."""
    x, model = torch.randn(4, 2, 6, 6), nn.Conv2d(2, 3, 3, padding=1)
    y = (x[:, 0] > 0).int() + (x[:, 1] > 0).int()
    y[:, 0] = -100
    return Case(model, lambda m: F.cross_entropy(m(x), y.long()), lambda m: m(x), y)


def detection() -> Case:
    """Targets in dictionaries, a loss that is a sum of losses."""
    x = torch.randn(16, 3)
    model = nn.ModuleDict({"box": nn.Linear(3, 4), "score": nn.Linear(3, 2)})
    target = {"boxes": x.repeat(1, 2)[:, :4], "labels": (x[:, 0] > 0).long()}

    def loss(m: Any) -> Tensor:
        return F.smooth_l1_loss(m["box"](x), target["boxes"]) + F.cross_entropy(m["score"](x), target["labels"])

    return Case(model, loss)


def language() -> Case:
    """The next token at each place, padding ignored, as (batch, vocabulary, places)."""
    tokens = torch.arange(24).reshape(4, 6) % 5
    y = tokens.roll(-1, 1)
    y[:, -2:] = -100
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
    return Case(model, lambda m: F.cross_entropy(m(tokens).mT, y), lambda m: m(tokens).mT, y)


CASES = [regression, segmentation, detection, language]


def made(case: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    return case()


def step(optimizer: Any, case: Case) -> float:
    if case.forward is None:
        loss = optimizer.run_passes(lambda: case.loss(case.model))
        optimizer.step()
        return float(loss)
    return float(optimizer.step(lambda: case.forward(case.model), case.targets))


def options(case: Case) -> dict[str, Any]:
    return {"model": case.model, **({} if case.criterion is None else {"criterion": case.criterion})}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_first_step_is_the_formulas(kind: Any, case: Callable[[], Case]) -> None:
    """eps = rho g/|g|, for ASAM rho T^2 g/|T g|; FriendlySAM's first direction is g. Then w - lr grad L(w + eps)."""
    here = made(case)
    plain = copy.deepcopy(here.model)
    rho, lr = 0.1, 0.5
    step(kind(torch.optim.SGD(here.model.parameters(), lr=lr), rho=rho, **options(here)), here)
    weights = list(plain.parameters())
    before = [w.detach().clone() for w in weights]
    gradients = torch.autograd.grad(here.loss(plain), weights)
    scales = [w.abs() + 0.01 if kind is ASAM else torch.ones_like(w) for w in before]
    norm = torch.cat([(t * g).flatten() for t, g in zip(scales, gradients, strict=True)]).norm()
    with torch.no_grad():
        for w, t, g in zip(weights, scales, gradients, strict=True):
            w += rho * t**2 * g / norm
    for ours, w, g in zip(here.model.parameters(), before, torch.autograd.grad(here.loss(plain), weights), strict=True):
        torch.testing.assert_close(ours.detach(), w - lr * g, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("guess", ["measured", "given"])
def test_an_automatic_radius_learns_it(kind: Any, case: Callable[[], Case], guess: str) -> None:
    """The loss of guessing is measured by itself from the labels or the first steps, or given as `chance_loss`."""
    here = made(case)
    more = {"chance_loss": float(here.loss(here.model).detach())} if guess == "given" else {}
    optimizer = kind(torch.optim.Adam(here.model.parameters(), lr=0.03), rho="auto", **options(here), **more)
    losses = [step(optimizer, here) for _ in range(60)]
    assert losses[-1] < 0.7 * losses[0]
    assert optimizer.rho != 0.05  # where it begins
    assert torch.isfinite(torch.tensor(losses)).all()
