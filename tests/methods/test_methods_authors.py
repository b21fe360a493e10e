"""Details in which the authors' code decides: each value is computed by hand from theirs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from method_cases import Table, batch, state

from ncsam.data.augment.views import VIEWS
from ncsam.losses import backward_corrected
from ncsam.methods import create
from ncsam.methods.jocor import Pair
from ncsam.methods.mcorrection import probably_noisy
from ncsam.methods.mixtures import beta_posterior


@pytest.mark.parametrize(("preset", "epochs", "alpha"), [("uniform", 300, 5.0), ("sparse", 120, 6.0)])
def test_peer_reaches_its_alpha_at_the_end_of_the_run(preset, epochs, alpha):
    """As far as the authors' learning rate lets theirs count: epoch 300, or 120 where it is a thousandth."""
    method = create("peer", preset=preset)
    here = state([0, 1], 2, epochs=epochs)
    found = []
    for here.epoch in (20, 20 + (epochs - 20) // 2, epochs):
        found.append(method.plan(batch(here), [Table(torch.zeros(2, 2))], here)[0].alpha)
    assert found == pytest.approx([0, alpha / 2, alpha])


def test_sln_corrects_by_the_samples_trained_on():
    """The largest loss, of a sample held out, must not set the scale."""
    p = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.2, 0.8], [0.001, 0.999]])
    here = state([0, 0, 0, 0], 2, predict=lambda networks: p)
    here.held_out = torch.tensor([False, False, False, True])
    method = create("sln", correct_after=1)
    method.on_train_start(here)
    here.epoch = 2
    method.on_epoch_start([], here)
    l = math.log(0.8 / 0.4) / math.log(0.8 / 0.2)  # noqa: E741
    expected = torch.tensor([[1.0, 0.0], [l, 1 - l], [1.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(here.samples["sln_targets"], expected)


def test_anchors_are_samples_trained_on():
    p = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.99, 0.01], [0.01, 0.99]])
    here = state([0, 1, 0, 1], 2, predict=lambda networks: p)
    here.held_out = torch.tensor([False, False, True, True])
    method = create("forward", warmup_epochs=1, quantile=None)
    here.epoch = 2
    method.on_epoch_start([], here)
    torch.testing.assert_close(method.transition, p[:2])


def test_backward_survives_an_anchor_of_two_classes():
    """Two equal rows: T is singular, and its pseudo-inverse treats both classes alike."""
    p = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.1, 0.8], [0.2, 0.2, 0.6]])
    here = state([0, 1, 2], 3, predict=lambda networks: p)
    method = create("backward", warmup_epochs=1, quantile=None)
    here.epoch = 2
    method.on_epoch_start([], here)
    assert method.transition[0].tolist() == method.transition[1].tolist() == [0.5, 0.5, 0.0]
    logits = torch.randn(4, 3, requires_grad=True)
    loss = method.criterion(logits, torch.tensor([0, 1, 2, 0]))
    loss.backward()
    assert logits.grad.isfinite().all()
    assert float(loss.detach()) == pytest.approx(float(method.criterion(logits, torch.tensor([1, 0, 2, 1])).detach()))
    # T = [[.5, .5], [.5, .5]] is its own pseudo-inverse but for a factor of 2: (l_0 + l_1) / 2 for either label
    half = torch.full((2, 2), 0.5)
    z = torch.tensor([[0.0, math.log(3.0)]])
    expected = (math.log(4.0) + math.log(4 / 3)) / 2
    for label in (0, 1):
        assert float(backward_corrected(z, torch.tensor([label]), half)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(40))
def test_backward_survives_any_estimate(seed):
    random = torch.Generator().manual_seed(seed)
    p = (4 * torch.randn(12, 5, generator=random)).softmax(1)
    here = state([i % 5 for i in range(12)], 5, predict=lambda networks: p)
    method = create("backward", warmup_epochs=1, quantile=None)
    here.epoch = 2
    method.on_epoch_start([], here)
    assert math.isfinite(float(method.criterion(torch.randn(6, 5, generator=random), torch.arange(6) % 5)))


def test_mcorrection_is_plain_mixup_at_first():
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2]])
    here = state([0, 1], 2)
    method = create("mcorrection", warmup_epochs=1, balance=5.0)
    method.on_train_start(here)
    (plan,) = method.plan(batch(here), [Table(p.log())], here)
    plan = type(plan)(batch(here).views[0], F.one_hot(here.labels, 2).float())
    found = float(method.loss(Table(p.log()), plan).loss.detach())
    assert found == pytest.approx(-(math.log(0.9) + math.log(0.2)) / 2)  # no balance


