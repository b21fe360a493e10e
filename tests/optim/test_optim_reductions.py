"""With its parts switched off, each optimizer is the simpler one, bit for bit."""

import pytest
import torch
from optim_cases import batch, network, parameters, same_bits, sgd, twin

from ncsam import BSAM, NCSAM, SAM

OFF = {
    "kappa 0": {"kappa": 0.0},
    "flip_ratio 0": {"flip_ratio": 0.0},
    "ratio that floors to no sample": {"flip_ratio": 1 / 17},
    "strength 0": {"ramp": lambda t: 0.0},
}


def train(model, optimizer, steps=6, dtype=torch.float32):
    for i in range(steps):
        x, y = batch(i, dtype=dtype)
        if optimizer is None or isinstance(optimizer, torch.optim.SGD):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        else:
            optimizer.step(lambda: model(x), y)  # noqa: B023
    return [*parameters(model), *model.buffers()]


@pytest.mark.parametrize("options", OFF.values(), ids=OFF)
def test_ncsam_without_compensation_is_sam(options):
    model = network("convolutional", torch.float32)
    other = twin(model)
    left = train(model, NCSAM(sgd(model), 0.1, **{"kappa": 0.3, "total_steps": 6, **options}))
    right = train(other, SAM(sgd(other), 0.1))
    assert same_bits(left, right)


@pytest.mark.parametrize("cls", [SAM, NCSAM, BSAM])
def test_rho_zero_is_the_base_optimizer(cls):
    model = network("convolutional", torch.float32)
    other = twin(model)
    assert same_bits(train(model, cls(sgd(model), rho=0.0, total_steps=6)), train(other, sgd(other)))


@pytest.mark.parametrize("cls", [SAM, NCSAM, BSAM])
def test_warmup_is_the_base_optimizer(cls):
    model = network("convolutional", torch.float32)
    other = twin(model)
    assert same_bits(train(model, cls(sgd(model), warmup_steps=6, total_steps=9)), train(other, sgd(other)))


def test_warmup_by_sam():
    model = network("convolutional", torch.float32)
    other = twin(model)
    left = NCSAM(sgd(model), 0.1, warmup_steps=6, total_steps=9, warmup="sam")
    assert same_bits(train(model, left), train(other, SAM(sgd(other), 0.1)))


def test_warmup_ends_after_its_last_step():
    model = network(dtype=torch.float32)
    other = twin(model)
    optimizer = NCSAM(sgd(model), 0.3, warmup_steps=3, total_steps=6)
    same = []
    for i in range(4):
        x, y = batch(i, dtype=torch.float32)
        optimizer.step(lambda: model(x), y)  # noqa: B023
        if i == 0:
            plain = sgd(other)
        plain.zero_grad()
        torch.nn.functional.cross_entropy(other(x), y).backward()
        plain.step()
        same.append(same_bits(parameters(model), parameters(other)))
    assert same == [True, True, True, False]


@pytest.mark.parametrize("base", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop, torch.optim.NAdam])
def test_any_base_optimizer(base):
    """The base sees exactly the gradient at w + eps: replaying SAM's gradients into it by hand gives the same bits."""
    model = network(dtype=torch.float32)
    other = twin(model)
    optimizer = SAM(base(model.parameters(), lr=1e-2), 0.1)
    plain = base(other.parameters(), lr=1e-2)
    for i in range(5):
        x, y = batch(i, dtype=torch.float32)
        optimizer.step(lambda: model(x), y)  # noqa: B023
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            q.grad = p.grad.clone()
        plain.step()
    assert same_bits(parameters(model), parameters(other))


def test_kappa_zero_draws_no_random_number():
    model = network(dtype=torch.float32)
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    train(model, NCSAM(sgd(model), kappa=0.0, total_steps=6, generator=generator))
    assert torch.equal(generator.get_state(), before)


def test_flipping_leaves_the_global_generator_alone():
    model = network(dtype=torch.float32)
    optimizer = NCSAM(sgd(model), total_steps=6)
    before = torch.get_rng_state()
    train(model, optimizer)
    assert torch.equal(torch.get_rng_state(), before)
