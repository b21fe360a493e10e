"""Variants beside the library, against slow references: one sample at a time, by autograd."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam import models
from ncsam.methods.base import Plan
from ncsam.optim import SAM, LossBudgetRadius


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


def test_the_jacobian_penalty_takes_no_gradient_through_the_weights_of_samples(batch: tuple[Tensor, Tensor]) -> None:
    from head_losses import JacobianPenalty

    x, y = batch
    head = nn.Linear(4, 3, dtype=torch.float64)
    x.requires_grad_()
    logits = head(x)
    found = torch.autograd.grad(JacobianPenalty(0.5).of(logits, x, y, head), (logits, x, head.weight))
    with torch.no_grad():
        p = logits.softmax(1)
        of_logits = (p - F.one_hot(y, 3)) / 6
        missing = 1 - p[torch.arange(6), y]
        of_x = of_logits @ head.weight + 0.5 * 2 * missing[:, None] * x / 4 / 6
        of_head = of_logits.T @ x + 0.5 * 2 * head.weight / 100
    for ours, expected in zip(found, (of_logits, of_x, of_head), strict=True):
        torch.testing.assert_close(ours, expected)


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


class Normed(models.Backbone):
    """A convolution and BatchNorm before the head."""

    num_features = 5

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 5, 2), nn.BatchNorm2d(5)
        self.fc = nn.Linear(5, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.conv(x))).mean((2, 3))


def per_sample_by_loop(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> list[Tensor]:
    """The gradient of per-sample SAM from copies of the model, one sample and two backwards at a time."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        moved = copy.deepcopy(model)
        params = list(moved.parameters())
        g = torch.autograd.grad(F.cross_entropy(moved(x[i : i + 1]), y[i : i + 1]), params)
        norm = sum(float(v.square().sum()) for v in g) ** 0.5
        with torch.no_grad():
            for p, v in zip(params, g, strict=True):
                p += radius * v / norm
        g = torch.autograd.grad(F.cross_entropy(moved(x[i : i + 1]), y[i : i + 1]), params)
        for t, v in zip(total, g, strict=True):
            t += v / len(x)
    return total


@pytest.mark.parametrize("kind", ["mlp", "normed"])
def test_per_sample_sam_by_vmap_is_that_of_a_loop(kind: str) -> None:
    from per_sample import PerSample

    torch.manual_seed(0)
    y = torch.tensor([0, 1, 2, 2, 1])
    if kind == "mlp":
        model, x = models.create("mlp", 3, in_features=4, hidden=[6]).double(), torch.randn(5, 4, dtype=torch.float64)
        slow = copy.deepcopy(model)
    else:
        model, x = Normed().double(), torch.randn(5, 2, 4, 4, dtype=torch.float64)
        slow = copy.deepcopy(model).eval()
        with torch.no_grad():
            seen = model.conv(x)
            slow.norm.running_mean.copy_(seen.mean((0, 2, 3)))
            slow.norm.running_var.copy_(seen.var((0, 2, 3), correction=0))
    once = copy.deepcopy(model)
    expected = per_sample_by_loop(slow, x, y, 0.4)
    found = PerSample(0.4, chunk=2).loss(model, Plan(x, y, torch.arange(5)))
    found.loss.backward()
    for p, g in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, g)
    torch.testing.assert_close(found.logits, once(x).detach())
    for ours, buffer in zip(model.buffers(), once.buffers(), strict=True):  # of one pass in training mode
        torch.testing.assert_close(ours, buffer)
    assert all(module.training for module in model.modules())


def test_per_sample_sam_of_a_linear_model_is_its_closed_form(batch: tuple[Tensor, Tensor]) -> None:
    from head_losses import PerSampleHead
    from per_sample import PerSample

    x, y = batch
    model = models.create("mlp", 3, in_features=4, hidden=[]).double()
    plan = Plan(x, y, torch.arange(6))
    gradients = []
    for method in (PerSample(0.3), PerSampleHead(0.3)):
        gradients.append(torch.autograd.grad(method.loss(model, plan).loss, list(model.parameters())))
    for ours, closed in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, closed)


def test_a_budget_from_the_command_line_is_that_radius(batch: tuple[Tensor, Tensor]) -> None:
    from budget_sam import BudgetSAM

    x, y = batch
    torch.manual_seed(1)
    models_, radii = [nn.Linear(4, 3, dtype=torch.float64)], []
    models_.append(copy.deepcopy(models_[0]))
    bases = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models_]
    for model, optimizer in zip(
        models_, (BudgetSAM(bases[0], 99.0, budget=0.02), SAM(bases[1], LossBudgetRadius(0.02))), strict=True
    ):
        g = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        optimizer.step(lambda model=model: model(x), y)
        radii.append(optimizer.last_step.rho)
        assert radii[-1] == pytest.approx(0.02 / float(torch.cat([v.flatten() for v in g]).norm()))
    assert torch.equal(models_[0].weight, models_[1].weight)
