"""The fast optimizers equal the slow reference, in double precision, over many steps."""

import pytest
import torch
import torch.nn.functional as F
from optim_cases import NETWORKS, batch, largest_difference, network, sgd, twin

from ncsam import ASAM, BSAM, NCSAM, SAM, SANER, FriendlySAM
from ncsam.optim import reference
from ncsam.optim.flipping import exponential
from ncsam.optim.ramps import RAMPS

STEPS = 12


def follow(model, oracle, optimizer, gradient_of):
    """Step both side by side: one by the optimizer, one by its base on the reference's gradient."""
    base = sgd(oracle)
    for i in range(STEPS):
        x, y = batch(i)
        gradient = gradient_of(oracle, x, y, i)
        loss = optimizer.step(lambda: model(x), y)  # noqa: B023
        assert loss.item() == pytest.approx(F.cross_entropy(oracle(x), y).item(), abs=1e-10)  # updates statistics once
        for name, p in oracle.named_parameters():
            p.grad = gradient.get(name)
        base.step()
    assert largest_difference(model, oracle) < 1e-10


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("options", [{}, {"adaptive": True, "eta": 0.01}])
def test_sam(name, options):
    model = network(name)
    oracle = twin(model)
    optimizer = SAM(sgd(model), rho=0.3, **options)
    follow(model, oracle, optimizer, lambda m, x, y, i: reference.sam(m, x, y, 0.3, **options))


@pytest.mark.parametrize("name", NETWORKS)
def test_bsam(name):
    model = network(name)
    oracle = twin(model)
    optimizer = BSAM(sgd(model), rho=0.2, rho_min=0.1)
    follow(model, oracle, optimizer, lambda m, x, y, i: reference.bsam(m, x, y, 0.2, 0.1))


@pytest.mark.parametrize("name", NETWORKS)
def test_asam(name):
    model = network(name)
    oracle = twin(model)
    optimizer = ASAM(sgd(model), rho=0.3, eta=0.02)
    follow(model, oracle, optimizer, lambda m, x, y, i: reference.sam(m, x, y, 0.3, adaptive=True, eta=0.02))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("sigma", "decay"), [(1.0, 0.9), (0.6, 0.5), (0.0, 0.9)])
def test_friendlysam(name, sigma, decay):
    model = network(name)
    oracle = twin(model)
    optimizer = FriendlySAM(sgd(model), rho=0.3, sigma=sigma, decay=decay)
    average = {}

    def gradient_of(m, x, y, i):
        found = reference.friendlysam(m, x, y, 0.3, sigma, average)
        g, _ = reference.gradient(m, x, y)
        average.update({n: decay * average[n] + (1 - decay) * v if n in average else v for n, v in g.items()})
        return found

    follow(model, oracle, optimizer, gradient_of)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("alpha", [0.5, 0.0])
def test_saner(name, alpha):
    model = network(name)
    oracle = twin(model)
    optimizer = SANER(sgd(model), rho=0.3, alpha=alpha)
    follow(model, oracle, optimizer, lambda m, x, y, i: reference.saner(m, x, y, 0.3, alpha))


def smoothed(logits, targets):
    return F.cross_entropy(logits, targets, label_smoothing=0.1)


ALTERNATIVES = [
    {},
    {"sign": -1},
    {"projection": False},
    {"compensation": "relative"},
    {"compensation": "relative", "sign": -1, "projection": False},
    {"noise_mean": "batch"},
    {"selection": "uniform"},
    {"selection": "lowest_gap"},
    {"flip_target": "second"},
    {"flip_criterion": smoothed},
    {"adaptive": True, "eta": 0.01},
    {"adaptive": True, "compensation": "relative", "projection": False},
]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("options", ALTERNATIVES, ids=lambda o: ",".join(o) or "paper")
def test_ncsam(name, options):
    model = network(name)
    oracle = twin(model)
    warmup, kappa, rho = 3, 0.4, 0.3
    own = torch.Generator().manual_seed(7)
    optimizer = NCSAM(
        sgd(model), rho, kappa, 0.4, total_steps=STEPS, warmup_steps=warmup,
        generator=torch.Generator().manual_seed(7), **options,
    )  # fmt: skip

    def gradient_of(m, x, y, i):
        if i < warmup:
            return reference.gradient(m, x, y)[0]
        strength = kappa * RAMPS["smooth"]((i + 1) / STEPS)
        return reference.ncsam(m, x, y, rho, strength, 0.4, exponential(len(x), own), **options)

    follow(model, oracle, optimizer, gradient_of)


def test_the_reference_notices_a_wrong_sign():
    """The comparison above is not blind: the other sign is far away."""
    x, y = batch()
    model = network()
    draws = exponential(len(x), torch.Generator().manual_seed(7))
    plus, minus = (reference.ncsam(model, x, y, 0.3, 0.4, 0.4, draws, sign=s) for s in (1, -1))
    assert max((plus[n] - minus[n]).abs().max() for n in plus) > 1e-3
