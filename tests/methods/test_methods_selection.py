"""Which samples the selecting methods train on, in hand-made batches."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from method_cases import Table, batch, log, state

from ncsam.methods import create
from ncsam.methods.jocor import Pair
from ncsam.methods.planning import forward_frozen_stats
from ncsam.methods.small_loss import smallest

# labels are all 0; the first network finds 0, 1 easy, the second 2, 3
FIRST = log([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]])
SECOND = log([[0.2, 0.8], [0.1, 0.9], [0.7, 0.3], [0.6, 0.4]])


@pytest.mark.parametrize(
    ("share", "expected"), [(1.0, {0, 1, 2, 3}), (0.75, {0, 1, 3}), (0.7, {0, 3}), (0.5, {0, 3}), (0.0, {3})]
)
def test_smallest(share, expected):
    assert set(smallest(torch.tensor([0.2, 0.3, 0.9, 0.1]), share).tolist()) == expected
    assert len(smallest(torch.zeros(0), share)) == 0


def test_shares_to_remember():
    method = create("coteaching", ramp_epochs=4)
    here = state([0] * 4, 2, noise_rate=0.4)
    found = []
    for here.epoch in (1, 2, 4, 9):
        found.append(method.remember_rate(here))
    assert found == pytest.approx([0.9, 0.8, 0.6, 0.6])
    here.epoch = 2
    # the paper's e^c / E, not (e / E)^c: 2^.5 / 4, and 2^2 / 4 = 1
    assert create("coteaching", ramp_epochs=4, exponent=0.5).remember_rate(here) == pytest.approx(1 - 0.4 * 2**0.5 / 4)
    assert create("coteaching", ramp_epochs=4, exponent=2).remember_rate(here) == pytest.approx(0.6)
    assert create("coteaching", ramp_epochs=4, forget_rate=0.2).remember_rate(here) == pytest.approx(0.9)
    assert create("coteaching", ramp_epochs=0.2).remember_rate(here) == pytest.approx(0.6)


def test_an_unknown_noise_rate_is_estimated_on_the_samples_held_out():
    labels = [i % 2 for i in range(40)]
    right = torch.eye(2)[labels]
    wrong = torch.arange(40) % 4 < 2  # a half of the predictions say the other class
    probabilities = torch.where(wrong[:, None], 1 - right, right)
    held_out = torch.arange(40) >= 30
    probabilities[30:] = right[30:] * 0.98 + 0.01
    probabilities[[30, 31]] = probabilities[[31, 30]]  # 2 of the 10 held out contradict their labels
    here = state(labels, 2, held_out=held_out, predict=lambda networks: probabilities)
    method = create("mentornet", ramp_epochs=2)
    rates = []
    for here.epoch in (1, 2, 3, 4):
        method.on_epoch_start([], here)
        rates.append(method.remember_rate(here))
    assert rates == pytest.approx([1, 1, 0.8, 0.8])
    again = create("mentornet", ramp_epochs=2)
    again.load_state_dict(method.state_dict())
    assert again.remember_rate(here) == pytest.approx(0.8)


def test_coteaching_exchanges_small_losses():
    method = create("coteaching", forget_rate=0.5, ramp_epochs=0)
    here = state([0, 0, 0, 0], 2)
    networks = [Table(FIRST), Table(SECOND)]
    for_first, for_second = method.plan(batch(here), networks, here)
    assert for_first.index.tolist() == [2, 3]
    assert for_second.index.tolist() == [0, 1]
    outcome = method.loss(networks[0], for_first)
    assert float(outcome.loss.detach()) == pytest.approx(-(math.log(0.4) + math.log(0.3)) / 2)
    torch.testing.assert_close(outcome.logits, FIRST[2:])
    assert outcome.targets.tolist() == [0, 0]


def test_mentornet_keeps_its_own_small_losses():
    method = create("mentornet", forget_rate=0.25, ramp_epochs=0)
    here = state([0, 0, 1, 0], 2)
    (plan,) = method.plan(batch(here), [Table(FIRST)], here)
    assert plan.index.tolist() == [0, 1, 2]
    assert plan.targets.tolist() == [0, 0, 1]


def test_decoupling_trains_where_predictions_differ():
    method = create("decoupling", warmup_epochs=1)
    other = SECOND.clone()
    other[1] = FIRST[1]
    networks, here = [Table(FIRST), Table(other)], state([0, 0, 0, 0], 2)
    assert [p.index.tolist() for p in method.plan(batch(here), networks, here)] == [[0, 1, 2, 3]] * 2
    here.epoch = 2
    assert [p.index.tolist() for p in method.plan(batch(here), networks, here)] == [[0, 2, 3]] * 2
    # the sum over the three that differ, by max(least * 4, 3)
    total = -float(FIRST[[0, 2, 3], 0].sum())
    for least, by in ((0.1, 3.0), (0.75, 3.0), (0.9, 3.6), (1.0, 4.0)):
        picky = create("decoupling", warmup_epochs=1, least=least)
        outcome = picky.loss(networks[0], picky.plan(batch(here), networks, here)[0])
        assert float(outcome.loss.detach()) == pytest.approx(total / by)
    agreed = [networks[0], networks[0]]
    outcome = method.loss(networks[0], method.plan(batch(here), agreed, here)[0])
    outcome.loss.backward()
    assert float(outcome.loss.detach()) == 0
    assert float(networks[0].scale.grad) == 0
    assert outcome.logits.shape == (0, 2)


def test_coteaching_plus_exchanges_within_the_disagreement():
    method = create("coteaching_plus", forget_rate=0.5, ramp_epochs=0, warmup_epochs=1)
    first = log([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.99, 0.01]])
    second = log([[0.2, 0.8], [0.1, 0.9], [0.7, 0.3], [0.6, 0.4], [0.98, 0.02]])
    networks, here = [Table(first), Table(second)], state([0] * 5, 2)
    both = [set(p.index.tolist()) for p in method.plan(batch(here), networks, here)]
    assert both == [{4, 2}, {4, 0}]  # plain: floor(.5 * 5) of all
    here.epoch = 2
    both = [set(p.index.tolist()) for p in method.plan(batch(here), networks, here)]
    assert both == [{2, 3}, {0, 1}]  # sample 4 is agreed on
    agreed = [Table(first), Table(first)]
    assert [len(p.index) for p in method.plan(batch(here), agreed, here)] == [0, 0]
    method.skip_empty = False
    assert [set(p.index.tolist()) for p in method.plan(batch(here), agreed, here)] == [{4, 0}] * 2


def test_jocor_loss_and_choice():
    method = create("jocor", agreement=0.3, forget_rate=0.5, ramp_epochs=0)
    pair = Pair(Table(FIRST), Table(SECOND))
    here = state([0, 0, 0, 0], 2)

    def by_hand(i):
        p, q = FIRST[i].exp(), SECOND[i].exp()
        kl = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
        return float(0.7 * (-p[0].log() - q[0].log()) + 0.3 * kl)

    torch.testing.assert_close(method.joint((FIRST, SECOND), here.labels), torch.tensor([by_hand(i) for i in range(4)]))
    (plan,) = method.plan(batch(here), [pair], here)
    expected = sorted(sorted(range(4), key=by_hand)[:2])
    assert plan.index.tolist() == expected
    outcome = method.loss(pair, plan)
    assert float(outcome.loss.detach()) == pytest.approx(sum(map(by_hand, expected)) / 2, rel=1e-5)
    torch.testing.assert_close(outcome.logits, ((FIRST + SECOND) / 2)[expected])
    torch.testing.assert_close(method.predict([pair], batch(here).views[0]), (FIRST + SECOND) / 2)


def test_cores2_sieve_prior_and_loss():
    method = create("cores2", beta=2.0, warmup_epochs=1, ramp_epochs=2, sieve_after=1)
    logits = log([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.2, 0.6, 0.2], [0.3, 0.4, 0.3]])
    here = state([0, 0, 1, 2], 3)
    network = Table(logits)
    method.on_train_start(here)
    (plan,) = method.plan(batch(here), [network], here)
    assert plan.index.tolist() == [0, 1, 2, 3]
    assert plan.beta == 0
    assert float(method.loss(network, plan).loss.detach()) == pytest.approx(float(F.cross_entropy(logits, here.labels)))

    here.epoch = 2  # the authors count from 0 and keep all while e <= sieve_after
    method.on_epoch_start([network], here)
    (plan,) = method.plan(batch(here), [network], here)
    assert plan.index.tolist() == [0, 1, 2, 3]
    assert plan.beta == pytest.approx(1.0)

    here.epoch = 3
    method.on_epoch_start([network], here)
    (plan,) = method.plan(batch(here), [network], here)
    # sample 1: 2.30 against a mean of 1.61; sample 3: 1.20 against 1.11; both are sieved out
    assert plan.index.tolist() == [0, 2]
    assert plan.beta == pytest.approx(2.0)
    assert plan.prior.tolist() == pytest.approx([0.5, 0.25, 0.25])
    loss = -torch.stack((logits[0, 0], logits[2, 1])) + 2 * logits[[0, 2]] @ plan.prior
    assert float(method.loss(network, plan).loss.detach()) == pytest.approx(float(loss.mean()) / 3, rel=1e-5)

    here.epoch = 4  # the prior counts what the last epoch kept
    method.on_epoch_start([network], here)
    assert method.prior.tolist() == [0.5, 0.5, 0.0]
    assert method.plan(batch(here), [network], here)[0].beta == pytest.approx(2.0)


def test_samples_held_out_do_not_enter_the_prior():
    here = state([0, 0, 1, 2], 3, held_out=torch.tensor([False, True, False, False]))
    method = create("cores2")
    method.on_train_start(here)
    method.on_epoch_start([], here)
    assert method.prior.tolist() == pytest.approx([1 / 3] * 3)


def test_looking_changes_nothing():
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    inputs = torch.randn(8, 3)
    seen = forward_frozen_stats(network, inputs)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not seen.requires_grad
    assert network.training
    assert torch.equal(seen, network(inputs))  # batch statistics, as in training
    assert not torch.equal(before["1.running_mean"], network.state_dict()["1.running_mean"])
