"""The authors' variant of NCSAM against a slow implementation of its own, with and without BatchNorm; its control."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from optim_cases import batch, largest_difference, network, parameters, same_bits, sgd, twin
from torch import nn

from ncsam import NCSAM, SAM
from ncsam.optim import AuthorsNCSAM, LengthMatchedSAM, get, reference
from ncsam.optim.clusters import kmeans
from ncsam.optim.flipping import criterion_by_name, flipped_labels
from ncsam.optim.ramps import smooth
from ncsam.optim.row_forward import RowForward


class Normed(nn.Module):
    """BatchNorm of features, which differ in training and evaluation mode."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x.flatten(1)[:, :6]))))


def make_network(name):
    if name != "normed":
        return network(name)
    torch.manual_seed(0)
    return Normed().double()


@pytest.mark.parametrize(
    ("name", "kind", "size", "clusters"),
    [
        ("mlp", LengthMatchedSAM, 24, 3),
        ("convolutional", AuthorsNCSAM, 24, 5),
        ("normed", AuthorsNCSAM, 24, 3),
        # often a single flipped row: BatchNorm can normalize that of an image, but not that of a vector
        ("convolutional", AuthorsNCSAM, 6, 3),
        ("normed", LengthMatchedSAM, 6, 3),
    ],
)
def test_against_the_reference(name, kind, size, clusters):
    """50 steps in float64; flips, features and BatchNorm statistics must all agree for that."""
    model = make_network(name)
    other = twin(model)
    generator, draws = (torch.Generator().manual_seed(5) for _ in range(2))
    options = {"total_steps": 50, "warmup_steps": 5, "generator": generator, "clusters": clusters}
    optimizer = kind(sgd(model, lr=0.02), 0.05, 0.25, 0.4, **options)
    base = sgd(other, lr=0.02)
    flipped = []
    for i in range(50):
        x, y = batch(i, size=size)
        optimizer.step(lambda: model(x), y)  # noqa: B023
        if i < 5:
            final, _ = reference.gradient(other, x, y)
        else:
            strength = 0.25 * smooth((i + 1) / 50)
            only_length = kind is LengthMatchedSAM
            final = reference.authors(other, x, y, 0.05, strength, 0.4, draws, only_length, clusters)
            flipped.append(0 if optimizer.last_flips is None else len(optimizer.last_flips.index))
        other(x)  # the mixed pass alone updates BatchNorm's statistics
        for n, p in other.named_parameters():
            p.grad = final.get(n)
        base.step()
    assert sum(flipped) > 100 if size == 24 else flipped.count(1) > 5
    assert largest_difference(model, other) < 1e-10


def test_the_strength_follows_whole_epochs_where_progress_is_set():
    """In the authors' code t = e / T in all steps of epoch e; without `progress` it counts steps."""
    for epochs, expected in ((True, [0.25 * smooth(2 / 4)] * 3), (False, [0.25 * smooth(i / 12) for i in (4, 5, 6)])):
        model = network()
        optimizer = NCSAM.authors(sgd(model), steps_per_epoch=3, epochs=4, warmup_steps=3)
        found = []
        for i in range(6):
            if epochs:
                optimizer.progress = (i // 3 + 1) / 4
            x, y = batch(i)
            optimizer.step(lambda: model(x), y)  # noqa: B023
            found.append(optimizer.last_step.strength)
        assert found[:3] == [None] * 3  # warm-up
        assert found[3:] == pytest.approx(expected)


def test_the_classmethod_has_their_defaults():
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = NCSAM.authors(base, gamma=1.25, flip_ratio=0.2, steps_per_epoch=10)
    by_name = get("ncsam-authors")(torch.optim.SGD(model.parameters(), lr=0.05), total_steps=1)
    assert (optimizer.kappa, optimizer.flip_ratio, optimizer.rho) == (1.25, 0.2, 0.05)
    assert (optimizer.total_steps, optimizer.warmup_steps) == (2000, 490)
    assert (by_name.kappa, by_name.flip_ratio, by_name.rho) == (0.25, 0.4, 0.05)
    for each in (optimizer, by_name):
        found = (each.projection, each.sign, each.selection, each.flip_target, each.flip_forward, each.clusters)
        assert found == (False, 1, "clusters", "random", "separate", 3)
        assert (each.compensation, each.noise_mean, each.warmup) == ("absolute", "flipped", "base")
    with pytest.raises(ValueError, match="estimator='fused'"):
        NCSAM.authors(base, steps_per_epoch=1, estimator="fused")
    assert isinstance(LengthMatchedSAM.authors(base, steps_per_epoch=1), LengthMatchedSAM)


def test_without_strength_both_are_sam():
    model = network("convolutional", torch.float32)
    others = [twin(model), twin(model)]
    optimizers = [SAM(sgd(model), 0.2), *(k(sgd(m), 0.2, 0.0, total_steps=1) for k, m in zip((AuthorsNCSAM, LengthMatchedSAM), others))]  # fmt: skip  # noqa: B905,E501
    for i in range(4):
        x, y = batch(i, dtype=torch.float32)
        for optimizer, m in zip(optimizers, [model, *others], strict=True):
            optimizer.step(lambda: m(x), y)  # noqa: B023
    assert same_bits(parameters(model), parameters(others[0]))
    assert same_bits(parameters(model), parameters(others[1]))


def test_the_control_has_the_length_and_sams_direction():
    """From one point and with the same draws, ||eps|| is equal and eps of the control is along g_B."""
    x, y = batch(size=32)
    moved = {}
    for kind in (AuthorsNCSAM, LengthMatchedSAM):
        model = network("convolutional")
        before = parameters(model)
        at = []

        def forward(model=model, at=at):
            at.append(parameters(model))
            return model(x)

        optimizer = kind(sgd(model), 0.05, 2.0, total_steps=1, generator=torch.Generator().manual_seed(0), model=model)
        optimizer.step(forward, y)
        moved[kind] = torch.cat([(a - b).flatten() for a, b in zip(at[-1], before, strict=True)])
    g = reference.gradient(network("convolutional"), x, y)[0]
    g = torch.cat([v.flatten() for v in g.values()])
    ours, control = moved[AuthorsNCSAM], moved[LengthMatchedSAM]
    assert ours.norm() == pytest.approx(float(control.norm()), rel=1e-9)
    assert float(ours.norm()) > 0.06  # not rho
    assert F.cosine_similarity(control, g, dim=0) == pytest.approx(1.0, abs=1e-12)
    assert F.cosine_similarity(ours, g, dim=0) < 0.99


def test_two_phases_record_inside_the_first_pass():
    x, y = batch(size=24)
    results = []
    for phases in (False, True):
        model = network("convolutional")
        draws = torch.Generator().manual_seed(2)
        optimizer = AuthorsNCSAM(sgd(model), kappa=2.0, total_steps=1, generator=draws, model=model)
        if phases:
            with optimizer.first_pass():
                logits = model(x)
                optimizer.backward(F.cross_entropy(logits, y), logits, y)
            for perturbed in optimizer.perturbations():
                with perturbed:
                    optimizer.backward(F.cross_entropy(model(x), y))
            optimizer.step()
        else:
            optimizer.step(lambda: model(x), y)  # noqa: B023
        results.append(parameters(model))
    assert same_bits(*results)
    logits = model(x)
    with pytest.raises(RuntimeError, match=r"first_pass\(\)"):
        optimizer.backward(F.cross_entropy(logits, y), logits, y)


def test_smoothing_spares_the_label_itself():
    """Four classes: .9 for the label and .1 / 3 for each other."""
    z = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=torch.float64)
    log = z.log_softmax(1)[0]
    expected = -(0.9 * log[2] + 0.1 / 3 * (log[0] + log[1] + log[3]))
    torch.testing.assert_close(criterion_by_name("smoothed_ce")(z, torch.tensor([2])), expected)


