"""Which model answers, in which mode, about which samples: what a formula alone does not say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from method_cases import state
from torch import Tensor, nn

from ncsam import methods, models
from ncsam.data.loading.loader import Batch
from ncsam.methods import cc, cleannet, mixmatch
from ncsam.methods.cc import WIDTH, centrality
from ncsam.methods.ctrr import pair_weights
from ncsam.methods.mixmatch import sharpened


class Normed(models.Backbone):
    """Two features behind a BatchNorm whose running statistics are far from those of a batch."""

    num_features = 2

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.norm.running_mean = torch.tensor([5.0, -3.0])
        self.norm.running_var = torch.tensor([9.0, 0.25])
        self.fc = nn.Linear(2, 2)

    def features(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed


def views(count: int, samples: int = 6) -> Batch:
    made = tuple(torch.randn(samples, 2) for _ in range(count))
    return Batch(made, torch.arange(samples) % 2, torch.arange(samples))


def probabilities(network: nn.Module, inputs: Tensor, *, training: bool) -> Tensor:
    """In either mode; the running statistics are put back."""
    kept = {name: value.clone() for name, value in network.named_buffers()}
    network.train(training)
    with torch.no_grad():
        found: Tensor = network(inputs).softmax(dim=1)
        for name, value in network.named_buffers():
            value.copy_(kept[name])
    network.train()
    return found


@pytest.fixture
def unmixed(monkeypatch):
    monkeypatch.setattr(mixmatch, "mixed", lambda inputs, targets, *_, **__: (inputs, targets))


def test_ctrr_compares_predictions_of_training_mode():
    torch.manual_seed(0)
    method = methods.create("ctrr", threshold=0.0)
    (network,) = method.build(Normed)
    seen = views(3)
    with torch.no_grad():
        (plan,) = method.plan(seen, [network], state([0, 1] * 3, 2))
    training, evaluation = (
        pair_weights(probabilities(network, seen.views[0], training=mode), 0.0) for mode in (True, False)
    )
    torch.testing.assert_close(plan.pairs, training)
    assert (training - evaluation).abs().max() > 0.01


def test_nested_models_choose_by_their_own_width():
    """By one feature the samples 0 and 1 have small losses, by two the samples 2 and 3."""
    method = methods.create("nested_coteaching", forget_rate=0.5)
    networks = method.build(lambda: models.create("mlp", 2, in_features=2, hidden=()))
    for network in networks:
        network.backbone.head.weight.data.copy_(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
        network.width.fill_(2)
    here = state([0] * 4, 2, stage=1)
    inputs = torch.tensor([[2.0, -2.0], [1.0, -1.0], [-1.0, 2.0], [-2.0, 2.0]])
    plans = method.plan(Batch((inputs,), here.labels, torch.arange(4)), networks, here)
    assert [plan.rows.tolist() for plan in plans] == [[2, 3], [2, 3]]
    for network in networks:
        network.width.fill_(1)
    plans = method.plan(Batch((inputs,), here.labels, torch.arange(4)), networks, here)
    assert [plan.rows.tolist() for plan in plans] == [[0, 1], [0, 1]]


# --- CleanNet


class Similarity(nn.Module):
    """Encoders that return given similarities, and note which references they were asked about."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, references: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        self.references = references
        return self.values[: len(labels)], features


def weighed(similarity: list[float], monkeypatch: pytest.MonkeyPatch, **changes: object) -> tuple[Similarity, Tensor]:
    """CleanNet's weights from given similarities, without training the encoders."""
    labels = [0, 1] * (len(similarity) // 2)
    features = changes.pop("features", torch.rand(len(labels), 3))
    here = state(labels, 2, features=lambda _: features, verified=torch.full((len(labels),), -1), epoch=5, **changes)
    method = methods.create("cleannet", inner_steps=0, references=1)
    method.on_train_start(here)
    encoders = Similarity(similarity)
    monkeypatch.setattr(method, "_encoders", lambda *_: encoders)
    monkeypatch.setattr(method, "_train", lambda *_: None)
    method.on_epoch_start([nn.Identity()], here)
    return encoders, here.samples["cleannet_weight"]


def test_cleannet_never_trains_away_from_a_label(monkeypatch):
    _, weights = weighed([0.7, -0.4, 0.0, -1.0], monkeypatch)
    torch.testing.assert_close(weights, torch.tensor([0.7, 0.0, 0.0, 0.0]))


def test_cleannet_takes_references_from_samples_trained_on(monkeypatch):
    """The samples held out are far away; neither center moves towards them, and they keep their weight of 1."""
    features = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, 0], [0, 1.0, 0], [0, 0, 99.0], [0, 0, 99.0]])
    held_out = torch.tensor([False] * 4 + [True] * 2)
    encoders, weights = weighed([0.5] * 6, monkeypatch, features=features, held_out=held_out)
    expected = cleannet.scaled(features[:2]).unsqueeze(1)
    torch.testing.assert_close(encoders.references, expected)
    assert weights.tolist() == [0.5] * 4 + [1.0] * 2


