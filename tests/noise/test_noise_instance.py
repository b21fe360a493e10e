"""Instance-dependent noise against slow per-sample references and closed forms."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
import torch

from ncsam import noise
from ncsam.noise.inputs import stream

RNG = np.random.default_rng(42)


def softmax(a):
    e = np.exp(a - a.max())
    return e / e.sum()


def truncated_mean(mean, std):
    """E of Normal(mean, std) given that it lies in [0, 1]."""
    low, high = -mean / std, (1 - mean) / std
    density = lambda z: math.exp(-z * z / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    below = lambda z: (1 + math.erf(z / math.sqrt(2))) / 2  # noqa: E731
    return mean + std * (density(low) - density(high)) / (below(high) - below(low))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.1, 0.12876), (0.2, 0.20552), (0.3, 0.30044), (0.4, 0.40001), (0.5, 0.5), (0.6, 0.59999), (0.8, 0.79448)],
)
@pytest.mark.parametrize("name", ["instance", "instance_shared"])
def test_mean_flip_probability_is_that_of_the_truncated_normal(name, rate, expected):
    assert truncated_mean(rate, 0.1) == pytest.approx(expected, abs=1e-5)
    labels = np.arange(200_000) % 2
    record = noise.make(name, labels, rate, inputs=np.ones((len(labels), 1)), input="unit", seed=0)
    q = record.flip_probability
    assert 0 <= q.min() <= q.max() <= 1
    assert abs(q.mean() - expected) < 4 * 0.1 / math.sqrt(len(labels))
    mean = q.mean()
    assert abs(record.rate - mean) < 4 * math.sqrt(mean * (1 - mean) / len(labels))


@pytest.mark.parametrize("scale", ["raw255", "unit", "normalized"])
def test_instance_equals_a_slow_reference(scale):
    size, seed = 5, 11
    images = RNG.integers(0, 256, (300, 8, 2, 3), dtype=np.uint8)
    labels = RNG.integers(0, size, 300)
    record = noise.instance(labels, 0.5, inputs=images, num_classes=size, seed=seed, input=scale)

    pixels = images.transpose(0, 3, 1, 2).astype(float)
    if scale != "raw255":
        pixels = pixels / 255
    if scale == "normalized":
        mean, std = pixels.mean(axis=(0, 2, 3), keepdims=True), pixels.std(axis=(0, 2, 3), keepdims=True)
        pixels = (pixels - mean) / std
    rng = stream(seed, "instance")
    drawn = rng.normal(0.5, 0.1, 600)
    q = drawn[(drawn >= 0) & (drawn <= 1)][:300]
    coin = rng.random(300)
    uniforms = stream(seed, "projection/draw").random(300)
    W = [stream(seed, f"projection/{c}").standard_normal((48, size)) for c in range(size)]
    for i, y in enumerate(labels):
        expected = y
        if coin[i] < q[i]:
            a = pixels[i].reshape(-1) @ W[y]
            a[y] = -np.inf
            expected = np.flatnonzero(softmax(a).cumsum() > uniforms[i])[0]
        assert record.noisy[i] == expected
    assert (record.flip_probability == q).all()


def test_instance_labels_follow_the_softmax_of_the_projection():
    # One input 60,000 times, so that the frequencies of the wrong labels show its probabilities.
    size, x, y = 4, np.array([0.3, 0.9, 0.1]), 2
    labels = np.full(60_000, y)
    record = noise.instance(labels, 0.5, inputs=np.tile(x, (60_000, 1)), num_classes=size, seed=1, input="unit")
    a = x @ stream(1, f"projection/{y}").standard_normal((3, size))
    a[y] = -np.inf
    frequencies = np.bincount(record.noisy[record.mask], minlength=size) / record.mask.sum()
    assert np.abs(frequencies - softmax(a)).max() < 5 * 0.5 / math.sqrt(record.mask.sum())
    assert frequencies[y] == 0


def test_projections_differ_between_classes_and_agree_within():
    # With raw pixels the softmax is one-hot: a class goes to one other class, and different classes to different ones.
    inputs = np.full((2000, 50), 200.0)
    labels = np.arange(2000) % 10
    record = noise.instance(labels, 0.5, inputs=inputs, seed=0)
    targets = [set(record.noisy[record.mask & (labels == c)]) for c in range(10)]
    assert all(len(target) == 1 for target in targets)
    assert len(set.union(*targets)) > 3
    shared = noise.instance_shared(labels, 0.5, inputs=inputs, seed=0)
    assert len(set(shared.noisy[shared.mask])) == 2  # the favorite class, and the runner-up for its own samples


def test_layout_and_container_do_not_matter():
    images = RNG.integers(0, 256, (200, 6, 5, 3), dtype=np.uint8)
    labels = RNG.integers(0, 4, 200)
    first = torch.tensor(images).permute(0, 3, 1, 2)
    flat = first.reshape(200, -1)
    for name in ("instance", "instance_shared"):
        for scale in ("raw255", "normalized"):
            make = lambda x, name=name, scale=scale: noise.make(name, labels, 0.4, inputs=x, input=scale, num_classes=4)  # noqa: E731
            assert make(images).sha256 == make(first).sha256
        assert make(images).sha256 != make(255 - images).sha256
        assert noise.make(name, labels, 0.4, inputs=flat, num_classes=4).sha256 == (
            noise.make(name, labels, 0.4, inputs=images, num_classes=4).sha256
        )


def test_shared_projection_has_the_published_column_order():
    legacy = np.random.RandomState(0)
    legacy.normal(0.2, 0.1, 1_000_000)
    order = np.argsort(-legacy.normal(0, 1, (3072, 10)).sum(axis=0))
    assert order.tolist() == [2, 8, 7, 6, 9, 1, 4, 3, 5, 0]
    # On flat gray images the favorite is exactly that order: 2 for all, 8 for class 2 itself.
    labels = np.arange(2000) % 10
    record = noise.instance_shared(labels, 0.2, inputs=np.full((2000, 32, 32, 3), 128, np.uint8), seed=0)
    wrong = record.mask
    assert set(record.noisy[wrong & (labels != 2)]) == {2}
    assert set(record.noisy[wrong & (labels == 2)]) == {8}


def test_shared_projection_of_random_pixels_prefers_class_two():
    images = RNG.integers(0, 256, (1000, 3, 32, 32), dtype=np.uint8)
    record = noise.instance_shared(np.arange(1000) % 10, 0.4, inputs=images, seed=0)
    assert np.bincount(record.noisy[record.mask], minlength=10).argmax() == 2


def test_shared_projection_equals_numpys_own_choice_sample_by_sample():
    images = RNG.integers(0, 256, (400, 3, 4, 4), dtype=np.uint8)
    labels = RNG.integers(0, 6, 400)
    record = noise.instance_shared(labels, 0.3, inputs=images, num_classes=6, seed=5, input="unit")
    legacy = np.random.RandomState(5)
    drawn = legacy.normal(0.3, 0.1, 1_000_000)
    q = drawn[(drawn > 0) & (drawn < 1)][:400]
    W = legacy.normal(0, 1, (48, 6))
    for i, y in enumerate(labels):
        a = (images[i].reshape(-1) / 255) @ W
        a[y] = -1e6
        p = q[i] * softmax(a)
        p[y] = 1 - q[i]
        assert record.noisy[i] == legacy.choice(6, p=p / p.sum())


def test_no_array_of_samples_by_classes_by_pixels_is_made():
    count, width = 12_000, 3072
    images = RNG.integers(0, 256, (count, width), dtype=np.uint8)
    tracemalloc.start()
    noise.instance(np.arange(count) % 2, 0.9, inputs=images)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 75e6  # the whole array would be 590 MB, the rows of one class at once 133 MB


@pytest.mark.parametrize(("theta1", "theta2"), [(2.0, 6.0), (0.5, 0.5), (8.0, 2.0)])
def test_beta_flip_probabilities_have_the_moments_of_the_law(theta1, theta2):
    labels = np.arange(100_000) % 10
    record = noise.beta_instance(labels, theta1=theta1, theta2=theta2, seed=0)
    total = theta1 + theta2
    mean, variance = theta1 / total, theta1 * theta2 / (total**2 * (total + 1))
    p = record.flip_probability
    assert abs(p.mean() - mean) < 4 * math.sqrt(variance / len(p))
    assert p.var() == pytest.approx(variance, rel=0.03)
    assert abs(record.rate - mean) < 4 * math.sqrt(mean * (1 - mean) / len(p))
    assert record.recipe["rate"] == pytest.approx(mean)
    # Each sample is wrong with its own probability, not merely with the mean.
    edges = np.quantile(p, np.linspace(0, 1, 11))
    for low, high in itertools.pairwise(edges):
        here = (p >= low) & (p <= high)
        own = p[here].mean()
        assert abs(record.mask[here].mean() - own) < 4.5 * math.sqrt(max(own * (1 - own), 1e-4) / here.sum())


def test_beta_rate_and_concentration_state_the_thetas():
    labels = np.arange(1000) % 10
    by_rate = noise.beta_instance(labels, 0.4, concentration=5, seed=0)
    by_theta = noise.beta_instance(labels, theta1=2.0, theta2=3.0, seed=0)
    assert by_rate.sha256 == by_theta.sha256
    assert noise.beta_instance(labels, 1.0).mask.all()
    spread = [noise.beta_instance(labels, 0.4, concentration=c).flip_probability.std() for c in (0.1, 2, 1000)]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 0.02


def test_beta_mechanisms():
    labels = np.arange(30_000) % 3
    even = noise.beta_instance(labels, 0.5, seed=0)
    shares = even.transition / (1 - even.transition.diagonal())[:, None]
    assert np.abs(shares[~np.eye(3, dtype=bool)] - 0.5).max() < 5 * 0.5 / math.sqrt(5000)
    matrix = np.array([[0.9, 0.1, 0.0], [0.2, 0.2, 0.6], [0.0, 1.0, 0.0]])
    record = noise.beta_instance(labels, 0.5, transition=matrix, seed=0)
    assert (record.mask == even.mask).all()
    assert set(record.noisy[record.mask & (labels == 0)]) == {1}
    assert set(record.noisy[record.mask & (labels == 2)]) == {1}
    to_two = (record.noisy[record.mask & (labels == 1)] == 2).mean()
    assert abs(to_two - 0.75) < 5 * math.sqrt(0.75 * 0.25 / 5000)
    inputs = np.full((30_000, 20), 100.0)
    projected = noise.beta_instance(labels, 0.5, inputs=inputs, seed=0)
    assert (projected.mask == even.mask).all()
    assert all(len(set(projected.noisy[projected.mask & (labels == c)])) == 1 for c in range(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": np.zeros((3, 2))}, r"inputs='float64 \(3, 2\)'.*\(4, \.\.\.\)"),
        ({"inputs": np.zeros(4)}, r"inputs='float64 \(4,\)'"),
        ({"inputs": np.array([["a"]] * 4)}, "inputs='<U1"),
        ({"inputs": -np.ones((4, 2))}, "input='raw255'.*run from -1 to -1"),
        ({"inputs": np.ones((4, 2))}, "input='raw255'.*run from 1 to 1"),
        ({"inputs": np.full((4, 2), 9.0), "input": "unit"}, "input='unit'.*run from 9 to 9"),
        ({"inputs": np.full((4, 2), np.nan), "input": "normalized"}, "finite"),
        (
            {"inputs": np.ones((4, 2)), "input": "normalised"},
            "unknown input scale 'normalised'. Did you mean 'normalized'",
        ),
        ({"inputs": np.ones((4, 2)), "input": "unit", "std": 0}, "std=0"),
    ],
)
@pytest.mark.parametrize("name", ["instance", "instance_shared"])
def test_bad_inputs_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        noise.make(name, [0, 1, 0, 1], 0.4, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "rate=None.*both theta1 and theta2"),
        ({"theta1": 1.0}, "both theta1 and theta2"),
        ({"rate": 0.4, "theta1": 1.0, "theta2": 1.0}, "rate=0.4.*theta1"),
        ({"theta1": 0.0, "theta2": 1.0}, r"theta1=0\.0"),
        ({"rate": 0.4, "concentration": -1}, "concentration=-1"),
        ({"rate": 0.4, "transition": np.eye(2)}, r"transition\[0\]='no other class'"),
        ({"rate": 0.4, "transition": np.eye(2), "inputs": np.ones((4, 2))}, "transition='a matrix'"),
    ],
)
def test_bad_beta_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        noise.beta_instance([0, 1, 0, 1], **options)
