"""UNICON and CC, DivideMix's successors: who is labeled, by hand; and the parts that they add to the loss."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from method_cases import state

from ncsam import models
from ncsam.data.loading.loader import Batch
from ncsam.methods import create
from ncsam.methods.cc import WIDTH, centrality, consistent, discrepancy
from ncsam.methods.contrastive import nt_xent
from ncsam.methods.mixmatch import MixMatch, mixmatch_loss
from ncsam.methods.unicon import Contrasted, cut_off, jensen_shannon, uniform_selection


def network():
    return models.create("mlp", 3, in_features=5, hidden=[4])


def made(views: int, count: int = 6) -> Batch:
    return Batch(tuple(torch.randn(count, 5) for _ in range(views)), torch.arange(count) % 3, torch.arange(count))


# --- UNICON


def test_divergence_in_bits_by_hand():
    p = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    found = jensen_shannon(p, torch.zeros(3, dtype=torch.int64)).tolist()
    # (.5, .5) against (1, 0): m = (.75, .25); half of .5 log2(.5/.75) + .5 log2(.5/.25) + log2(1/.75)
    third = 0.5 * (0.5 * math.log2(0.5 / 0.75) + 0.5 * math.log2(2) + math.log2(1 / 0.75))
    assert found == pytest.approx([0.0, 1.0, third], abs=1e-6)


def test_the_cut_off_is_the_mean_or_less():
    assert cut_off(torch.tensor([0.2, 0.4, 0.6]), 0.7, 5.0) == pytest.approx(0.4)
    assert cut_off(torch.tensor([0.5, 0.9, 1.0]), 0.7, 5.0) == pytest.approx(0.8 - 0.3 / 5)


def test_as_many_of_each_class():
    divergence = torch.tensor([0.1, 0.2, 0.3, 0.35, 0.8, 0.9, 0.7, 0.95])
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    # four are below .5: two of each class, the smallest of it, though no sample of class 1 is below
    chosen = uniform_selection(divergence, labels, 0.5, 2)
    assert chosen.nonzero().flatten().tolist() == [0, 1, 4, 6]


def test_unicon_divides_by_the_mean_of_both_networks():
    answers = {0: torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.1, 0.9]]), 1: torch.full((4, 2), 0.5)}
    networks = [torch.nn.Identity(), torch.nn.Identity()]
    here = state([0, 0, 1, 1], 2, predict=lambda some: answers[networks.index(some[0])])
    method = create("unicon", warmup_epochs=1)
    method.on_train_start(here)
    here.epoch = 2
    method.on_epoch_start(networks, here)
    mean = (answers[0] + 0.5) / 2
    torch.testing.assert_close(here.samples["unicon_divergence"], jensen_shannon(mean, here.labels))
    assert here.samples["unicon_labeled"].tolist() == [True, False, False, True]


def test_unicon_trains_on_strong_views_with_targets_from_weak_ones(monkeypatch):
    from ncsam.methods import mixmatch

    monkeypatch.setattr(mixmatch, "mixed", lambda inputs, targets, *_, **__: (inputs, targets))
    method = create("unicon", warmup_epochs=1)
    networks = method.build(network)
    here = state([0, 1, 2] * 2, 3)
    method.on_train_start(here)
    here.epoch = 2
    here.samples["unicon_labeled"].copy_(torch.tensor([True, True, False, False, False, False]))
    here.samples["unicon_divergence"].copy_(torch.tensor([0.7, 0.9, 0.0, 0.0, 0.0, 0.0]))
    seen = made(4)
    with torch.no_grad():
        first, second = method.plan(seen, networks, here)
        own, other = ((n(seen.views[0]).softmax(1) + n(seen.views[1]).softmax(1)) / 2 for n in networks)
    strong = [*(view[:2] for view in seen.views[2:]), *(view[2:] for view in seen.views[2:])]
    torch.testing.assert_close(first.inputs, torch.cat((*strong, *(view[2:] for view in seen.views[2:]))))
    assert (first.labeled, first.contrasted) == (4, 8)
    # .7 bits are .49 nats: the first sample keeps its label; the second is 1 - .9 log 2 of its own, else the network's
    onehot = F.one_hot(torch.tensor([0, 1]), 3).float()
    nats = 0.9 * math.log(2)
    refined = torch.stack((onehot[0], (1 - nats) * onehot[1] + nats * own[1])) ** 2
    torch.testing.assert_close(first.targets[:2], refined / refined.sum(1, keepdim=True))
    guessed = ((own + other) / 2)[2:] ** 2
    torch.testing.assert_close(second.targets[4:8], guessed / guessed.sum(1, keepdim=True))


def test_unicon_adds_contrast_of_the_unlabeled():
    method = create("unicon", contrast_weight=0.5, contrast_temperature=0.2)
    whole = method.build(network)[0]
    x = torch.randn(10, 5)
    targets = torch.randn(6, 3).softmax(1)
    plan = Contrasted(x, targets, labeled=4, unlabeled_weight=2.0, contrasted=4)
    answer = whole(x, "projector")
    p = answer["logits"][:6].softmax(1)
    expected = -(targets[:4] * p[:4].log()).sum(1).mean() + 2 * (p[4:] - targets[4:]).square().mean()
    expected = expected + (1 / 3 * (1 / 3 / p.mean(0)).log()).sum()
    expected = expected + 0.5 * nt_xent(answer["projector"][6:8], answer["projector"][8:], 0.2)
    torch.testing.assert_close(method.loss(whole, plan).loss, expected)


def test_unicon_contrasts_as_its_authors_do():
    """-log of exp(<z, z'> / .05) among all others, z the normalized output of a linear layer and BatchNorm."""
    method = create("unicon", contrast_weight=1.0)
    whole = method.build(network)[0]
    x, targets = torch.randn(10, 5), torch.randn(4, 3).softmax(1)
    plan = Contrasted(x, targets, labeled=4, unlabeled_weight=0.0, contrasted=6)
    found = method.loss(whole, plan).loss - mixmatch_loss(whole(x)[:4], plan).loss
    layer = whole.heads["projector"][0]
    with torch.no_grad():
        out = whole.backbone.features(x) @ layer.weight.T + layer.bias
        assert out.shape == (10, 128)
        out = (out - out.mean(0)) / (out.var(0, unbiased=False) + 1e-5).sqrt()
    z = (out / out.norm(dim=1, keepdim=True))[4:]
    terms = []
    for i in range(6):
        similar = [float(z[i] @ z[j]) / 0.05 for j in range(6)]
        among = sum(math.exp(similar[j]) for j in range(6) if j != i)
        terms.append(math.log(among) - similar[(i + 3) % 6])
    assert float(found.detach()) == pytest.approx(sum(terms) / 6, rel=1e-4)


# --- CC


def answers(reduced: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.cat((reduced, first, second), dim=1)


def test_discrepancy_by_hand():
    first, second = torch.tensor([[0.7, 0.3]]).log(), torch.tensor([[0.2, 0.8]]).log()
    assert discrepancy(answers(torch.zeros(1, WIDTH), first, second), 2).tolist() == pytest.approx([1.0])


def test_central_samples_lie_near_the_center_of_their_class():
    """Thirty of each class around two axes, predicted right; ten of them bear the other label."""
    random = torch.Generator().manual_seed(0)
    classes = torch.arange(60) % 2
    reduced = 0.05 * torch.randn(60, WIDTH, generator=random)
    reduced[torch.arange(60), classes] += 1
    logits = 4.0 * F.one_hot(classes, 2)
    labels = classes.clone()
    labels[:10] = 1 - labels[:10]
    w = centrality(answers(reduced, logits, logits), labels, 2)
    assert (w[:10] < 0.01).all()
    assert (w[10:] > 0.9).all()


def test_consistency_is_by_class():
    """Discrepancies of class 1 are ten times those of class 0; within each, the smaller are consistent."""
    differ = torch.tensor([0.01, 0.012, 0.011, 0.1, 0.11, 0.1, 0.12, 0.11, 1.0, 1.1])
    labels = torch.tensor([0] * 5 + [1] * 5)
    assert consistent(differ, labels, 0.5).tolist() == [True] * 3 + [False] * 2 + [True] * 3 + [False] * 2
    assert consistent(differ, labels, 0.0).all()


def test_critics_learn_from_constant_features():
    method = create("cc")
    whole = method.build(network)[0]
    x, targets = torch.randn(6, 5), torch.randn(6, 3).softmax(1)
    plan = MixMatch(x, targets, labeled=4, unlabeled_weight=2.0)
    answer = whole(x, "critics")
    first, second = answer["critics"][:, WIDTH : WIDTH + 3], answer["critics"][:, WIDTH + 3 :]
    own = mixmatch_loss(answer["logits"], plan).loss
    expected = own
    for critic in (first, second):  # the same loss, but half as far from equal shares
        shares = critic.softmax(1).mean(0)
        expected = expected + mixmatch_loss(critic, plan).loss - 0.5 * (1 / 3 * ((1 / 3) / shares).log()).sum()
    outcome = method.loss(whole, plan)
    torch.testing.assert_close(outcome.loss, expected)
    weights = list(whole.backbone.parameters())
    torch.testing.assert_close(torch.autograd.grad(outcome.loss, weights), torch.autograd.grad(own, weights))


def test_the_backbone_steps_towards_agreement():
    method = create("cc", agree_weight=0.5)
    networks = method.build(network)
    here = state([0, 1, 2] * 2, 3, lr=0.1)
    x, targets = torch.randn(6, 5), torch.randn(6, 3).softmax(1)
    method.plans = (MixMatch(x, targets, labeled=4, unlabeled_weight=2.0),) * 2
    weight = next(networks[0].backbone.parameters())
    before = weight.detach().clone()
    heads = [p.detach().clone() for p in networks[0].heads.parameters()]
    value = 0.5 * discrepancy(networks[0](x, "critics")["critics"], 3).mean()
    (gradient,) = torch.autograd.grad(value, weight)
    method.on_step_end(networks, here)
    torch.testing.assert_close(weight.detach(), before - 0.1 * (gradient + 5e-4 * before))
    assert all(torch.equal(a, b) for a, b in zip(heads, networks[0].heads.parameters(), strict=True))


def test_critics_alone_are_driven_apart():
    method = create("cc", warmup_epochs=1, iterations=30, apart_weight=5.0)
    networks = method.build(network)
    here = state([0, 1, 2] * 4, 3, lr=0.05, steps_per_epoch=30)
    inputs = torch.randn(12, 5)

    def batches(index, view="plain", *, batch_size=None, stream=0):
        for rows in index.split(6):
            yield Batch((inputs[rows],), here.labels[rows], rows)

    here.engine.batches = batches
    before = {name: value.clone() for name, value in networks[0].named_parameters()}
    with torch.no_grad():
        apart = discrepancy(networks[0](inputs, "critics")["critics"], 3).mean()
        method._drive_apart(networks, 0, torch.arange(12), here)
        assert discrepancy(networks[0](inputs, "critics")["critics"], 3).mean() > 1.2 * apart
    changed = {name for name, value in networks[0].named_parameters() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith(("heads.critics.first", "heads.critics.second")) for name in changed)


def test_as_many_inner_steps_as_asked():
    method = create("cc", iterations=7)
    here = state([0] * 10, 3, steps_per_epoch=20)
    assert len(list(method._inner(torch.arange(10), 0, here))) == 7  # batches of 4, 4 and 2 in each pass
    here.steps_per_epoch = 5  # where an epoch has fewer steps, no more than those
    assert len(list(method._inner(torch.arange(10), 0, here))) == 5
    assert list(method._inner(torch.arange(0), 0, here)) == []
    assert list(method._inner(torch.arange(1), 0, here)) == []
