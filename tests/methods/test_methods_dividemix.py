"""DivideMix step by step: the division, refined and guessed labels, mixing, the loss."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from method_cases import Table, batch, state

from ncsam.methods import Plan, create, dividemix
from ncsam.methods.mixmatch import MixMatch, sharpened


def divided(average: int = 1, **options):
    """100 samples of label 0; network 0 finds the first 70 easy, network 1 the last 60."""
    easy = {0: torch.arange(100) < 70, 1: torch.arange(100) >= 40}

    def predict(networks):
        (network,) = networks
        own = torch.where(easy[network.number], 0.95, 0.05) + 0.001 * torch.arange(100).remainder(7)
        return torch.stack((own, 1 - own), dim=1)

    here = state([0] * 100, 2, predict=predict, **options)
    networks = [Table(torch.zeros(100, 2)), Table(torch.zeros(100, 2))]
    for number, network in enumerate(networks):
        network.number = number
    method = create("dividemix", warmup_epochs=1, average=average)
    method.on_train_start(here)
    here.epoch = 2
    method.on_epoch_start(networks, here)
    return method, here, networks


def test_separable_losses_are_divided():
    method, here, _ = divided()
    clean = here.samples["dividemix_clean"]
    assert (clean[:70, 0] > 0.99).all()
    assert (clean[70:, 0] < 0.01).all()
    assert (clean[:40, 1] < 0.01).all()
    assert (clean[40:, 1] > 0.99).all()
    assert method.divisions == 1


def test_each_network_trains_on_the_others_division():
    method, here, networks = divided()
    for_first, for_second = method.plan(batch(here, views=2), networks, here)
    assert for_first.labeled == 2 * 60  # two views of what the second network finds clean
    assert for_second.labeled == 2 * 70
    assert len(for_first.inputs) == len(for_second.inputs) == 200


def test_samples_held_out_are_not_divided():
    held = torch.arange(100) >= 90
    _, here, _ = divided(held_out=held)
    clean = here.samples["dividemix_clean"]
    assert (clean[90:] == 0).all()
    assert (clean[40:90, 1] > 0.99).all()


def test_losses_may_be_averaged_over_epochs():
    method, here, networks = divided(average=2)
    first = here.samples["dividemix_losses"][:, :, 0].clone()
    for network in networks:
        network.number = 1 - network.number  # the networks change their minds
    here.epoch = 3
    method.on_epoch_start(networks, here)
    kept = here.samples["dividemix_losses"]
    assert torch.equal(kept[:, :, 0], first)
    torch.testing.assert_close(kept[:, 0, 1], first[:, 1])
    # found easy by one network in one epoch and by the other in the next: the means agree
    torch.testing.assert_close(here.samples["dividemix_clean"][:, 0], here.samples["dividemix_clean"][:, 1])


def test_while_there_are_fewer_epochs_the_mean_is_over_those(monkeypatch):
    seen = []
    fit = dividemix.probably_clean
    monkeypatch.setattr(dividemix, "probably_clean", lambda losses: seen.append(losses.clone()) or fit(losses))
    method, here, networks = divided(average=3)
    losses = here.samples["dividemix_losses"]
    torch.testing.assert_close(seen[0], losses[:, 0, 0])
    for number in (2, 3, 3):
        here.epoch += 1
        method.on_epoch_start(networks, here)
        torch.testing.assert_close(seen[-1], losses[:, 1].sum(dim=1) / number)


def test_sharpening():
    p = torch.tensor([[0.5, 0.3, 0.2]])
    torch.testing.assert_close(sharpened(p, 0.5), torch.tensor([[0.25, 0.09, 0.04]]) / 0.38)
    torch.testing.assert_close(sharpened(p, 1.0), p)


def test_refined_and_guessed_targets(monkeypatch):
    """Without mixing: w y + (1 - w) own for the labeled, the mean of both networks for the others, sharpened."""
    from ncsam.methods import mixmatch

    monkeypatch.setattr(mixmatch, "mixed", lambda inputs, targets, *_, **__: (inputs, targets))
    own, other = torch.tensor([[0.6, 0.4], [0.3, 0.7]]), torch.tensor([[0.2, 0.8], [0.5, 0.5]])
    here = state([0, 0], 2)
    method = create("dividemix", warmup_epochs=1)
    method.on_train_start(here)
    here.epoch = 2
    here.samples["dividemix_clean"].copy_(torch.tensor([[0.9, 0.2], [0.1, 0.8]]))
    first, second = method.plan(batch(here, views=2), [Table(own.log()), Table(other.log())], here)
    guess = sharpened((own + other) / 2, 0.5)
    # for the first network the second's division counts: sample 1 is labeled, with w = .8
    refined = sharpened(0.8 * torch.tensor([[1.0, 0.0]]) + 0.2 * own[1:], 0.5)
    torch.testing.assert_close(first.targets, torch.cat((refined, refined, guess[:1], guess[:1])))
    assert first.inputs.flatten().tolist() == [1, 1, 0, 0]
    refined = sharpened(0.9 * torch.tensor([[1.0, 0.0]]) + 0.1 * other[:1], 0.5)
    torch.testing.assert_close(second.targets, torch.cat((refined, refined, guess[1:], guess[1:])))
    assert (first.labeled, second.labeled) == (2, 2)


def test_rows_stay_mostly_themselves_when_mixed():
    method, here, networks = divided()
    plan = method.plan(batch(here, views=2), networks, here)[0]
    random = here.random()
    share = random.beta(4.0, 4.0)
    share = max(share, 1 - share)
    order = torch.cat((torch.arange(40, 100), torch.arange(40, 100), torch.arange(40), torch.arange(40))).float()
    partner = torch.from_numpy(random.permutation(200))
    torch.testing.assert_close(plan.inputs.flatten(), share * order + (1 - share) * order[partner])


def test_the_networks_mix_apart():
    """One lambda and one order for both would make them see the same mixtures."""
    method, here, networks = divided()
    here.samples["dividemix_clean"].fill_(1.0)  # the same division for both
    first, second = method.plan(batch(here, views=2), networks, here)
    assert not torch.equal(first.inputs, second.inputs)
    random = here.random(1)
    share = max(share := random.beta(4.0, 4.0), 1 - share)
    rows = torch.arange(100).repeat(2).float()
    partner = torch.from_numpy(random.permutation(200))
    torch.testing.assert_close(second.inputs.flatten(), share * rows + (1 - share) * rows[partner])


class Moody(Table):
    """Answers the other class in evaluation."""

    def forward(self, inputs):
        answer = super().forward(inputs)
        return answer if self.training else answer.flip(1)


def test_the_other_network_guesses_in_evaluation_mode(monkeypatch):
    from ncsam.methods import mixmatch

    monkeypatch.setattr(mixmatch, "mixed", lambda inputs, targets, *_, **__: (inputs, targets))
    own, other = torch.tensor([[0.6, 0.4]]), torch.tensor([[0.2, 0.8]])
    here = state([0], 2)
    method = create("dividemix", warmup_epochs=1)
    method.on_train_start(here)
    here.epoch = 2
    networks = [Moody(own.log()), Moody(other.log())]
    first, second = method.plan(batch(here, views=2), networks, here)
    # .7 = (.6 + .8) / 2: itself as it trains, the other in evaluation; and (.2 + .4) / 2 for the second
    torch.testing.assert_close(first.targets[:1], torch.tensor([[0.49, 0.09]]) / 0.58)
    torch.testing.assert_close(second.targets[:1], torch.tensor([[0.09, 0.49]]) / 0.58)
    assert all(network.training for network in networks)


@pytest.mark.parametrize(
    ("warmup_epochs", "epochs", "steps_per_epoch", "expected"),
    [
        (0.1, 300, 390, 30),  # the share itself
        (0.1, 36, 11, 10),  # 100 steps, in whole epochs
        (0.1, 12, 11, 6),  # half of the run
        (0.1, 1, 11, 1),
        (2, 36, 11, 2),  # epochs that were named are those
    ],
)
def test_warm_up_is_long_enough_to_divide_by(warmup_epochs, epochs, steps_per_epoch, expected):
    here = state([0, 1], 2, epochs=epochs, steps_per_epoch=steps_per_epoch)
    method = create("dividemix", warmup_epochs=warmup_epochs)
    found = []
    for here.epoch in range(1, epochs + 1):
        found.append(method.warm(here))
    assert found == [False] * expected + [True] * (epochs - expected)


def test_the_penalty_is_for_asymmetric_noise():
    assert not create("dividemix").penalty
    assert not create("dividemix", preset="cifar10-symmetric50").penalty
    assert create("dividemix", preset="cifar10-asymmetric40").penalty


@pytest.mark.parametrize(
    ("epoch", "number", "expected"), [(2, 0, 0.0), (2, 2, 25 * 0.5 / 4), (4, 0, 12.5), (9, 0, 25.0)]
)
def test_the_weight_of_the_unlabeled_rises(epoch, number, expected):
    method, here, networks = divided()
    method.ramp_epochs = 4
    here.epoch, here.batch = epoch, number
    assert method.plan(batch(here, views=2), networks, here)[0].unlabeled_weight == pytest.approx(expected)


@pytest.mark.parametrize("labeled", [0, 2, 3])
def test_loss(labeled):
    p = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.5, 0.5]])
    targets = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    network = Table(p.log())
    plan = MixMatch(torch.arange(3).float(), targets, labeled=labeled, unlabeled_weight=10.0)
    outcome = create("dividemix").loss(network, plan)
    mean = p.mean(0)
    expected = (0.5 * (0.5 / mean).log()).sum()
    if labeled:
        expected = expected - (targets[:labeled] * p[:labeled].log()).sum(1).mean()
    if labeled < 3:
        expected = expected + 10 * (p[labeled:] - targets[labeled:]).square().mean()
    assert float(outcome.loss.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert len(outcome.logits) == len(outcome.targets) == (labeled or 3)


@pytest.mark.parametrize("penalty", [False, True])
def test_warm_up_is_cross_entropy_less_the_entropy(penalty):
    p = torch.tensor([[0.7, 0.3], [0.4, 0.6]])
    here = state([0, 1], 2)
    method = create("dividemix", penalty=penalty)
    method.on_train_start(here)
    method.on_epoch_start([], here)  # nothing to divide yet
    network = Table(p.log())
    plans = method.plan(batch(here, views=2), [network, network], here)
    assert all(type(plan) is Plan for plan in plans)
    entropy = -(p * p.log()).sum(1).mean()
    expected = F.cross_entropy(p.log(), here.labels) - penalty * entropy
    assert float(method.loss(network, plans[0]).loss.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert math.isfinite(float(expected))


def test_predictions_are_the_mean_of_both():
    first, second = torch.randn(4, 3), torch.randn(4, 3)
    both = create("dividemix").predict([Table(first), Table(second)], torch.arange(4).float())
    torch.testing.assert_close(both, (first + second) / 2)