def test_random_labels_are_uniform_over_the_others():
    size = 30_000
    observed = torch.arange(size) % 4
    draws = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = flipped_labels(torch.zeros(size, 4), observed, "random", draws)
    assert not bool((labels == observed).any())
    for c in range(4):
        shares = torch.bincount(labels[observed == c], minlength=4) / (size / 4)
        expected = torch.full((4,), 1 / 3).index_fill(0, torch.tensor(c), 0.0)
        assert float((shares - expected).abs().max()) < 4 * math.sqrt(2 / 9 / (size / 4))


def test_kmeans_finds_what_is_apart_and_agrees_with_the_slow_one():
    generator = torch.Generator().manual_seed(3)
    centers = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    truth = torch.arange(60) % 3
    x = centers[truth] + torch.randn(60, 2, generator=generator)
    draws = torch.rand(10, 3, dtype=torch.float64, generator=generator)
    found = kmeans(x, 3, draws)
    assert len({(int(a), int(b)) for a, b in zip(found, truth, strict=True)}) == 3
    noise = torch.randn(40, 5, generator=generator)
    assert kmeans(noise, 3, draws).tolist() == reference.kmeans(noise.tolist(), 3, draws.tolist())


def test_the_statistics_are_those_of_one_clean_pass():
    model = make_network("normed")
    other = copy.deepcopy(model)
    x, y = batch(size=24)
    AuthorsNCSAM(sgd(model, lr=0.0), kappa=1.0, total_steps=1).step(lambda: model(x), y)
    other(x)
    assert same_bits(list(model.buffers()), list(other.buffers()))
    assert all(module.training for module in model.modules())


class _Pair(nn.Module):
    """A model that returns more than logits, as some methods need."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x), self.model(x)


@pytest.mark.parametrize("kind", ["selected rows", "two outputs"])
def test_logits_of_other_rows_than_the_models_are_rejected(kind):
    """Methods that select samples, or whose model returns more than logits, get a clear error."""
    x, y = batch(size=24)
    plain = network()
    model = plain if kind == "selected rows" else _Pair(plain)
    optimizer = AuthorsNCSAM(sgd(model), kappa=2.0, total_steps=1, model=model)
    rows = slice(20) if kind == "selected rows" else slice(None)

    def forward():
        found = model(x)
        return (found if kind == "selected rows" else found[0])[rows]

    with pytest.raises(ValueError, match="flip_forward='separate'"):
        optimizer.step(forward, y[rows])


def test_what_was_recorded_outlasts_forwards_of_some_rows():
    """Features and logits of rows can be asked for in any order, and again."""
    model = make_network("normed")
    x, _ = batch(size=24)
    forward = RowForward()
    with forward.recording((model,), statistics=True):
        model(x)
        features = forward.features(24)
        logits = forward.logits(torch.tensor([3, 5, 8]), 24)
        forward.restore()
        assert torch.equal(forward.features(24), features)
        again = forward.logits(torch.tensor([3, 5, 8]), 24)
        forward.restore()
    assert torch.equal(logits, again)
