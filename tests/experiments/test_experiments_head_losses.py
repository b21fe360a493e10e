"""Variants beside the library, against slow references: one sample at a time, by autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 1, 0])


def test_per_sample_sam_of_the_head_is_the_mean_of_each_samples_own_step(batch: tuple[Tensor, Tensor]) -> None:
    from head_losses import PerSampleHead

    x, y = batch
    head = nn.Linear(4, 3, dtype=torch.float64)
    PerSampleHead(0.3).of(head(x), x, y, head).backward()
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for i in range(len(x)):
        w, b = head.weight.detach().clone().requires_grad_(), head.bias.detach().clone().requires_grad_()
        gw, gb = torch.autograd.grad(F.cross_entropy(F.linear(x[i : i + 1], w, b), y[i : i + 1]), (w, b))
        scale = 0.3 / torch.sqrt(gw.square().sum() + gb.square().sum())
        moved = [(w + scale * gw).detach().requires_grad_(), b + scale * gb]
        loss = F.cross_entropy(F.linear(x[i : i + 1], *moved), y[i : i + 1])
        expected += torch.autograd.grad(loss, moved[0])[0] / len(x)
    torch.testing.assert_close(head.weight.grad, expected)


def test_the_jacobian_penalty_by_hand() -> None:
    from head_losses import JacobianPenalty

    head = nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.fill_(2.0)
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    x = torch.tensor([[3.0, 4.0], [1.0, 1.0]])
    found = JacobianPenalty(0.5).of(logits, x, torch.tensor([0, 1]), head)
    # (.5 * 12.5 + .5 * 1) / 2 = 3.375, and 16 / 100
    assert found.item() == pytest.approx(torch.tensor(2.0).log().item() + 0.5 * (3.375 + 0.16))


def test_rwsam_steps_along_the_weighted_gradient(batch: tuple[Tensor, Tensor]) -> None:
    from rwsam import LENGTH, RWSAM

    x, y = batch
    model = nn.Linear(4, 3, dtype=torch.float64)
    w = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = RWSAM(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.2, strength=3.0)
    optimizer.step(lambda: model(x), y)

    generator = torch.Generator().manual_seed(0)
    z = [torch.randint(0, 2, p.shape, generator=generator).double() * 2 - 1 for p in w]
    h = LENGTH / 15**0.5  # of 15 parameters
    with torch.no_grad():
        near, there = (
            F.cross_entropy(F.linear(x, *(p + s * d for p, d in zip(w, z, strict=True))), y, reduction="none")
            for s in (0.0, h)
        )
    p = torch.softmax(3.0 * (there - near).abs() / h, 0)
    assert p.max() > 1.5 / 6  # the weights matter
    v = torch.autograd.grad(p @ F.cross_entropy(F.linear(x, *w), y, reduction="none"), w)
    norm = torch.sqrt(sum(d.square().sum() for d in v))
    moved = [(a + 0.2 * d / norm).detach().requires_grad_() for a, d in zip(w, v, strict=True)]
    gradient = torch.autograd.grad(F.cross_entropy(F.linear(x, *moved), y), moved)
    for after, before, g in zip(model.parameters(), w, gradient, strict=True):
        torch.testing.assert_close(after.detach(), (before - 0.1 * g).detach())
