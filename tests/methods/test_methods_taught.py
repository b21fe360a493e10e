"""LIMIT, NCT, Nested Co-teaching, CAL and CleanNet: each part of their losses, by hand and by loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from method_cases import Table, batch, log, state
from torch import nn

from ncsam import methods
from ncsam.methods import cal, cleannet, limit, nct, nested_coteaching
from ncsam.models import create

# --- LIMIT


def test_the_gradient_predictor_by_hand():
    """p_q = (.7, .3), y = 0, p_f = (.5, .5): ||p_q - y||^2 = .18, its 1-norm .6, ||p_f - p_q||^2 = .08."""
    logits, label, f = log([[0.7, 0.3]]), torch.tensor([0]), torch.tensor([[0.5, 0.5]])
    assert limit.predictor_loss(logits, label, f, "gaussian", 0.0).item() == pytest.approx(0.18)
    assert limit.predictor_loss(logits, label, f, "laplace", 0.0).item() == pytest.approx(0.6)
    assert limit.predictor_loss(logits, label, f, "gaussian", 2.0).item() == pytest.approx(0.18 + 2 * 0.08)


def test_the_classifier_never_sees_a_label():
    """Its gradient at the logits is (p_f - p_q) / B, whatever the labels; while it waits, zero."""
    f, q = [[0.6, 0.4], [0.1, 0.9]], [[0.8, 0.2], [0.5, 0.5]]
    for labels in ([0, 1], [1, 0]):
        here = state(labels, 2)
        plans = methods.create("limit").plan(batch(here), [Table(log(f)), Table(log(q))], here)
        logits = log(f).requires_grad_()
        methods.create("limit").criterion(logits, plans[0].targets).backward()
        torch.testing.assert_close(logits.grad, (torch.tensor(f) - torch.tensor(q)) / 2)
        torch.testing.assert_close(plans[1].extra, torch.tensor(f))
        assert plans[1].targets.tolist() == labels
    waiting = methods.create("limit", wait=1).plan(batch(here), [Table(log(f)), Table(log(q))], here)[0]
    torch.testing.assert_close(waiting.targets, torch.tensor(f))


def test_the_classifier_alone_predicts():
    networks = [Table(log([[0.6, 0.4]])), Table(log([[0.1, 0.9]]))]
    answer = methods.create("limit").predict(networks, torch.zeros(1, 1))
    torch.testing.assert_close(answer.softmax(1), torch.tensor([[0.6, 0.4]]))


# --- NCT


def test_distillation_by_hand():
    """T^2 sum q log(q / p) with p = (2/3, 1/3) and q = (4/5, 1/5) at T = 2: logits are squares of these odds."""
    student, teacher = torch.tensor([[2.0, 1.0]]).log() * 2, torch.tensor([[4.0, 1.0]]).log() * 2
    expected = 4 * (0.8 * math.log(0.8 * 1.5) + 0.2 * math.log(0.2 * 3))
    assert nct.distillation(student, teacher, 2.0).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("epoch", "share", "alpha"),
    [
        (1, 0.2, 0.9 * math.exp(-5 * 0.81)),
        (3, 0.2, 0.9 * math.exp(-5 * 0.49)),
        (13, 0.2 + 0.5 * math.log(10) / math.log(97), 0.9),
        (100, 0.7, 0.9),
    ],
)
def test_the_schedules_of_nct(epoch, share, alpha):
    here = state([0, 1, 2], 3, epochs=100, epoch=epoch)
    method = methods.create("nct")
    assert method.share(here) == pytest.approx(share)
    plan = method.plan(batch(here), [Table(torch.zeros(3, 3)), Table(torch.zeros(3, 3))], here)[0]
    assert plan.alpha == pytest.approx(alpha)


def test_labels_vary_apart_and_uniformly():
    """With v = .5 of 3000 labels, a third of those drawn are the old ones: a third of all changes."""
    labels = [i % 3 for i in range(3000)]
    here = state(labels, 3)
    method = methods.create("nct", least=0.5)
    tables = [Table(torch.zeros(3000, 3)), Table(torch.ones(3000, 3))]
    one, two = method.plan(batch(here), tables, here)
    changed = (one.targets != here.labels).float().mean()
    assert abs(float(changed) - 1 / 3) < 4 * math.sqrt(2 / 9 / 3000)
    assert not torch.equal(one.targets, two.targets)
    assert torch.equal(one.teacher, tables[1].logits)
    assert torch.equal(two.teacher, tables[0].logits)


def test_the_loss_of_nct():
    plan = nct.Taught(torch.zeros(1, 1), torch.tensor([1]), teacher=log([[0.5, 0.5]]), alpha=0.25)
    method = methods.create("nct", temperature=1.0)
    outcome = method.loss(Table(log([[0.8, 0.2]])), plan)
    kl = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    assert outcome.loss.item() == pytest.approx(0.75 * -math.log(0.2) + 0.25 * kl, rel=1e-5)


# --- Nested Co-teaching


def test_widths():
    p = nested_coteaching.widths(4, 2.0)
    assert p.sum() == pytest.approx(1.0)
    assert p[1] / p[0] == pytest.approx(math.exp(-(4 - 1) / 4))
    assert p[3] / p[0] == pytest.approx(math.exp(-(16 - 1) / 4))


def test_the_first_features_alone():
    torch.manual_seed(0)
    network = nested_coteaching.Nested(create("mlp", 3, in_features=4, hidden=[5]))
    x = torch.randn(6, 4)
    features = network.backbone.features(x)
    weight = network.backbone.head.weight
    assert network.backbone.head.bias is None
    torch.testing.assert_close(network(x, 2), features[:, :2] @ weight[:, :2].T)
    torch.testing.assert_close(network(x), features @ weight.T)
    network.width.fill_(3)
    torch.testing.assert_close(network(x), features[:, :3] @ weight[:, :3].T)


def test_the_best_width_by_trying_all():
    generator = torch.Generator().manual_seed(3)
    features, weight = torch.randn(150, 7, generator=generator), torch.randn(4, 7, generator=generator)
    labels = (features[:, :3] @ weight[:, :3].T).argmax(1)
    scores = [
        float(((features[:, :k] @ weight[:, :k].T).argmax(1) == labels).float().mean()) - 1e-5 * (k - 1)
        for k in range(1, 8)
    ]
    assert nested_coteaching.best_width(features, weight, labels) == 1 + int(np.argmax(scores)) == 3


def test_each_tunes_on_what_the_other_finds_easy():
    """Four samples, half forgotten: the first network trains on the rows of small loss of the second, and back."""

    class Answers(nested_coteaching.Nested):
        def __init__(self, table):
            super().__init__(create("mlp", 2, in_features=1, hidden=[3]))
            self.table = Table(table)

        def forward(self, inputs, k=None):
            return self.table(inputs)

    first = Answers(log([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.2, 0.8]]))
    second = Answers(log([[0.1, 0.9], [0.6, 0.4], [0.9, 0.1], [0.4, 0.6]]))
    method = methods.create("nested_coteaching", forget_rate=0.5)
    here = state([0, 0, 0, 0], 2, stage=1)
    plans = method.plan(batch(here), [first, second], here)
    assert [plan.rows.tolist() for plan in plans] == [[1, 2], [0, 1]]
    here = state([0, 0, 0, 0], 2, stage=0)
    assert [plan.rows.tolist() for plan in method.plan(batch(here), [first, second], here)] == [[0, 1, 2, 3]] * 2


def test_two_networks_are_apart_until_they_tune():
    """Each draws its own number of features; tuning, both have the same."""
    method = methods.create("nested_coteaching")
    networks = method.build(lambda: create("mlp", 2, in_features=1, hidden=[64]))
    for stage, alike in ((0, False), (1, True)):
        drawn = []
        for number in range(20):
            here = state([0, 1], 2, stage=stage, batch=number)
            drawn.append([plan.k for plan in method.plan(batch(here), networks, here)])
        assert all(a == b for a, b in drawn) is alike


def test_its_stages():
    method = methods.create("nested_coteaching")
    stages = method.stages(40)
    assert [(s.epochs, s.lr, s.frozen_norms) for s in stages] == [(30, 1.0, False), (10, 0.01, True)]
    assert [s.epochs for s in method.stages(1)] == [1]


# --- CAL


def test_the_covariance_by_loops():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (12,), generator=generator)
    bayes = torch.randint(2, (12,), generator=generator)  # class 2 has no row: it adds nothing
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    transition, means = torch.rand(2, 3, 3, generator=generator, dtype=torch.float64)
    expected = 0.0
    for i in range(3):
        rows = [n for n in range(12) if int(bayes[n]) == i]
        for j in range(3):
            terms = [
                (float(labels[n] == j) - float(transition[i, j]))
                * (-math.log(float(logits[n].softmax(0)[j]) + 1e-5) - float(means[i, j]))
                for n in rows
            ]
            expected += float(shares[i]) * (sum(terms) / len(terms) if terms else 0.0)
    found = cal.covariance(logits, labels, bayes, shares, transition, means)
    assert found.item() == pytest.approx(expected, rel=1e-9)


def test_bayes_labels():
    """l(y) - mean_c l(c) < -8 keeps the observed label: three classes, p = (1, 1e-6, 1e-6) nearly: mean is 9.2."""
    sure = torch.tensor([[0.0, -14.0, -14.0], [0.0, -10.0, -10.0], [0.0, -14.0, -14.0]])
    assert cal.bayes_labels(sure, torch.tensor([0, 1, 2])).tolist() == [0, 0, 0]
    other = torch.tensor([[5.0, 4.9, -40.0]])
    assert cal.bayes_labels(other, torch.tensor([1])).tolist() == [0]  # not sure enough of its own label


def test_the_second_stage_takes_means_and_transitions_from_the_first():
    """Bayes labels 0, 0, 1, 1 under observed 0, 1, 1, 1: P(y | i) = (.5, .5), (0, 1)."""
    p = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.4, 0.6]])
    here = state([0, 1, 1, 1], 2, predict=lambda networks: p, stage=1, stage_epoch=1, epoch=5)
    method = methods.create("cal", first_epochs=4)
    method.stages(10)
    method.on_train_start(here)
    here.samples.write("cal_bayes", torch.arange(4), torch.tensor([0, 0, 1, 1]))
    method.on_epoch_start([], here)
    torch.testing.assert_close(method.transition, torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    torch.testing.assert_close(method.bayes_shares, torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(method.means[0], -(p[:2] + 1e-5).log().mean(0))
    torch.testing.assert_close(method.prior, torch.tensor([0.25, 0.75]))
    table = Table(p.log())
    (plan,) = method.plan(batch(here), [table], here)
    covariance = cal.covariance(p.log(), plan.targets, plan.bayes, method.bayes_shares, method.transition, method.means)
    plain = -p[torch.arange(4), plan.targets].log().mean()
    assert method.loss(table, plan).loss.item() == pytest.approx((plain - covariance).item(), rel=1e-5)


def test_the_first_stage_notes_labels_in_its_last_epoch():
    here = state([0, 1], 2, stage=0, stage_epoch=3, epoch=3)
    method = methods.create("cal", first_epochs=4, warmup_epochs=1, ramp_epochs=2)
    assert [s.epochs for s in method.stages(10)] == [4, 6]
    method.on_train_start(here)
    method.on_epoch_start([], here)
    table = Table(log([[0.3, 0.7], [0.2, 0.8]]))
    (plan,) = method.plan(batch(here), [table], here)
    assert here.samples["cal_bayes"].tolist() == [-1, -1]
    assert plan.alpha == pytest.approx(1.0)
    here.stage_epoch = 4
    (plan,) = method.plan(batch(here), [table], here)
    assert here.samples["cal_bayes"].tolist() == [1, 1]
    assert plan.alpha == pytest.approx(2.0)
    losses = -(torch.tensor([[0.3, 0.7], [0.2, 0.8]]) + 1e-5).log()
    expected = (losses[0, 0] + losses[1, 1]) / 2 - 2 * losses.mean()
    assert method.loss(table, plan).loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_label_of_no_probability_costs_more_than_the_regularizer_gives():
    """p = (0, 1), y = 0: -log 1e-8 for the label, -log(1e-5) / 2 for the mean over both, times alpha."""
    plan = cal.Covaried(torch.zeros(1), torch.tensor([0]), torch.tensor([0]), alpha=0.5, prior=torch.tensor([0.5, 0.5]))
    found = methods.create("cal").loss(Table(torch.tensor([[-200.0, 0.0]])), plan).loss
    assert found.item() == pytest.approx(8 * math.log(10) - 0.5 * 5 * math.log(10) / 2, rel=1e-4)


@pytest.mark.parametrize(
    ("stage", "epoch", "alpha"),
    [(0, 11, 0.0), (0, 12, 2 / 30), (0, 25, 28 / 30), (0, 41, 2.0), (0, 65, 2.0), (1, 25, 14 / 30), (1, 41, 1.0)],
)
def test_alpha_of_cal_in_its_authors_run(stage, epoch, alpha):
    """Their lists [0, 2, 2] and [0, 1, 1] at epochs 10, 40 and 80, one epoch late; 65 of 100 epochs, then 100."""
    here = state([0, 1], 2, predict=lambda _: torch.ones(2, 2) / 2, stage=stage, stage_epoch=epoch, epochs=165)
    method = methods.create("cal", first_epochs=65)
    method.stages(165)
    method.on_train_start(here)
    here.samples.write("cal_bayes", torch.arange(2), torch.tensor([0, 1]))
    method.on_epoch_start([], here)
    (plan,) = method.plan(batch(here), [Table(torch.zeros(2, 2))], here)
    assert plan.alpha == pytest.approx(alpha)


# --- CleanNet


def test_what_the_encoders_learn_from():
    """Right: 1 - cos. Wrong: 5 max(0, cos - .1). Unverified: w (1 - cos) where cos >= .1."""
    cos = torch.tensor([0.6, 0.6, 0.05, 0.6, 0.05])
    verified = torch.tensor([1, 0, 0, -1, -1])
    expected = (0.4 + 2.5 + 0.0 + 0.2 * 0.4 + 0.0) / 5
    assert cleannet.encoder_loss(cos, verified, 0.2).item() == pytest.approx(expected)


def test_references_are_the_centers_of_each_class():
    here = state([0] * 6 + [1] * 2, 3)
    spots = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    features = torch.cat([spots.repeat_interleave(3, 0), torch.tensor([[9.0, 9.0], [9.0, 9.0]])])
    found = cleannet.references(features, here.labels, here, 2)
    assert sorted(found[0].tolist()) == spots.tolist()
    assert found[1].tolist() == [[9.0, 9.0]] * 2
    assert found[2].abs().sum() == 0  # a class without samples


def test_features_are_scaled():
    expected = torch.tensor([[0.0, math.log(2.0), math.log(4.0)]])
    torch.testing.assert_close(cleannet.scaled(torch.tensor([[-5.0, 1.0, 3.0]])), expected)


def test_it_weighs_wrong_labels_less():
    """Two clusters, a quarter of the labels wrong, half of them verified: right labels weigh more than wrong ones."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(80) % 2
    centers = torch.tensor([[3.0, 0.0, 1.0, 0.0], [0.0, 3.0, 0.0, 1.0]])
    features = centers[truth] + 0.3 * torch.randn(80, 4, generator=generator).abs()
    wrong = torch.arange(80) % 8 < 2
    labels = torch.where(wrong, 1 - truth, truth)
    verified = torch.where(torch.arange(80) < 40, (~wrong).long(), -1)
    here = state(labels.tolist(), 2, features=lambda networks: features, verified=verified, epoch=5)
    method = methods.create("cleannet", inner_steps=150, inner_lr=0.05, references=4)
    method.on_train_start(here)
    method.on_epoch_start([nn.Identity()], here)
    weights = here.samples["cleannet_weight"]
    unseen = torch.arange(80) >= 40
    assert float(weights[unseen & ~wrong].mean()) > 0.8
    assert float(weights[unseen & wrong].mean()) < 0.3
    (plan,) = method.plan(batch(here), [], here)
    table = Table(torch.zeros(80, 2))
    assert method.loss(table, plan).loss.item() == pytest.approx(float(weights.mean()) * math.log(2), rel=1e-5)


def test_mistakes_are_named():
    for name, options, words in (
        ("limit", {"distribution": "cauchy"}, "distribution"),
        ("nct", {"temperature": 0.0}, "temperature=0.0"),
        ("nct", {"most": 1.5}, "most=1.5"),
        ("nested_coteaching", {"sigma": -1.0}, "sigma=-1.0"),
        ("cal", {"alpha_first": -1.0}, "alpha_first"),
        ("cleannet", {"verified_share": 0.0}, "verified_share=0.0"),
        ("cleannet", {"references": 0}, "references=0"),
    ):
        with pytest.raises(ValueError, match=words):
            methods.create(name, **options)
