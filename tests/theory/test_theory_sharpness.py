"""Sharpness, curvature and landscapes against quadratic bowls and dense Hessians."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ncsam.theory import (
    Estimate,
    LossSurface,
    average_sharpness,
    filter_normalized,
    hessian_eigenvalues,
    hessian_trace,
    label_sets,
    loss_line,
    loss_plane,
    m_sharpness,
    sharpness_by_labels,
)


class Bowl(nn.Module):
    """Weights that are their own output: with `quadratic(A)`, L(w) = w.Aw / 2 and the Hessian is A."""

    def __init__(self, w):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(w, dtype=torch.float64))

    def forward(self, x):
        return self.w.expand(len(x), -1)


def quadratic(A):
    return lambda z, y: 0.5 * ((z @ A) * z).sum(dim=1).mean()


def matrix(eigenvalues, seed=0):
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(len(eigenvalues), len(eigenvalues), dtype=torch.float64, generator=generator))
    return Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.T


ANY = (torch.zeros(3, 1), torch.zeros(3))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()


def labeled(n=24):
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    clean = torch.randint(0, 3, (n,), generator=generator)
    wrong = torch.rand(n, generator=generator) < 0.4
    return x, torch.where(wrong, (clean + 1) % 3, clean), clean


def dense_hessian(model, x, y):
    model = model.eval()
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]

    def loss(flat):
        parts = torch.split(flat, [s.numel() for s in shapes])
        values = {n: part.view(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        return F.cross_entropy(torch.func.functional_call(model, values, (x,)), y)

    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return torch.autograd.functional.hessian(loss, flat)


# --- curvature


def test_value_and_gradient_over_uneven_batches_are_those_of_the_whole():
    model, (x, y, clean) = network().eval(), labeled()
    surface = LossSurface(model, [(x[:5], y[:5], clean[:5]), (x[5:], y[5:], clean[5:])])
    loss = F.cross_entropy(model(x), y)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    gradient, (value, square) = surface.gradient(lambda z, _: (z**2).mean())
    assert value == pytest.approx(float(loss.detach()))
    assert surface.value() == [pytest.approx(value)]
    assert square == pytest.approx(float((model(x) ** 2).mean().detach()))
    for found, exact in zip(gradient, expected, strict=True):
        torch.testing.assert_close(found, exact)
    by_labels = surface.value_by_labels()
    assert by_labels["observed"] == pytest.approx(value)
    assert by_labels["clean"] == pytest.approx(float(F.cross_entropy(model(x), clean).detach()))
    assert surface.num_parameters == sum(p.numel() for p in model.parameters())
    assert surface.weight_norm == pytest.approx(
        float(torch.cat([p.detach().flatten() for p in model.parameters()]).norm())
    )


def test_products_with_the_hessian_are_the_dense_ones():
    model, (x, y, _) = network(), labeled()
    surface = LossSurface(model, [(x[:5], y[:5]), (x[5:], y[5:])])
    v = surface.random_direction(torch.Generator().manual_seed(1))
    product = torch.cat([part.reshape(-1) for part in surface.hessian_times(v)])
    expected = dense_hessian(model, x, y) @ torch.cat([part.reshape(-1) for part in v])
    torch.testing.assert_close(product, expected, rtol=1e-9, atol=1e-12)


def test_largest_eigenvalues_are_those_of_the_dense_hessian():
    model, (x, y, _) = network(), labeled()
    exact = torch.linalg.eigvalsh(dense_hessian(model, x, y)).flip(0)
    found = hessian_eigenvalues(model, (x, y), 4, tolerance=1e-8)
    assert found.values == pytest.approx(exact[:4].tolist(), rel=1e-7)
    assert found.smallest < 0  # as the dense one has it
    assert float(exact[-1]) < 0
    assert found.steps < len(exact)


def test_errors_bound_the_distance_to_an_eigenvalue():
    A = matrix([5.0, 4.6, 4.0, 1.0, 0.5, 0.1, -2.0, -7.0, 0.0, 0.2])
    exact = np.linalg.eigvalsh(A.numpy())
    for steps in (2, 4, 6):
        found = hessian_eigenvalues(
            Bowl(torch.ones(10)), ANY, 2, criterion=quadratic(A), max_steps=steps, tolerance=0.0
        )
        assert found.steps == steps
        for value, error in zip(found.values, found.errors, strict=True):
            assert np.abs(exact - value).min() <= error + 1e-9
    assert hessian_eigenvalues(Bowl(torch.ones(10)), ANY, criterion=quadratic(A)).values[0] == pytest.approx(
        5, rel=1e-2
    )


def test_all_eigenvalues_of_a_small_bowl_and_of_a_flat_one():
    A = matrix([3.0, 1.0, -2.0])
    found = hessian_eigenvalues(Bowl([1.0, 2.0, 3.0]), ANY, 3, criterion=quadratic(A))
    assert found.values == pytest.approx([3.0, 1.0, -2.0])
    assert found.smallest == pytest.approx(-2.0)
    flat = hessian_eigenvalues(Bowl([1.0, 2.0]), ANY, criterion=lambda z, y: z.mean())
    assert flat.values == (0.0,)
    with pytest.raises(ValueError, match=r"count=3"):
        hessian_eigenvalues(Bowl([1.0, 2.0]), ANY, 3)


def test_trace_is_exact_for_a_diagonal_and_unbiased_else():
    diagonal = torch.diag(torch.tensor([1.0, -2.0, 5.0, 0.5], dtype=torch.float64))
    exact = hessian_trace(Bowl(torch.ones(4)), ANY, criterion=quadratic(diagonal), draws=3)
    assert exact.mean == pytest.approx(4.5)
    assert exact.error == pytest.approx(0, abs=1e-9)
    model, (x, y, _) = network(), labeled()
    trace = float(dense_hessian(model, x, y).trace())
    found = hessian_trace(model, (x, y), draws=300)
    assert 0 < found.error < 0.2 * abs(trace)
    assert abs(found.mean - trace) < 4 * found.error


# --- sharpness


def test_one_sample_at_a_time_against_the_whole_batch():
    x = torch.randn(6, 3, dtype=torch.float64)
    model = nn.Linear(3, 1, bias=False).double()
    options = {"criterion": lambda z, y: z.mean()}
    data = (x, torch.zeros(6))
    assert m_sharpness(model, data, 0.3, 1, **options) == pytest.approx(0.3 * float(x.norm(dim=1).mean()), rel=1e-5)
    pairs = x.view(3, 2, 3).mean(1).norm(dim=1).mean()
    assert m_sharpness(model, data, 0.3, 2, **options) == pytest.approx(0.3 * float(pairs), rel=1e-5)
    assert m_sharpness(model, data, 0.3, **options) == pytest.approx(0.3 * float(x.mean(0).norm()), rel=1e-5)
    uneven = (4 * x[:4].mean(0).norm() + 2 * x[4:].mean(0).norm()) / 6
    assert m_sharpness(model, data, 0.3, 4, **options) == pytest.approx(0.3 * float(uneven), rel=1e-5)
    with pytest.raises(ValueError, match=r"m=0"):
        m_sharpness(model, data, 0.3, 0, **options)


def test_m_sharpness_of_a_bowl():
    A = matrix([4.0, 1.0, 0.5])
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    g = A @ w
    step = 0.2 * g / g.norm()
    rise = g @ step + 0.5 * step @ A @ step
    one = m_sharpness(Bowl(w), ANY, 0.2, criterion=quadratic(A))
    assert one == pytest.approx(float(rise), rel=1e-5)
    several = m_sharpness(Bowl(w), ANY, 0.2, criterion=quadratic(A), steps=50)
    angles = torch.randn(200_000, 3, dtype=torch.float64)
    angles *= 0.2 / angles.norm(dim=1, keepdim=True)
    best = (angles @ g + 0.5 * ((angles @ A) * angles).sum(1)).max()
    assert one < several == pytest.approx(float(best), rel=2e-3)


def test_average_sharpness_of_a_bowl_is_its_trace():
    A = matrix([4.0, 1.0, -0.5, 2.0])
    found = average_sharpness(Bowl(torch.zeros(4)), ANY, 0.3, criterion=quadratic(A), draws=400)
    assert found.mean == pytest.approx(0.3**2 * 6.5 / 8, abs=4 * found.error)
    assert found.error < 0.01
    sphere = average_sharpness(Bowl(torch.zeros(4)), ANY, 0.3, criterion=quadratic(torch.eye(4).double()), draws=3)
    assert sphere.mean == pytest.approx(0.3**2 / 2)


def test_estimates():
    assert Estimate.of([1.0, 3.0]) == (2.0, 1.0)
    assert math.isnan(Estimate.of([1.0]).error)
    with pytest.raises(ValueError, match="draws=0"):
        average_sharpness(Bowl([1.0]), ANY, 0.1, criterion=quadratic(torch.eye(1).double()), draws=0)


def test_labels_apart():
    x, observed, clean = labeled()
    wrong = observed != clean
    sets = label_sets([(x[:10], observed[:10], clean[:10]), (x[10:], observed[10:], clean[10:])])
    joined = {name: tuple(map(torch.cat, zip(*parts, strict=True))) for name, parts in sets.items()}
    expected = {
        "observed": (x, observed),
        "clean": (x, clean),
        "right": (x[~wrong], clean[~wrong]),
        "wrong": (x[wrong], observed[wrong]),
    }
    assert joined.keys() == expected.keys()
    for name, (inputs, labels) in expected.items():
        assert torch.equal(joined[name][0], inputs)
        assert torch.equal(joined[name][1], labels)
    assert "wrong" not in label_sets((x, clean, clean))
    with pytest.raises(ValueError, match="clean"):
        label_sets((x, observed))


def test_sharpness_on_clean_and_noisy_labels_apart():
    model, (x, observed, clean) = network(), labeled()
    found = sharpness_by_labels(model, (x, observed, clean), 0.1, draws=3)
    for name, labels in (("observed", observed), ("clean", clean)):
        own = found[name]
        assert own.loss == pytest.approx(float(F.cross_entropy(model.eval()(x), labels).detach()))
        top = float(torch.linalg.eigvalsh(dense_hessian(model, x, labels))[-1])
        assert own.top_eigenvalue == pytest.approx(top, rel=5e-3)
        assert own.m_sharpness == pytest.approx(m_sharpness(model, (x, labels), 0.1))
        assert own.trace == hessian_trace(model, (x, labels), draws=3)
        assert own.average == average_sharpness(model, (x, labels), 0.1, draws=3)
    share = float((observed != clean).double().mean())
    assert found["observed"].loss == pytest.approx(share * found["wrong"].loss + (1 - share) * found["right"].loss)


# --- landscapes


def test_filters_of_a_direction_are_as_long_as_the_networks():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    direction = filter_normalized(model, seed=1)
    for p, d in zip(model.parameters(), direction, strict=True):
        if p.ndim < 2:
            assert not d.any()
        else:
            torch.testing.assert_close(d.flatten(1).norm(dim=1), p.detach().flatten(1).norm(dim=1))
    other = filter_normalized(model, seed=2)
    assert not torch.equal(direction[0], other[0])
    assert torch.equal(direction[0], filter_normalized(model, seed=1)[0])


def test_line_through_a_bowl():
    A, w = matrix([3.0, -1.0]), torch.tensor([0.5, 1.0], dtype=torch.float64)
    d = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = loss_line(Bowl(w), ANY, [d], [-1.0, 0.0, 0.5], criterion=quadratic(A))
    expected = [float(0.5 * (w + a * d) @ A @ (w + a * d)) for a in (-1.0, 0.0, 0.5)]
    assert found.losses["observed"] == pytest.approx(expected)
    assert list(found.losses) == ["observed"]
    with pytest.raises(ValueError, match="direction"):
        loss_line(Bowl(w), ANY, [torch.zeros(3)])


def test_plane_on_both_sets_of_labels(tmp_path):
    model, (x, observed, clean) = network(), labeled()
    at = np.array([-0.5, 0.0, 0.5])
    found = loss_plane(model, (x, observed, clean), at=at, seed=4)
    first, second = filter_normalized(model, 8), filter_normalized(model, 9)
    for name, labels in (("observed", observed), ("clean", clean)):
        assert found.losses[name].shape == (3, 3)
        for i, j in np.ndindex(3, 3):
            values = {
                n: p + at[i] * d + at[j] * e
                for (n, p), d, e in zip(model.named_parameters(), first, second, strict=True)
            }
            loss = F.cross_entropy(torch.func.functional_call(model.eval(), values, (x,)), labels)
            assert found.losses[name][i, j] == pytest.approx(float(loss.detach()))
    image = found.plot(tmp_path / "plane.png", "a plane")
    assert image.read_bytes().startswith(b"\x89PNG")
    line = loss_line(model, (x, observed, clean)).plot(tmp_path / "line.png")
    assert line.stat().st_size > 5000
