"""AE-SAM against a slow loop of its formulas."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters())))


def norm(values: list[Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in values]).norm()


def test_aesam_perturbs_where_the_squared_norm_exceeds_its_running_mean_and_deviation() -> None:
    """c falls from 1 to -1, so most of the late steps are SAM's."""
    from aesam import AESAM

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    other = copy.deepcopy(model)
    steps, rho = 40, 0.2
    optimizer = AESAM(torch.optim.SGD(model.parameters(), lr=0.1), rho, total_steps=steps)
    mean, variance, phases = 0.0, 0.0, []
    for i in range(steps):
        x, y = torch.randn(16, 5, dtype=torch.float64), torch.randint(0, 3, (16,))
        optimizer.step(lambda x=x: model(x), y)
        g = gradients(other, x, y)
        square = float(norm(g)) ** 2
        mean = 0.9 * mean + 0.1 * square if i else square
        variance = 0.9 * variance + 0.1 * (square - mean) ** 2
        sharp = square >= mean + (1 - 2 * (i + 1) / steps) * variance**0.5
        if sharp:
            moved = copy.deepcopy(other)
            with torch.no_grad():
                for p, v in zip(moved.parameters(), g, strict=True):
                    p += rho * v / norm(g)
            g = gradients(moved, x, y)
        with torch.no_grad():
            for p, v in zip(other.parameters(), g, strict=True):
                p -= 0.1 * v
        phases.append("aesam" if sharp else "base")
        assert optimizer.last_step is not None
        assert optimizer.last_step.phase == phases[-1]
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)
    assert phases[:20].count("aesam") < phases[20:].count("aesam")


def test_aesam_needs_the_length_of_training() -> None:
    from aesam import AESAM

    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="total_steps=None"):
        AESAM(torch.optim.SGD(model.parameters(), lr=0.1)).step(lambda: model(torch.ones(2, 4)), torch.tensor([0, 1]))


def test_aesam_resumes_with_its_running_statistics() -> None:
    from aesam import AESAM

    torch.manual_seed(0)
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    model = nn.Linear(4, 3)
    optimizer = AESAM(torch.optim.SGD(model.parameters(), lr=0.1), total_steps=9)
    for _ in range(3):
        optimizer.step(lambda: model(x), y)
    again = copy.deepcopy(model)
    resumed = AESAM(torch.optim.SGD(again.parameters(), lr=0.1), total_steps=9)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(4):
        optimizer.step(lambda: model(x), y)
        resumed.step(lambda: again(x), y)
    assert torch.equal(model.weight, again.weight)
