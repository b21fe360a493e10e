"""Accelerate as a real client: a prepared optimizer trains as the plain loop does."""

import pytest
import torch
import torch.nn.functional as F
from integration_cases import batches, largest_difference, make, network, plain_loop, twin

from ncsam.integrations.accelerate import sharpness_step

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def _fresh():
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def run(kind, model, data, parts=1, max_norm=None, precision="no", **options):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=parts, mixed_precision=precision)
    raw = make(kind, model.parameters(), model, steps=len(data) // parts, **options)
    loader = torch.utils.data.DataLoader(data, batch_size=None)
    wrapped, optimizer, loader = accelerator.prepare(model, raw, loader)
    losses = []

    def compute(x, y):
        logits = wrapped(x)
        return F.cross_entropy(logits.float(), y), logits, y

    for x, y in loader:
        with accelerator.accumulate(wrapped):
            losses.append(float(sharpness_step(accelerator, optimizer, compute, x, y, max_norm=max_norm)))
    return raw, losses


@pytest.mark.parametrize("kind", ["sam", "auto", "ncsam"])
@pytest.mark.parametrize(("parts", "max_norm"), [(1, None), (2, 0.05)])
def test_equals_the_plain_loop_over_twenty_steps(kind, parts, max_norm):
    data = batches(20 * parts)
    model = network()
    other = twin(model)
    raw, losses = run(kind, model, data, parts, max_norm)
    optimizer, expected = plain_loop(kind, other, [data[i : i + parts] for i in range(0, len(data), parts)], max_norm)
    assert largest_difference(model, other) < 1e-6
    assert largest_difference(model, network()) > 1e-2
    assert losses == pytest.approx(expected, abs=1e-5)
    assert (raw.steps, raw.rho) == (20, pytest.approx(optimizer.rho, rel=1e-4))


def test_bf16():
    data = batches(20)
    model = network()
    other = twin(model)
    run("ncsam", model, data, precision="bf16")
    plain_loop("ncsam", other, [[b] for b in data], dtype=torch.bfloat16)
    assert largest_difference(model, other) < 1e-6


def test_mistakes_are_named():
    model = network()
    accelerator = accelerate.Accelerator(cpu=True)
    (x, y), *_ = batches(1)
    _, optimizer = accelerator.prepare(model, make("ncsam", model.parameters(), model))
    with pytest.raises(TypeError, match="must return the loss, or"):
        sharpness_step(accelerator, optimizer, lambda: {"loss": 1})
    with pytest.raises(TypeError, match="logits and the targets"):
        sharpness_step(accelerator, optimizer, lambda: F.cross_entropy(model(x), y))
    plain = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="sharpness_step needs"):
        sharpness_step(accelerator, plain, lambda: F.cross_entropy(model(x), y))


def test_a_failure_in_the_middle_leaves_nothing_behind():
    data = batches(3)
    model = network()
    other = twin(model)
    accelerator = accelerate.Accelerator(cpu=True)
    wrapped, optimizer = accelerator.prepare(model, make("sam", model.parameters(), model))

    def compute(x, y):
        if x is None:
            raise ZeroDivisionError
        return F.cross_entropy(wrapped(x), y)

    sharpness_step(accelerator, optimizer, compute, *data[0])
    with pytest.raises(ZeroDivisionError):
        sharpness_step(accelerator, optimizer, compute, None, None)
    sharpness_step(accelerator, optimizer, compute, *data[2])
    plain_loop("sam", other, [[data[0]], [data[2]]])
    assert largest_difference(model, other) < 1e-6
