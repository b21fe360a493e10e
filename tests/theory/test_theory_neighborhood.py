"""The neighborhood maximum against closed forms and brute force, and the network left untouched."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ncsam.theory import LossSurface, clipped, improbability, neighborhood_maximum, zero_one


def small_network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def some_data(n=60):
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def test_bounded_losses_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.5], [0.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 0])
    assert float(zero_one(logits, labels)) == 0.5
    losses = [math.log1p(math.exp(-2)), math.log1p(math.exp(3)), math.log1p(math.exp(0.5)), math.log(2)]
    assert float(clipped(1.0)(logits, labels)) == pytest.approx(sum(min(v, 1.0) for v in losses) / 4, rel=1e-6)
    scaled = [min(v / math.log(2), 1.0) for v in losses]
    assert float(clipped()(logits, labels)) == pytest.approx(sum(scaled) / 4, rel=1e-6)
    assert float(improbability(logits, labels)) == pytest.approx(1 - sum(math.exp(-v) for v in losses) / 4, rel=1e-6)
    with pytest.raises(ValueError, match=r"cap=0"):
        clipped(0)


def test_a_linear_loss_has_its_maximum_on_the_sphere():
    model = nn.Linear(3, 1, bias=False).double()
    x = torch.randn(20, 3, dtype=torch.float64)
    found = neighborhood_maximum(
        model, (x, torch.zeros(20)), 0.7, loss=lambda z, y: z.mean(), ascent=lambda z, y: z.mean()
    )
    assert found.value == pytest.approx(found.center + 0.7 * float(x.mean(0).norm()), rel=1e-5)
    assert found.length == pytest.approx(0.7, rel=1e-5)
    assert len(found.restarts) == 4


def test_a_maximum_inside_the_ball_is_found():
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.3, -0.2]]))
    top = torch.tensor([[0.6, 0.1]], dtype=torch.float64)

    def loss(z, y):
        return 1 - ((model.weight - top) ** 2).sum() + 0 * z.sum()

    found = neighborhood_maximum(model, (torch.ones(1, 2).double(), torch.zeros(1)), 2.0, loss=loss, steps=200)
    assert found.value == pytest.approx(1.0, abs=1e-3)
    assert found.length == pytest.approx(math.hypot(0.3, 0.3), abs=0.05)


@pytest.mark.parametrize("loss", ["zero_one", "clipped"])
def test_never_above_brute_force_and_close_to_it(loss):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 1, generator=generator).double()
    y = ((x[:, 0] > 0).long() + (torch.rand(80, generator=generator) < 0.2).long()) % 2
    model = nn.Linear(1, 2, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-0.4], [0.4]]))
    rho = 0.7  # enough to turn the classifier round
    found = neighborhood_maximum(model, (x, y), rho, loss=loss)
    criterion = {"zero_one": zero_one, "clipped": clipped()}[loss]
    best = 0.0
    for radius in np.linspace(0, rho, 41):
        for angle in np.linspace(0, 2 * math.pi, 180, endpoint=False):
            step = torch.tensor([[math.cos(angle)], [math.sin(angle)]]).double() * radius
            best = max(best, float(criterion(x @ (model.weight.detach() + step).T, y)))
    assert found.value <= best + 2e-3
    assert found.value >= best - 0.02
    assert found.value > found.center + 0.2


@pytest.mark.parametrize("loss", ["zero_one", "clipped"])
def test_the_value_is_attained_within_the_ball(loss):
    model, data = small_network().train(), some_data()
    found = neighborhood_maximum(model, data, 0.8, loss=loss, steps=5)
    assert found.length <= 0.8
    assert 0 <= found.center <= found.value <= 1
    assert found.value == max(found.center, *found.restarts)
    assert found.evaluations == 1 + 4 * 6
    criterion = {"zero_one": zero_one, "clipped": clipped()}[loss]
    surface = LossSurface(model, data, criterion)
    with surface.moved(found.perturbation):
        assert surface.value()[0] == pytest.approx(found.value, abs=1e-7)
    assert surface.value()[0] == pytest.approx(found.center, abs=1e-7)


def test_batches_of_a_loader_give_the_same_as_one_batch():
    model, (x, y) = small_network().double(), some_data()
    x = x.double()
    whole = neighborhood_maximum(model, (x, y), 0.5, loss="clipped", steps=4)
    split = neighborhood_maximum(
        model, [(x[:7], y[:7]), (x[7:40], y[7:40]), (x[40:], y[40:])], 0.5, loss="clipped", steps=4
    )
    assert split.value == pytest.approx(whole.value, rel=1e-9)
    assert split.restarts == pytest.approx(whole.restarts, rel=1e-9)


def test_the_network_is_left_as_it_was():
    model, data = small_network().train(), some_data()
    model[3].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    F.cross_entropy(model.eval()(data[0]), data[1]).backward()
    model.train()
    model[3].eval()
    gradients = [p.grad.clone() for p in model.parameters()]
    neighborhood_maximum(model, data, 0.5, steps=2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert model.training
    assert model[1].training
    assert not model[3].training


def test_a_failing_criterion_leaves_the_weights_where_they_were():
    model, data = small_network(), some_data()
    before = [p.detach().clone() for p in model.parameters()]
    calls = []

    def breaks(z, y):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        return F.cross_entropy(z, y)

    with pytest.raises(RuntimeError, match="out of memory"):
        neighborhood_maximum(model, data, 0.5, loss=F.cross_entropy, ascent=breaks)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_a_ball_of_radius_zero_is_the_center():
    found = neighborhood_maximum(small_network(), some_data(), 0.0)
    assert (found.value, found.length, found.restarts) == (found.center, 0.0, ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rho": -1.0}, "rho=-1"),
        ({"rho": math.inf}, "rho=inf"),
        ({"loss": "zero-one"}, "zero_one"),
        ({"steps": 0}, "steps=0"),
        ({"restarts": 0}, "restarts=0"),
        ({"data": []}, "data"),
        ({"data": iter([some_data()])}, "data='"),
        ({"data": [(torch.zeros(2, 4),)]}, "batches"),
        ({"model": nn.ReLU()}, "parameters"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"model": small_network(), "data": some_data(), "rho": 0.1} | change
    with pytest.raises(ValueError, match=message):
        neighborhood_maximum(arguments.pop("model"), arguments.pop("data"), arguments.pop("rho"), **arguments)
