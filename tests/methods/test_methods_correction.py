"""Relabeling, reweighting and averaging, on samples whose answers are known."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from method_cases import Table, batch, log, state
from torch import nn

from ncsam.methods import create, mcorrection
from ncsam.methods.selfie import most_frequent
from ncsam.methods.sln import corrected_targets
from ncsam.methods.trevision import importance, revised


def test_selfie_is_certain_of_what_it_always_said():
    history = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 2], [2, 2, -1, 2], [0, 1, 2, 0]], dtype=torch.int32)
    certain, label = most_frequent(history, 3, 0.05)
    assert certain.tolist() == [True, False, False, False]  # the third row is not full
    assert label[[0, 1, 3]].tolist() == [1, 1, 0]
    uncertainty = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(3)
    assert most_frequent(history, 3, uncertainty + 1e-6)[0].tolist() == [True, True, False, False]
    assert most_frequent(history, 3, uncertainty - 1e-3)[0].tolist() == [True, False, False, False]


def test_selfie_trains_on_small_losses_and_refurbished_labels():
    method = create("selfie", noise_share=0.5, warmup_epochs=2, history=5)
    here = state([0, 0, 1, 1], 2)
    method.on_train_start(here)
    networks = [Table(log([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.45, 0.55]]))]
    for here.epoch in (1, 2):
        (plan,) = method.plan(batch(here), networks, here)
        assert plan.index.tolist() == [0, 1, 2, 3]
        assert plan.targets.tolist() == [0, 0, 1, 1]
    # the third epoch's answers on 1 and 3 waver; the decision is by the two before it, (1, 1) for both
    networks = [Table(log([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.55, 0.45]]))]
    here.epoch = 3
    (plan,) = method.plan(batch(here), networks, here)
    assert plan.index.tolist() == [0, 1, 2, 3]  # 0 and 1 are easy, all are certain
    assert plan.targets.tolist() == [0, 1, 1, 1]
    # once refurbished, always: the history of 1 and 3 is (1, 0) now, and they keep their new labels
    here.epoch = 4
    (plan,) = method.plan(batch(here), networks, here)
    assert here.samples["selfie_history"][[1, 3]].tolist() == [[0, 0], [0, 0]]
    assert plan.targets.tolist() == [0, 1, 1, 1]


def test_selfie_rounds_the_number_of_small_losses_up():
    method = create("selfie", noise_share=0.4, warmup_epochs=2)
    here = state([0, 0, 0, 0], 2)
    method.on_train_start(here)
    one, other = log([[0.9, 0.1]] * 4), log([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6]])
    for here.epoch, logits in ((1, one), (2, other), (3, other)):  # of two minds about all: nothing is refurbished
        (plan,) = method.plan(batch(here), [Table(logits)], here)
    assert plan.index.tolist() == [1, 2, 3]  # ceil(.6 * 4) of smallest loss


def test_plc_relabels_by_the_likelihood_ratio_of_the_window():
    answers = iter(
        [
            torch.tensor([[0.8, 0.2], [0.1, 0.9], [0.4, 0.6]]),
            torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.2, 0.8]]),
            torch.tensor([[0.6, 0.4], [0.1, 0.9], [0.2, 0.8]]),
        ]
    )
    here = state([0, 0, 0], 2, predict=lambda networks: next(answers))
    method = create("plc", warmup_epochs=2, window=2, threshold=0.3)
    method.on_train_start(here)
    method.on_epoch_start([], here)
    labels = []
    for here.epoch in (2, 3, 4):
        method.on_epoch_start([], here)
        (plan,) = method.plan(batch(here), [], here)
        labels.append(plan.targets.tolist())
    # after two epochs the mean of sample 1 is (.2, .8): .25 < .3; of sample 2 (.3, .7): .43; then (.2, .8): .25
    assert labels == [[0, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert method.threshold == pytest.approx(0.3)


def test_plc_predicts_only_the_epochs_of_its_window():
    calls = []
    here = state([0, 0], 2, predict=lambda networks: calls.append(here.epoch) or torch.tensor([[0.9, 0.1]] * 2))
    method = create("plc", warmup_epochs=4, window=2)
    method.on_train_start(here)
    for here.epoch in (1, 2, 3, 4, 5, 6):
        method.on_epoch_start([], here)
    assert calls == [4, 5, 6]  # after three and four epochs of warm-up, whose mean corrects first, and on


def test_plc_raises_its_threshold_when_nothing_changes():
    here = state([0, 0], 2, predict=lambda networks: torch.tensor([[0.9, 0.1], [0.45, 0.55]]))
    method = create("plc", warmup_epochs=1, window=1, threshold=0.7)
    method.on_train_start(here)
    thresholds, labels = [], []
    for here.epoch in (2, 3, 4, 5):
        method.on_epoch_start([], here)
        thresholds.append(method.threshold)
        labels.append(here.samples["plc_label"].tolist())
    assert thresholds == pytest.approx([0.8, 0.9, 0.9, 0.9])
    assert labels == [[0, 0], [0, 0], [0, 1], [0, 1]]  # .45 / .55 = .82: below .9 only


def test_plc_leaves_samples_held_out_alone():
    here = state([0, 0], 2, predict=lambda networks: torch.tensor([[0.1, 0.9]] * 2))
    here.held_out = torch.tensor([True, False])
    method = create("plc", warmup_epochs=1, window=1)
    method.on_train_start(here)
    here.epoch = 2
    method.on_epoch_start([], here)
    assert here.samples["plc_label"].tolist() == [0, 1]


@pytest.mark.parametrize("soft", [False, True])
def test_mcorrection_mixes_labels_with_predictions_as_far_as_they_look_noisy(soft):
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.85, 0.15]])
    here = state([0, 0, 0, 0], 2, predict=lambda networks: p)
    method = create("mcorrection", warmup_epochs=1, soft=soft, alpha=1e9, balance=2.0)
    method.on_train_start(here)
    here.epoch = 2
    here.samples["mcorrection_noisy"].copy_(torch.tensor([0.0, 0.25, 1.0, 0.5]))
    network = Table(p.log())
    (plan,) = method.plan(batch(here), [network], here)
    z = p if soft else torch.tensor([[1.0, 0], [1, 0], [0, 1], [1, 0]])
    w = here.samples["mcorrection_noisy"][:, None]
    targets = (1 - w) * torch.tensor([1.0, 0.0]) + w * z
    partner = here.random()
    partner.beta(1e9, 1e9)
    partner = torch.from_numpy(partner.permutation(4))
    torch.testing.assert_close(plan.targets, (targets + targets[partner]) / 2, atol=1e-3, rtol=0)
    plan = type(plan)(batch(here).views[0], targets)  # un-mixed, to know the answers
    mean = p.mean(0)
    apart = (0.5 * (0.5 / mean).log()).sum()
    expected = -(targets * p.log()).sum(1).mean() + 2 * apart
    assert float(method.loss(network, plan).loss.detach()) == pytest.approx(float(expected), rel=1e-5)


def test_mcorrection_finds_the_large_losses():
    own = torch.cat((torch.linspace(0.8, 0.95, 60), torch.linspace(0.02, 0.05, 40)))
    here = state([0] * 100, 2, predict=lambda networks: torch.stack((own, 1 - own), dim=1))
    method = create("mcorrection", warmup_epochs=1)
    method.on_train_start(here)
    method.on_epoch_start([], here)
    assert here.samples["mcorrection_noisy"].sum() == 0  # not before the plain epochs are over
    here.epoch = 2
    method.on_epoch_start([], here)
    noisy = here.samples["mcorrection_noisy"]
    assert (noisy[:60] < 0.1).all()
    assert (noisy[60:] > 0.85).all()


def test_mcorrection_fits_the_middle_of_the_losses_of_samples_trained_on(monkeypatch):
    """From the 5th to the 95th percentile; beyond them, and of samples held out, losses are not fitted."""
    fitted = []

    def posterior(values, at):
        fitted.append(values)
        return at

    monkeypatch.setattr(mcorrection, "beta_posterior", posterior)
    losses = torch.cat((torch.linspace(0.0, 10.0, 101), torch.full((20,), 50.0)))
    p = torch.exp(-losses)
    here = state(
        [0] * 121, 2, predict=lambda networks: torch.stack((p, 1 - p), dim=1), held_out=torch.arange(121) > 100
    )
    method = create("mcorrection", warmup_epochs=1)
    method.on_train_start(here)
    here.epoch = 2
    method.on_epoch_start([], here)
    (values,) = fitted
    assert (values.min(), values.max(), len(values)) == pytest.approx((0.0, 1.0, 91), abs=1e-3)
    noisy = here.samples["mcorrection_noisy"]
    torch.testing.assert_close(noisy[:101], ((losses[:101] - 0.5) / 9).clamp(0, 1), rtol=0, atol=1e-2)
    assert not noisy[101:].any()


@pytest.mark.parametrize("name", ["forward", "backward", "trevision"])
def test_transition_is_estimated_after_the_plain_epochs(name):
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.4, 0.3, 0.3]])
    calls = []
    here = state([0, 1, 2, 0], 3, predict=lambda networks: calls.append(1) or p)
    method = create(name, warmup_epochs=2, quantile=None)
    method.on_train_start(here)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    for here.epoch in range(1, 6):
        method.on_epoch_start([], here)
        if here.epoch <= 2:
            assert method.transition is None
            assert torch.equal(method.criterion(logits, labels), F.cross_entropy(logits, labels))
    torch.testing.assert_close(method.transition, p[:3])
    assert len(calls) == 2  # after each plain epoch, and never again
    if name == "forward":
        expected = -(logits.softmax(1) @ p[:3])[range(5), labels].log().mean()
        torch.testing.assert_close(method.criterion(logits, labels), expected)
    if name == "backward":
        inverse = p[:3].inverse()
        expected = (inverse @ -logits.log_softmax(1).T).T[range(5), labels].mean() / inverse.abs().sum(1).max()
        torch.testing.assert_close(method.criterion(logits, labels), expected, rtol=1e-4, atol=1e-5)


def test_a_network_that_knows_nothing_yet_gives_no_transition():
    """A tenth of 20 epochs of 11 steps would be 22 steps; 100 steps are 10 epochs."""
    here = state([0, 1], 2, epochs=20, steps_per_epoch=11, predict=lambda networks: torch.eye(2))
    method = create("forward")
    for here.epoch in range(1, 12):
        method.on_epoch_start([], here)
        assert (method.transition is None) == (here.epoch <= 10)


def test_the_plain_epoch_that_fits_the_noisy_samples_held_out_best_gives_the_transition():
    """The samples trained on fit ever better; those held out (the last two) fit best after the second epoch, by which T
    is estimated, from the samples trained on."""
    epochs = [torch.zeros(4, 2) for _ in range(3)]
    for p, trained, held_out in zip(epochs, (0.6, 0.7, 0.9), (0.5, 0.75, 0.6), strict=True):
        p[:2] = torch.tensor([[trained, 1 - trained], [1 - trained, trained]])
        p[2:] = torch.tensor([[held_out, 1 - held_out], [1 - held_out, held_out]])
    here = state([0, 1, 0, 1], 2, predict=lambda networks: epochs[here.epoch - 2])
    here.held_out = torch.tensor([False, False, True, True])
    method, restarted, blind = (create("forward", warmup_epochs=3, quantile=None) for _ in range(3))
    for here.epoch in (1, 2, 3, 4):
        if here.epoch == 4:
            restarted.load_state_dict(method.state_dict())
            restarted.on_epoch_start([], here)
        method.on_epoch_start([], here)
    for found in (method.transition, restarted.transition):
        torch.testing.assert_close(found, torch.tensor([[0.7, 0.3], [0.3, 0.7]]))
    here.held_out = None
    for here.epoch in (1, 2, 3, 4):
        blind.on_epoch_start([], here)
    torch.testing.assert_close(blind.transition, torch.tensor([[0.9, 0.1], [0.1, 0.9]]))


def test_the_gradient_of_backward_is_bounded_as_that_of_cross_entropy_is():
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        transition = torch.rand(4, 4, generator=random).softmax(1)  # rows alike: an inverse of large numbers
        method = create("backward", transition=transition.tolist())
        logits = (3 * torch.randn(6, 4, generator=random)).requires_grad_()
        labels = torch.randint(4, (6,), generator=random)
        (gradient,) = torch.autograd.grad(6 * method.criterion(logits, labels), logits)
        inverse = transition.double().inverse()
        torch.testing.assert_close(
            gradient.double(),
            (logits.detach().double().softmax(1) - inverse[labels]) / inverse.abs().sum(1).max(),
            rtol=1e-3,
            atol=1e-4,
        )
        assert float(gradient.abs().sum(1).max()) <= 2
    same = create("backward", transition=torch.eye(4).tolist())
    torch.testing.assert_close(same.criterion(logits, labels), F.cross_entropy(logits, labels))


def test_a_given_transition_is_used_from_the_start():
    method = create("forward", transition=[[0.9, 0.1], [0.2, 0.8]])
    method.on_train_start(state([0, 1], 2))
    logits, labels = torch.zeros(1, 2), torch.tensor([0])
    assert float(method.criterion(logits, labels)) == pytest.approx(-math.log(0.55))
    with pytest.raises(ValueError, match="transition="):
        create("forward", transition=[[0.9, 0.1], [0.2, 0.8]]).on_train_start(state([0, 1, 2], 3))
    for wrong in ([[0.9, 0.2], [0.2, 0.8]], [[1.1, -0.1], [0, 1]], [[1.0, 0.0]]):
        with pytest.raises(ValueError, match="rows sum to 1"):
            create("forward", transition=wrong)


def test_importance_weights_turn_noisy_risk_into_clean_risk():
    """Where p is the clean posterior, the mean of b l over noisy labels is the mean of l over clean ones."""
    transition = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    logits = torch.randn(6, 3)
    p = logits.softmax(1)
    losses = torch.rand(6, 3)
    total = 0.0
    for label in range(3):
        weights = importance(logits, torch.full((6,), label), transition)
        total += (p @ transition)[:, label] * weights * losses[:, label]
    torch.testing.assert_close(total, (p * losses).sum(1))
    assert torch.equal(revised(transition, torch.zeros(3, 3)), transition / transition.sum(1, keepdim=True))
    far = revised(transition, torch.tensor([[-2.0, 0, 0], [0, 0, 0], [0, 0, 1.0]]))
    torch.testing.assert_close(far.sum(1), torch.ones(3))
    assert float(far[0, 0]) < 1e-5
    assert float(far[2, 2]) == pytest.approx(0.8)


def test_trevision_slack_goes_down_the_gradient_through_the_weights():
    logits, labels = torch.randn(8, 3), [0, 1, 2, 0, 1, 2, 0, 1]
    transition = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
    here = state(labels, 3)
    method = create("trevision", transition=transition, revise_after=1, slack_lr=1e-3)
    method.on_train_start(here)
    network = Table(logits)
    (plan,) = method.plan(batch(here), [network], here)
    assert method.slack.abs().sum() == 0
    expected = importance(logits, here.labels, torch.tensor(transition))
    torch.testing.assert_close(plan.extra, expected)
    loss = method.loss(network, plan).loss
    assert float(loss.detach()) == pytest.approx(
        float((expected * F.cross_entropy(logits, here.labels, reduction="none")).mean()), rel=1e-5
    )
    slack = torch.zeros(3, 3, requires_grad=True)
    weights = importance(logits, here.labels, revised(torch.tensor(transition), slack))
    (weights * F.cross_entropy(logits, here.labels, reduction="none")).mean().backward()
    here.epoch = 2
    method.plan(batch(here), [network], here)
    # the first step of Adam is lr times the sign of the gradient
    torch.testing.assert_close(method.slack.detach(), -1e-3 * slack.grad.sign(), rtol=1e-3, atol=1e-6)


def test_gce_truncated_lets_go_of_what_the_network_does_not_believe():
    p = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.9, 0.1], [0.5, 0.5]])
    calls = []
    here = state([0, 0, 0, 0], 2, predict=lambda networks: calls.append(here.epoch) or p)
    method = create("gce_truncated", q=0.5, k=0.5, prune_after=2, refresh=3)
    method.on_train_start(here)
    network = Table(p.log())
    for here.epoch in range(1, 8):
        method.on_epoch_start([network], here)
        (plan,) = method.plan(batch(here), [network], here)
        assert plan.index.tolist() == ([0, 1, 2, 3] if here.epoch < 2 else [0, 2])
    assert calls == [2, 5]
    loss = method.loss(network, plan).loss.detach()
    assert float(loss) == pytest.approx(2 * (2 - 0.6**0.5 - 0.9**0.5) / 4)  # over the whole batch


def test_peer_draws_from_the_batch_and_grows():
    here = state([0, 1, 1, 0], 2)
    method = create("peer", alpha=3.0, warmup_epochs=1, ramp_epochs=3)
    network = Table(log([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7], [0.5, 0.5]]))
    alphas = []
    for here.epoch in range(1, 6):
        (plan,) = method.plan(batch(here), [network], here)
        alphas.append(plan.alpha)
    assert alphas == pytest.approx([0, 1, 2, 3, 3])
    p = network.logits.exp()
    own = -(p[range(4), here.labels] + 1e-5).log()
    peers = -(p[plan.peers, plan.peer_labels] + 1e-5).log()
    assert float(method.loss(network, plan).loss.detach()) == pytest.approx(
        float((own - 3 * peers).mean() / 4), rel=1e-5
    )
    here.batch = 1
    assert not torch.equal(method.plan(batch(here), [network], here)[0].peers, plan.peers)


def test_peers_and_their_labels_are_drawn_apart():
    """Each sample has a label of its own, which tells whose label it is."""
    here = state(list(range(12)), 12)
    (plan,) = create("peer", warmup_epochs=0, ramp_epochs=0).plan(batch(here), [], here)
    rows, labels = here.random().integers(12, size=(2, 12))
    assert plan.peers.tolist() == rows.tolist()
    assert plan.peer_labels.tolist() == labels.tolist()
    assert rows.tolist() != labels.tolist()


def test_elr_remembers_predictions():
    here = state([0, 1], 2)
    method = create("elr", weight=2.0, beta=0.75)
    method.on_train_start(here)
    p = torch.tensor([[0.6, 0.4], [0.3, 0.7]])
    network = Table(p.log())
    method.plan(batch(here), [network], here)
    torch.testing.assert_close(here.samples["elr_memory"], 0.25 * p)
    (plan,) = method.plan(batch(here), [network], here)
    memory = 0.25 * p + 0.75 * 0.25 * p
    torch.testing.assert_close(plan.extra, memory)
    expected = -(math.log(0.6) + math.log(0.7)) / 2 + 2 * (1 - (memory * p).sum(1)).log().mean()
    assert float(method.loss(network, plan).loss.detach()) == pytest.approx(float(expected), rel=1e-5)


def test_elr_remembers_probabilities_that_add_up_to_one():
    """Kept 1e-4 away from 0 and 1, those of three classes would add up to 1.0001."""
    here = state([0], 3)
    method = create("elr", beta=0.0)
    method.on_train_start(here)
    method.plan(batch(here), [Table(torch.tensor([[40.0, 0.0, 0.0]]))], here)
    expected = torch.tensor([[0.9999, 1e-4, 1e-4]]) / 1.0001
    torch.testing.assert_close(here.samples["elr_memory"], expected, rtol=0, atol=1e-6)


def test_sln_targets_are_drawn_anew_and_corrected_late():
    here = state([0, 1, 1], 2)
    method = create("sln", sigma=0.5)
    network = Table(log([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]))
    (plan,) = method.plan(batch(here), [network], here)
    z = torch.from_numpy(here.random().standard_normal((3, 2), dtype="float32"))
    torch.testing.assert_close(plan.extra, F.one_hot(here.labels, 2) + 0.5 * z)
    outcome = method.loss(network, plan)
    assert float(outcome.loss.detach()) == pytest.approx(float(-(plan.extra * network.logits).sum(1).mean()), rel=1e-5)
    assert torch.equal(outcome.targets, here.labels)
    p = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    found = corrected_targets(p, here.labels)
    losses = -torch.tensor([0.5, 0.8, 0.1]).log()
    share = float((losses[0] - losses[1]) / (losses[2] - losses[1]))
    guess = torch.tensor([1.0, 0.0]) if p[0].argmax() == 0 else torch.tensor([0.0, 1.0])
    torch.testing.assert_close(found[0], share * torch.tensor([1.0, 0.0]) + (1 - share) * guess)
    assert found[1].tolist() == [0.0, 1.0]  # the smallest loss takes the prediction, here the same as the label
    assert found[2].tolist() == [0.0, 1.0]  # the largest keeps its label


def test_averaged_weights():
    method = create("regce", decay=0.5)
    (network,) = method.build(lambda: nn.Linear(2, 2, bias=False))
    method.on_train_start(state([0], 2))
    first = network.weight.detach().clone()
    weights = []
    for step in range(1, 4):
        with torch.no_grad():
            network.weight.fill_(step)
        method.on_step_end([network], state([0], 2))
        weights.append(method.average.weight.clone())
    # d = min(.5, (1 + t) / (10 + t)): 2/11, 3/12, 4/13
    expected = first
    for step, d in zip((1, 2, 3), (2 / 11, 3 / 12, 4 / 13), strict=True):
        expected = d * expected + (1 - d) * step
        torch.testing.assert_close(weights[step - 1], expected)
    x = torch.randn(4, 2)
    torch.testing.assert_close(method.predict([network], x), x @ expected.T)
    again = create("regce", decay=0.5)
    again.build(lambda: nn.Linear(2, 2, bias=False))
    again.load_state_dict(method.state_dict())
    assert torch.equal(again.predict([network], x), method.predict([network], x))


def test_dmi_follows_cross_entropy():
    here = state([0, 1, 0, 1], 2)
    method = create("dmi", warmup_epochs=1, weight=0.5, eps=0.0)
    p = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
    network = Table(p.log())
    (plan,) = method.plan(batch(here), [network], here)
    assert float(method.loss(network, plan).loss.detach()) == pytest.approx(
        float(F.cross_entropy(p.log(), here.labels))
    )
    here.epoch = 2
    (plan,) = method.plan(batch(here), [network], here)
    joint = torch.stack((p[0] + p[2], p[1] + p[3])) / 4
    assert float(method.loss(network, plan).loss.detach()) == pytest.approx(
        -0.5 * math.log(float(joint.det())), rel=1e-5
    )


def test_gjs_joins_two_views():
    from ncsam.losses import gjs, js

    here = state([0, 1], 2)
    method = create("gjs", pi=0.4, view="weak")
    assert method.views == ("weak", "weak")
    first = torch.randn(2, 2)
    inputs = batch(here, views=2)
    network = Table(first)
    (plan,) = method.plan(inputs, [network], here)
    outcome = method.loss(network, plan)
    torch.testing.assert_close(outcome.loss, gjs((first, first), here.labels, pi=0.4))
    torch.testing.assert_close(outcome.logits, first)
    torch.testing.assert_close(method.criterion(first, here.labels), js(first, here.labels, pi=0.4))