def test_a_step_of_cleannets_encoders():
    """One step by hand: the loss of similarities, and the reconstruction summed over features, not averaged."""
    torch.manual_seed(0)
    features = torch.rand(8, 5) * 3
    verified = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0])
    here = state([0, 1] * 4, 2, features=lambda _: features, verified=verified, epoch=5)
    method = methods.create("cleannet", inner_steps=1, inner_lr=0.1, reconstruction=0.3, references=2)
    method.on_train_start(here)
    seen = cleannet.scaled(features)
    torch.testing.assert_close(seen, (1 + features).log())
    encoders = method._encoders(seen, here)
    before = [p.detach().clone() for p in encoders.parameters()]
    rows = torch.from_numpy(here.random(stream=1).integers(8, size=32))
    kept = cleannet.references(seen, here.labels, here, 2)
    similarity, decoded = encoders(kept, seen[rows], here.labels[rows])
    right = verified[rows] == 1
    value = torch.where(right, 1 - similarity, 5 * (similarity - 0.1).clamp_min(0)).mean()
    value = value + 0.3 * sum(((decoded[i] - seen[rows[i]]) ** 2).sum() for i in range(32)) / 32
    gradients = torch.autograd.grad(value, list(encoders.parameters()))
    method._train(encoders, kept, seen, here.trained, here)
    for now, then, gradient in zip(encoders.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(now.detach(), then - 0.1 * (gradient + 1e-4 * then))


def test_cleannets_encoders_have_the_authors_layers():
    """512 and 256, attention by 256, 128 for the class; 256 and 128 for the sample and back; tanh after each."""
    encoders = cleannet.Encoders(7)
    shapes = [tuple(p.shape) for name, p in encoders.named_parameters() if name.endswith("weight")]
    assert shapes == [
        (512, 7),
        (256, 512),
        (256, 256),
        (1, 256),
        (128, 256),
        (256, 7),
        (128, 256),
        (256, 128),
        (7, 256),
    ]
    references, features = torch.randn(2, 3, 7), torch.randn(4, 7)
    codes = encoders.classes(references)
    (first, _), (second, _) = encoders.of_reference[0], encoders.of_reference[1]
    h = second(first(references).tanh()).tanh()
    (inner, _, context) = encoders.attention
    scores = context(inner(h).tanh()).exp()
    attended = (scores / scores.sum(dim=1, keepdim=True) * h).sum(dim=1)
    torch.testing.assert_close(codes, encoders.of_class[0][0](attended).tanh())
    _, decoded = encoders(references, 100 * features, torch.tensor([0, 1, 0, 1]))
    assert decoded.abs().max() <= 1


def test_cleannets_encoders_slow_down_and_survive_a_restart():
    """A tenth of the rate in the second half after warm-up; momentum goes through a checkpoint."""
    features = torch.rand(8, 5)
    here = state([0, 1] * 4, 2, features=lambda _: features, verified=torch.tensor([1, 0] * 4), epochs=12)
    method = methods.create("cleannet", inner_steps=2, inner_lr=0.1, warmup_epochs=4, references=2)
    method.on_train_start(here)
    rates = []
    for here.epoch in range(5, 13):
        method.on_epoch_start([nn.Identity()], here)
        rates.append(method.optimizer.param_groups[0]["lr"])
        if here.epoch == 8:
            kept = method.state_dict()
            other = methods.create("cleannet", inner_steps=2, inner_lr=0.1, warmup_epochs=4, references=2)
            other.load_state_dict(torch.utils._pytree.tree_map(lambda v: v.clone() if torch.is_tensor(v) else v, kept))
        if here.epoch > 8:
            weights = here.samples["cleannet_weight"].clone()
            other.on_epoch_start([nn.Identity()], here)
            torch.testing.assert_close(here.samples["cleannet_weight"], weights, rtol=0, atol=0)
    assert rates == pytest.approx([0.1] * 4 + [0.01] * 4)


# --- two models


def test_unicons_other_model_guesses_in_evaluation_mode(unmixed):
    torch.manual_seed(0)
    method = methods.create("unicon", warmup_epochs=1)
    networks = method.build(Normed)
    here = state([0, 1] * 3, 2)
    method.on_train_start(here)
    here.epoch = 2
    seen = views(4)
    with torch.no_grad():
        plans = method.plan(seen, networks, here)
    for own, plan in enumerate(plans):
        answers = [
            probabilities(networks[k], view, training=mode)
            for k, mode in ((own, True), (1 - own, False))
            for view in seen.views[:2]
        ]
        expected = sharpened(sum(answers) / 4, 0.5)
        torch.testing.assert_close(plan.targets[:6], expected)


def test_ccs_centers_are_of_predicted_classes():
    """Class 0 is at e_0 and class 1 at e_1. Two of three samples labeled 0 look like 1 and are predicted so.

    Centers by prediction: e_0 and e_1, so that these two are far from the class they are labeled as. Centers by label
    would put class 0 next to them.
    """
    looks = torch.tensor([0] * 10 + [1] * 20 + [1] * 10)
    labels = torch.tensor([0] * 10 + [0] * 20 + [1] * 10)
    reduced = 0.01 * torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(0))
    reduced[torch.arange(40), looks] += 1
    logits = 4.0 * F.one_hot(looks, 2)
    w = centrality(torch.cat((reduced, logits, logits), dim=1), labels, 2)
    assert (w[:10] > 0.9).all()
    assert (w[10:30] < 0.1).all()
    assert (w[30:] > 0.9).all()


