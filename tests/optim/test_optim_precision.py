"""Mixed precision: loss scales, autocast, 16-bit weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from optim_cases import batch, largest_difference, network, parameters, same_bits, sgd, twin

from ncsam import BSAM, NCSAM, SAM
from ncsam.optim import StableSAM

ALL = [SAM, NCSAM, BSAM]
TWO_PASSES = [*ALL, StableSAM]


def scaler(scale=2.0**10, **options):
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


@pytest.mark.parametrize("cls", TWO_PASSES)
@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**16])
def test_loss_scale_does_not_change_the_step(cls, scale):
    """Pitfall 11: s g* must be unscaled before it meets eps_SAM, whose length does not know the scale."""
    model = network()
    other = twin(model)
    options = {"rho": 0.2, "total_steps": 5}
    if cls is NCSAM:
        options |= {"kappa": 0.5, "flip_ratio": 0.5, "generator": torch.Generator().manual_seed(0)}
    scaled = cls(sgd(model), **options)
    if cls is NCSAM:
        options["generator"] = torch.Generator().manual_seed(0)
    plain = cls(sgd(other), **options)
    s = scaler(scale)
    for i in range(5):
        x, y = batch(i)
        loss = scaled.step(lambda: model(x), y, scaler=s)  # noqa: B023
        s.update()
        assert loss.item() == pytest.approx(plain.step(lambda: other(x), y).item())  # noqa: B023
    assert largest_difference(model, other) < 1e-12


@pytest.mark.parametrize("cls", TWO_PASSES)
@pytest.mark.parametrize("at", ["first pass", "second pass"])
def test_overflow_skips_the_step(cls, at):
    """Pitfall 12: inf in either pass: nothing stays moved, the scale backs off, the next step works."""
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    before = parameters(model)
    passes = 0

    def forward():
        nonlocal passes
        passes += 1
        factor = math.inf if (passes == 1) == (at == "first pass") else 1.0
        return model(x) * factor if factor == 1.0 else _Overflow.apply(model(x))

    s = scaler()
    optimizer = cls(sgd(model), total_steps=4)
    optimizer.step(forward, y, scaler=s)
    s.update()
    assert same_bits(before, parameters(model))
    assert s.get_scale() == 2.0**9
    optimizer.step(lambda: model(x), y, scaler=s)
    s.update()
    assert not same_bits(before, parameters(model))


class _Overflow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * math.inf


def test_overflow_of_the_noise_gradient_alone_skips_the_step():
    """Pitfall 12: g* may overflow where g_B does not; the scaler must hear of it."""
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    before = parameters(model)
    s = scaler()
    optimizer = NCSAM(sgd(model), total_steps=1, flip_criterion=lambda z, t: F.cross_entropy(_Overflow.apply(z), t))
    optimizer.step(lambda: model(x), y, scaler=s)
    s.update()
    assert same_bits(before, parameters(model))
    assert s.get_scale() == 2.0**9


def test_disabled_scaler_changes_nothing():
    model = network()
    other = twin(model)
    x, y = batch()
    SAM(sgd(model)).step(lambda: model(x), y, scaler=torch.amp.GradScaler("cpu", enabled=False))
    SAM(sgd(other)).step(lambda: other(x), y)
    assert same_bits(parameters(model), parameters(other))


@pytest.mark.parametrize("cls", TWO_PASSES)
def test_autocast_inside_forward(cls):
    """Pitfall 14: a block per pass sees the perturbation: the second logits differ from the first."""
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    seen = []

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        seen.append(logits.detach().clone())
        return logits

    loss = cls(sgd(model), rho=1.0, total_steps=1).step(forward, y)
    assert seen[0].dtype == torch.bfloat16
    assert loss.dtype == torch.float32  # as autocast itself treats losses
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("cls", TWO_PASSES)
def test_outer_autocast_is_refused(cls):
    """Pitfall 14: its cache would hide eps from the second pass: an error, not silent SGD."""
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    optimizer = cls(sgd(model), rho=1.0, total_steps=1)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="hide the perturbation"):
        optimizer.step(lambda: model(x), y)


def test_outer_autocast_around_two_phases_is_refused():
    model = network(dtype=torch.float32)
    x, y = batch(dtype=torch.float32)
    optimizer = SAM(sgd(model), model=model)
    with torch.autocast("cpu", torch.bfloat16):
        optimizer.backward(F.cross_entropy(model(x), y))
        perturbed = next(optimizer.perturbations())
        with pytest.raises(RuntimeError, match="hide the perturbation"):
            perturbed.__enter__()


def test_outer_autocast_without_cache_is_right():
    model = network(dtype=torch.float32)
    other = twin(model)
    x, y = batch(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        SAM(sgd(model), rho=1.0).step(lambda: model(x), y)

    def forward():
        with torch.autocast("cpu", torch.bfloat16):
            return other(x)

    SAM(sgd(other), rho=1.0).step(forward, y)
    assert largest_difference(model, other) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_weights_are_refused(dtype):
    """Pitfall 14: nine of ten bfloat16 weights would not feel a perturbation of .05."""
    with pytest.raises(ValueError, match="16-bit weights"):
        SAM(sgd(network(dtype=dtype)))
    optimizer = SAM(sgd(network()))
    with pytest.raises(ValueError, match="16-bit weights"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2, dtype=dtype))]})
    assert len(optimizer.param_groups) == 2
