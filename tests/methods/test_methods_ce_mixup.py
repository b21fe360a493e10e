"""Cross-entropy and mixup against their formulas; the seam: one plan, the same loss as often as it is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ncsam.data.loading.loader import Batch
from ncsam.methods import State, create, names

CLASSES = 3


def batch() -> Batch:
    rng = torch.Generator().manual_seed(0)
    return Batch((torch.randn(6, 5, generator=rng),), torch.tensor([0, 1, 2, 0, 1, 2]), torch.arange(10, 16))


def state(**where: int) -> State:
    return State(CLASSES, torch.zeros(20, dtype=torch.int64), 10, 4, samples=None, seed=3, **where)


def test_names() -> None:
    assert {"ce", "mixup"} <= set(names())
    with pytest.raises(ValueError, match="unknown method 'ec'"):
        create("ec")
    with pytest.raises(ValueError, match=r"alpha=0\.0"):
        create("mixup", alpha=0)
    with pytest.raises(ValueError, match=r"smoothing=1\.0"):
        create("ce", smoothing=1)


def test_cross_entropy_by_hand() -> None:
    method = create("ce")
    (plan,) = method.plan(batch(), [], state())
    assert torch.equal(plan.inputs, batch().views[0])
    assert torch.equal(plan.targets, batch().labels)
    assert torch.equal(plan.index, batch().index)
    logits = torch.tensor([[0.0, math.log(2.0), 0.0]])
    assert float(method.criterion(logits, torch.tensor([1]))) == pytest.approx(math.log(2.0))
    # smoothing s: (1 - s) of the label's loss and s times the mean loss over classes
    smooth = float(create("ce", smoothing=0.3).criterion(logits, torch.tensor([1])))
    assert smooth == pytest.approx(0.7 * math.log(2.0) + 0.3 * (math.log(2.0) + 2 * math.log(4.0)) / 3)


def test_mixup_is_the_sum_of_two_losses() -> None:
    network = nn.Linear(5, CLASSES)
    method = create("mixup", alpha=2.0)
    where = state(epoch=4, batch=2)
    (plan,) = method.plan(batch(), [network], where)
    random = where.random()
    share, partner = random.beta(2.0, 2.0), random.permutation(6)
    x, y = batch().views[0], batch().labels
    mixed = share * x + (1 - share) * x[partner]
    assert torch.allclose(plan.inputs, mixed)
    logits = network(mixed)
    expected = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[partner])
    assert method.loss(network, plan).loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert plan.index is None  # a row is a mixture of two samples


def test_lambda_is_beta_distributed() -> None:
    """Mean 1/2 and variance 1 / (4 (2 alpha + 1)) of Beta(alpha, alpha), over 2,000 batches."""
    method = create("mixup", alpha=4.0)
    shares = []
    x = Batch((torch.tensor([[1.0], [0.0]]),), torch.tensor([0, 1]), torch.arange(2))
    for epoch in range(2000):
        (plan,) = method.plan(x, [], state(epoch=epoch))
        targets = plan.targets[0]
        if targets[0] < 1:  # not paired with itself
            shares.append(float(targets[0]))
    assert np.mean(shares) == pytest.approx(0.5, abs=0.02)
    assert np.var(shares) == pytest.approx(1 / 36, rel=0.15)


@pytest.mark.parametrize("name", ["ce", "mixup"])
def test_a_plan_has_one_loss_and_a_batch_has_one_plan(name: str) -> None:
    network = nn.Linear(5, CLASSES)
    method = create(name)
    torch.manual_seed(1)
    (plan,) = method.plan(batch(), [network], state(epoch=2, batch=1))
    before = torch.get_rng_state()
    first = method.loss(network, plan)
    second = method.loss(network, plan)
    assert torch.equal(first.loss, second.loss)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)  # plans depend on (seed, epoch, batch), not on the global generator
    (again,) = method.plan(batch(), [network], state(epoch=2, batch=1))
    assert torch.equal(again.inputs, plan.inputs)
    assert torch.equal(again.targets, plan.targets)
    if name == "mixup":
        (other,) = method.plan(batch(), [network], state(epoch=2, batch=2))
        assert not torch.equal(other.inputs, plan.inputs)


def test_several_networks_predict_by_their_mean() -> None:
    networks = [nn.Linear(5, CLASSES) for _ in range(2)]
    x = torch.randn(4, 5)
    expected = (networks[0](x) + networks[1](x)) / 2
    assert torch.allclose(create("ce").predict(networks, x), expected)
