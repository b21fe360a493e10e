"""CTRR and Co-learning part by part, and the contrastive loss, on numbers that can be computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from method_cases import state
from torch import nn

from ncsam import models
from ncsam.data.loading.loader import Batch
from ncsam.methods import create
from ncsam.methods.colearning import squared_distances, structure
from ncsam.methods.contrastive import nt_xent
from ncsam.methods.ctrr import Contrasted, contrast, pair_weights


def network(width: int = 4) -> nn.Module:
    return models.create("mlp", 3, in_features=5, hidden=[width])


def made(views: int, count: int = 6) -> Batch:
    return Batch(tuple(torch.randn(count, 5) for _ in range(views)), torch.arange(count) % 3, torch.arange(count))


def test_nt_xent_by_hand():
    """Two samples whose views are (1, 0), (0, 1) and (1, 0), (0, 1): cosines 1 with the partner, 0 with both others."""
    rows = torch.eye(2)
    expected = -math.log(math.exp(2.0) / (math.exp(2.0) + 2))  # T = .5
    assert float(nt_xent(3 * rows, rows, 0.5)) == pytest.approx(expected)
    # views exchanged: the partner is at 0, one of the others at 1
    expected = -math.log(1 / (math.exp(1.0) + 2))
    assert float(nt_xent(rows, rows.flip(0), 1.0)) == pytest.approx(expected)


def test_ctrr_pairs_by_hand():
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    # <p0, p1> = .74, <p0, p2> = .18, <p1, p2> = .26
    found = pair_weights(p, 0.5)
    expected = torch.tensor([[1 / 1.74, 0.74 / 1.74, 0], [0.74 / 1.74, 1 / 1.74, 0], [0, 0, 1]])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(pair_weights(p, 0.2)[2], torch.tensor([0.0, 0.26, 1.0]) / 1.26)


def test_ctrr_contrast_by_hand():
    similarity = torch.tensor([[0.6, 0.5], [0.2, 0.9]])
    pairs = torch.tensor([[0.75, 0.25], [0.0, 1.0]])
    first = 0.75 * (2 - 0.6) + 0.25 * (2 + math.log(0.5))
    assert float(contrast(similarity, pairs)) == pytest.approx((first + 2 - 0.9) / 2)


def test_ctrr_loss_is_cross_entropy_and_weighted_contrast():
    method = create("ctrr", weight=3.0)
    (whole,) = method.build(network)
    here = state([0, 1, 2] * 2, 3)
    seen = made(3)
    with torch.no_grad():
        (plan,) = method.plan(seen, [whole], here)
    assert isinstance(plan, Contrasted)
    outcome = method.loss(whole, plan)
    logits = whole(seen.views[0])
    torch.testing.assert_close(outcome.logits, logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(plan.pairs, pair_weights(logits.detach().softmax(1), 0.4), rtol=1e-4, atol=1e-5)
    answer = whole(plan.inputs, "predictor")["predictor"][6:]
    q = (answer / answer.norm(dim=1, keepdim=True)).clamp(1e-4, 1 - 1e-4)
    expected = F.cross_entropy(logits, seen.labels) + 3 * contrast(q @ plan.projections.T, plan.pairs)
    torch.testing.assert_close(outcome.loss, expected, rtol=1e-4, atol=1e-5)
    assert float(plan.projections.min()) == pytest.approx(1e-4)


def test_ctrr_target_trails_behind():
    method = create("ctrr", decay=0.9)
    (whole,) = method.build(network)
    before = method.target.backbone.fc.weight.clone()
    projected = method.target.projection[0].weight.clone()
    with torch.no_grad():
        whole.backbone.fc.weight.add_(1.0)
        whole.heads["predictor"][0][0].weight.add_(2.0)
    method.on_step_end([whole], state([0], 3))
    torch.testing.assert_close(method.target.backbone.fc.weight, before + 0.1)
    torch.testing.assert_close(method.target.projection[0].weight, projected + 0.2)
    assert not any(p.requires_grad for p in method.target.parameters())


def test_a_trailing_network_keeps_its_precision_through_a_restart():
    method = create("ctrr")
    method.build(network)
    method.target.double()
    with torch.no_grad():
        method.target.backbone.fc.weight.add_(1e-12)
    again = create("ctrr")
    again.build(network)
    again.load_state_dict(method.state_dict())
    assert torch.equal(again.target.backbone.fc.weight, method.target.backbone.fc.weight)


@pytest.mark.parametrize("name", ["ctrr", "colearning"])
def test_the_classifiers_view_is_a_resized_crop(name):
    assert create(name).views == ("auto:resized", "auto:simclr", "auto:simclr")


def test_colearnings_projector_begins_without_a_bias():
    (whole,) = create("colearning").build(network)
    first, _, last = whole.heads["projector"]
    assert first.bias is None
    assert last.bias is not None


def test_colearning_structure_by_hand():
    projections, logits = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(squared_distances(logits), torch.tensor([[0.0, 2.0], [2.0, 0.0]]))
    # off the diagonal exp(-1) * 2, on it log(1 + 1e-12) = 0; the mean is over four pairs
    assert float(structure(projections, logits)) == pytest.approx(2 * math.exp(-1) * 2 / 4)


def test_colearning_loss_is_mixup_and_nt_xent():
    method = create("colearning")
    (whole,) = method.build(network)
    here = state([0, 1, 2] * 2, 3)
    seen = made(3)
    (plan,) = method.plan(seen, [whole], here)
    random = here.random()
    share, partner = random.beta(5.0, 5.0), random.permutation(6)
    x = share * seen.views[0] + (1 - share) * seen.views[0][partner]
    onehot = F.one_hot(seen.labels, 3).float()
    y = share * onehot + (1 - share) * onehot[partner]
    torch.testing.assert_close(plan.inputs, torch.cat((x, *seen.views[1:])))
    torch.testing.assert_close(plan.targets, y)
    supervised = -(y * whole(x).log_softmax(1)).sum(1).mean()
    first, second = (whole(view, "projector")["projector"] for view in seen.views[1:])
    assert first.shape == (6, 512)  # as in the authors' configuration
    torch.testing.assert_close(method.loss(whole, plan).loss, supervised + nt_xent(first, second, 0.5))


def test_colearning_structure_steps_on_the_classifier_alone():
    method = create("colearning", structure_rate=0.5)
    (whole,) = method.build(network)
    here = state([0, 1, 2] * 2, 3, lr=0.2)
    seen = made(3)
    method.plan(seen, [whole], here)
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    answer = whole(seen.views[0], "projector")
    value = structure(answer["projector"].detach(), answer["logits"])
    gradient = torch.autograd.grad(value, whole.backbone.head.weight)[0]
    method.on_step_end([whole], here)
    changed = {name for name, value in whole.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"backbone.fc.weight"}  # the bias has no part in differences
    expected = before["backbone.fc.weight"] - 0.5 * 0.2 * gradient
    torch.testing.assert_close(whole.backbone.head.weight.detach(), expected)


@pytest.mark.parametrize("name", ["ctrr", "colearning", "unicon"])
def test_they_need_images_and_say_so(name):
    assert create(name).images_only