def test_mcorrection_leaves_the_outermost_losses_out_of_the_fit():
    rng = np.random.default_rng(0)
    values = np.concatenate((rng.beta(2, 5, 600), 0.3 + rng.beta(4, 3, 400), np.full(40, 50.0), np.full(40, -9.0)))
    low, high = np.percentile(values, (5, 95))
    inner = (values >= low) & (values <= high)
    scaled = (values - low) / (high - low)
    expected = beta_posterior(scaled[inner])
    found = probably_noisy(torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(found[inner], expected, atol=1e-6)
    assert found[values == 50.0].min() == pytest.approx(expected.max())  # beyond the 95th percentile: as noisy as any
    clipped = beta_posterior(np.clip(scaled, 0, 1))
    assert np.abs(clipped[inner] - expected).max() > 1e-3  # clipping instead of dropping would show


def test_mcorrection_fits_its_mixture_to_samples_trained_on():
    """Held-out samples, here all with large losses, neither enter the fit nor get a probability."""
    rng = np.random.default_rng(0)
    losses = torch.from_numpy(np.concatenate((rng.gamma(2, 0.1, 60), rng.gamma(9, 0.3, 40), np.full(100, 9.0))))
    losses = losses.float()
    p = torch.stack((torch.exp(-losses), 1 - torch.exp(-losses)), dim=1)
    here = state([0] * 200, 2, epoch=2, predict=lambda *_: p)
    here.held_out = torch.arange(200) >= 100
    method = create("mcorrection", warmup_epochs=1)
    method.on_train_start(here)
    method.on_epoch_start([], here)
    found = here.samples["mcorrection_noisy"]
    torch.testing.assert_close(found[:100], probably_noisy(losses[:100]), rtol=0, atol=1e-3)
    assert bool((found[100:] == 0).all())
    assert float((probably_noisy(losses)[:100] - found[:100]).abs().max()) > 0.1  # with all of them it would differ


def test_trevision_moves_its_slack():
    method = create("trevision", transition=[[0.7, 0.3], [0.3, 0.7]], revise_after=0)
    here = state([0, 1, 0, 1], 2)
    method.on_train_start(here)
    network = Table(torch.tensor([[0.2, -0.1], [0.3, 0.1], [-0.2, 0.4], [0.0, 0.5]]))
    for _ in range(100):
        method.plan(batch(here), [network], here)
    # Adam moves by about its rate in each step of a steady gradient: 100 * 3e-5
    assert float(method.slack.detach().abs().max()) == pytest.approx(3e-3, rel=0.2)


@pytest.mark.parametrize("name", ["coteaching", "coteaching_plus", "jocor"])
def test_two_networks_predict_together_or_one_alone(name):
    first, second = torch.randn(3, 2), torch.randn(3, 2)
    networks = [Table(first), Table(second)]
    networks = [Pair(*networks)] if name == "jocor" else networks
    x = torch.arange(3.0)
    torch.testing.assert_close(create(name).predict(networks, x), (first + second) / 2)
    torch.testing.assert_close(create(name, ensemble=False).predict(networks, x), first)


def test_gce_truncated_keeps_a_floor():
    p = torch.stack((torch.linspace(0.1, 0.4, 20), 1 - torch.linspace(0.1, 0.4, 20)), dim=1)
    here = state([0] * 20, 2, predict=lambda networks: p)
    here.held_out = torch.arange(20) == 19
    # a tenth of 19, rounded up, or the half by default; the last is held out and never trained on
    for options, kept in (({"least": 0.1}, [17, 18, 19]), ({}, list(range(9, 20)))):
        method = create("gce_truncated", prune_after=2, **options)
        method.on_train_start(here)
        here.epoch = 2
        method.on_epoch_start([], here)
        (plan,) = method.plan(batch(here), [Table(p.log())], here)
        assert plan.index.tolist() == kept


def test_the_authors_of_js_augment_by_one_light_operation():
    light = VIEWS["light"]
    assert (light.operations, light.magnitude, light.cutout) == (1, 3.0, 0.5)
    assert create("js").views == ("auto:light",)
    assert create("gjs").views == ("auto:light", "auto:light")