def test_cc_refines_by_the_other_models_centrality(unmixed):
    method = methods.create("cc", warmup_epochs=1, temperature=1.0)
    networks = method.build(lambda: models.create("mlp", 2, in_features=2, hidden=[4]))
    here = state([0, 1], 2)
    method.on_train_start(here)
    here.epoch = 2
    here.samples["cc_labeled"].fill_(True)
    here.samples["cc_central"].copy_(torch.tensor([[0.9, 0.2], [0.7, 0.4]]))  # by the first, by the second model
    seen = views(2, samples=2)
    with torch.no_grad():
        plans = method.plan(seen, networks, here)
        own = [(network(seen.views[0]).softmax(1) + network(seen.views[1]).softmax(1)) / 2 for network in networks]
    onehot = torch.eye(2)
    for k, trust in ((0, [0.2, 0.4]), (1, [0.9, 0.7])):
        w = torch.tensor(trust).unsqueeze(1)
        torch.testing.assert_close(plans[k].targets[:2], w * onehot + (1 - w) * own[k])


def test_cc_labels_by_each_models_own_critics(monkeypatch):
    """Sample i is central by model k if i % 2 == k, and consistent where the critics of k agree, for i < 6."""
    monkeypatch.setattr(cc, "centrality", lambda answer, labels, classes: answer[:, 0])
    monkeypatch.setattr(cc, "discrepancy", lambda answer, classes: answer[:, 1])
    monkeypatch.setattr(cc, "consistent", lambda differ, labels, least: differ < least)
    method = methods.create("cc", warmup_epochs=1, threshold=0.5, consistency=0.5)
    passed = []
    monkeypatch.setattr(method, "_drive_apart", lambda networks, number, rows, state: passed.append(rows.tolist()))
    here = state([0, 1] * 4, 2, held_out=torch.arange(8) == 7)
    method.on_train_start(here)
    here.epoch = 2
    number = torch.arange(8)
    here.engine.answers["critics"] = lambda networks: torch.stack(
        ((number % 2 == networks[0]).float(), (number >= 6).float()), dim=1
    )
    method.on_epoch_start([0, 1], here)
    assert passed == [[0, 2, 4, 6], [1, 3, 5]]
    for k, central, labeled in ((0, [0, 2, 4, 6], [0, 2, 4]), (1, [1, 3, 5], [1, 3, 5])):
        assert here.samples["cc_central"][:, k].nonzero().flatten().tolist() == central
        assert here.samples["cc_labeled"][:, k].nonzero().flatten().tolist() == labeled


# --- averages


def test_an_averaged_model_has_the_statistics_of_the_trained_one():
    method = methods.create("regce", decay=0.9)
    (network,) = method.build(Normed)
    network.norm.running_mean.fill_(7.0)
    network.norm.num_batches_tracked.fill_(3)
    before = method.average.fc.weight.clone()
    network.fc.weight.data += 1
    method.on_step_end([network], state([0, 1], 2))
    assert method.average.norm.running_mean.tolist() == [7.0, 7.0]
    assert int(method.average.norm.num_batches_tracked) == 3
    moved = 1 - 2 / 11  # min(.9, (1 + t) / (10 + t)) with t = 1
    torch.testing.assert_close(method.average.fc.weight, before + moved)
    assert method.predict([network], torch.full((2, 2), 7.0)).shape == (2, 2)
