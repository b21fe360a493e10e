"""DISC part by part: sets, thresholds, corrected labels, the three parts of the loss."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from method_cases import Table, batch, state

from ncsam.data.loading.loader import Batch
from ncsam.methods import Plan, create
from ncsam.methods.disc import CLEAN, HARD, NONE, PURIFIED, Selected, selected


def test_sets_by_hand():
    # four samples of label 0: over both thresholds, over one, over none but sure of class 1, over none and unsure
    weak = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.05, 0.95], [0.3, 0.7]])
    strong = torch.tensor([[0.6, 0.4], [0.2, 0.8], [0.1, 0.9], [0.3, 0.7]])
    thresholds = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.4, 0.4], [0.4, 0.4]])
    kind, label = selected(torch.stack((weak, strong), dim=1), torch.zeros(4, dtype=torch.int64), thresholds, 0.5)
    assert kind.tolist() == [CLEAN, HARD, PURIFIED, NONE]  # .925 > .4 + .5, .7 is not
    assert label.tolist() == [0, 0, 1, 0]


def test_the_threshold_for_correction_ends_at_99_percent():
    p = torch.tensor([[[0.02, 0.98], [0.02, 0.98]], [[0.001, 0.999], [0.001, 0.999]]])
    kind, _ = selected(p, torch.zeros(2, dtype=torch.int64), torch.full((2, 2), 0.9), 0.5)
    assert kind.tolist() == [NONE, PURIFIED]


def test_thresholds_follow_the_confidence_and_decide_before_they_move():
    logits = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.6, 0.4], [0.9, 0.1]]).log()  # rows 2 and 3 are strong views
    here = state([0, 0], 2, epochs=200)
    method = create("disc", warmup_epochs=2, keep=0.75)
    method.on_train_start(here)
    x = torch.tensor([[0.0], [1.0]])
    seen = Batch((x, x + 2), here.labels, torch.arange(2))
    (plan,) = method.plan(seen, [Table(logits)], here)
    assert type(plan) is Plan
    assert plan.inputs.flatten().tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(here.samples["disc_probabilities"][1], torch.tensor([[0.4, 0.6], [0.9, 0.1]]))
    here.epoch = 2
    method.on_epoch_start([], here)
    # from 1/N = .5: sample 0 is over both, sample 1 over the strong one alone
    assert here.samples["disc_set"].tolist() == [CLEAN, HARD]
    expected = 0.75 * 0.5 + 0.25 * torch.tensor([[0.8, 0.6], [0.6, 0.9]])
    torch.testing.assert_close(here.samples["disc_thresholds"], expected)


def test_by_default_thresholds_rise_with_the_share_of_the_run():
    here = state([0], 2, epochs=20)
    method = create("disc")
    method.on_train_start(here)
    here.samples["disc_probabilities"].fill_(0.5)
    here.epoch = 2
    method.on_epoch_start([], here)
    keep = 0.99**10
    assert float(here.samples["disc_thresholds"][0, 0]) == pytest.approx(keep * 1.0 + (1 - keep) * 0.5)


def test_warm_up_is_cross_entropy_on_both_views():
    p = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.2, 0.8], [0.5, 0.5]])
    method = create("disc")
    plan = Plan(torch.arange(4.0), torch.tensor([0, 1]))
    loss = float(method.loss(Table(p.log()), plan).loss.detach())
    assert loss == pytest.approx(-(math.log(0.7) + math.log(0.6)) / 2 - (math.log(0.2) + math.log(0.5)) / 2)


def test_loss_by_hand():
    """Four samples, one in each set; then two mixed rows of each view."""
    weak = [[0.7, 0.3], [0.4, 0.6], [0.2, 0.8], [0.9, 0.1]]
    strong = [[0.6, 0.4], [0.5, 0.5], [0.3, 0.7], [0.8, 0.2]]
    mixed = [[0.55, 0.45], [0.35, 0.65], [0.25, 0.75], [0.15, 0.85]]
    targets = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.0, 1.0]])
    kind = torch.tensor([CLEAN, HARD, PURIFIED, NONE])
    plan = Selected(torch.arange(12.0), torch.tensor([0, 0, 1, 0]), kind=kind, mixed_targets=targets)
    method = create("disc", hard_weight=0.2)
    p = torch.tensor(weak + strong + mixed)
    outcome = method.loss(Table(p.log()), plan)
    clean = -(math.log(0.7) + math.log(0.6)) / 4
    hard = 0.2 * ((1 - 0.4**0.7) / 0.7 + (1 - 0.5**0.7) / 0.7) / 4
    rows = -(targets * p[8:].log()).sum(1)
    mixup = float(rows[:2].mean() + rows[2:].mean())
    assert float(outcome.loss.detach()) == pytest.approx(clean + hard + mixup, rel=1e-5)
    assert outcome.targets.tolist() == [0, 0, 1]
    torch.testing.assert_close(outcome.logits, p[:3].log())


def test_selected_samples_are_mixed_in_each_view_apart():
    here = state([0, 1, 0, 1], 2)
    method = create("disc", warmup_epochs=1)
    method.on_train_start(here)
    here.epoch = 2
    here.samples["disc_set"].copy_(torch.tensor([CLEAN, NONE, PURIFIED, HARD]))
    here.samples["disc_label"].copy_(torch.tensor([0, 1, 1, 1]))
    (plan,) = method.plan(batch(here, views=2), [Table(torch.zeros(4, 2))], here)
    assert len(plan.inputs) == 4 + 4 + 3 + 3
    assert plan.index.tolist() == [0, 2, 3]  # those whose logits are the outcome's: clean labels are looked up by it
    assert len(method.loss(Table(torch.zeros(4, 2)), plan).logits) == 3
    for view in (0, 1):
        random = here.random(view)
        share = random.beta(5.0, 5.0)
        share = max(share, 1 - share)
        partner = random.permutation(3)
        rows = torch.tensor([0.0, 2.0, 3.0])
        expected = share * rows + (1 - share) * rows[partner]
        torch.testing.assert_close(plan.inputs.flatten()[8 + 3 * view : 11 + 3 * view], expected)
        labels = F.one_hot(torch.tensor([0, 1, 1]), 2).float()
        expected = share * labels + (1 - share) * labels[partner]
        torch.testing.assert_close(plan.mixed_targets[3 * view : 3 * view + 3], expected)


def test_a_batch_without_any_selected_sample_has_no_loss():
    plan = Selected(
        torch.arange(4.0), torch.tensor([0, 1]), kind=torch.tensor([NONE, NONE]), mixed_targets=torch.zeros(0, 2)
    )
    network = Table(torch.randn(4, 2))
    outcome = create("disc").loss(network, plan)
    outcome.loss.backward()
    assert float(outcome.loss.detach()) == 0
    assert float(network.scale.grad) == 0


def test_the_strong_view_may_be_another():
    assert create("disc").views == ("train", "auto")
    assert create("disc", view="auto:ncsam").views == ("train", "auto:ncsam")
