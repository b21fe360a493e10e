"""Rates, counts and confusions of the class-conditional generators against their definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncsam import noise
from ncsam.noise.class_conditional import share
from ncsam.noise.class_maps import CIFAR100_SUPERCLASS, resolve_map
from ncsam.noise.inputs import draw_by_class, draw_rows

N = 50_000
CIFAR10 = np.arange(N) % 10
CIFAR100 = np.arange(N) % 100


def sigma(p, n):
    return np.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.8])
@pytest.mark.parametrize("labels", [CIFAR10, CIFAR100], ids=["10", "100"])
def test_symmetric_has_the_nominal_rate_and_even_confusions(labels, rate):
    record = noise.symmetric(labels, rate, seed=3)
    size = labels.max() + 1
    assert abs(record.rate - rate) < 4 * sigma(rate, N)
    off = record.transition[~np.eye(size, dtype=bool)]
    expected = rate / (size - 1)
    assert np.abs(off - expected).max() < 5 * sigma(expected, N / size)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_uniform_touches_exactly_and_realizes_less(rate):
    record = noise.uniform(CIFAR10, rate, seed=1)
    assert record.recipe["touched"] == round(rate * N)
    touched = round(rate * N)
    assert abs(record.mask.sum() - 0.9 * touched) < 4 * np.sqrt(touched * 0.9 * 0.1)
    assert abs(record.rate - rate * 0.9) < 0.005  # 20, 50, 90 % are 18, 45, 81 %
    off = record.transition[~np.eye(10, dtype=bool)]
    assert np.abs(off - rate / 10).max() < 5 * sigma(rate / 10, N / 10)


def test_uniform_touches_floor_of_rate_times_n_seen_from_outside():
    # Among a million classes hardly any touched label stays by chance, so the flips show how many were touched.
    labels = np.arange(10_001) % 7
    record = noise.uniform(labels, 0.3, num_classes=10**6, seed=0)
    assert record.mask.sum() == 3000


def test_exact_counts():
    labels = np.repeat([0, 1, 2], [1000, 501, 7])
    exact = noise.symmetric(labels, 0.4, seed=0, count="exact")
    assert exact.mask.sum() == int(0.4 * 1508)
    per_class = noise.symmetric(labels, 0.4, seed=0, count="exact_per_class")
    assert [int(per_class.mask[labels == c].sum()) for c in range(3)] == [400, 200, 2]
    pairs = noise.pairflip(labels, 0.4, seed=0, count="exact_per_class")
    assert [int(pairs.mask[labels == c].sum()) for c in range(3)] == [400, 200, 2]


def test_fixed_count_per_class_of_cifar100_is_300():
    record = noise.symmetric(CIFAR100, 0.6, seed=0, count="exact_per_class")
    assert (np.bincount(CIFAR100[record.mask], minlength=100) == 300).all()


@given(st.integers(1, 2000), st.integers(0, 1000))
def test_share_is_the_floor_of_the_decimal(total, thousandths):
    assert share(thousandths / 1000, total) == thousandths * total // 1000


def test_pairflip_goes_one_up():
    record = noise.pairflip(CIFAR10, 0.45, seed=0)
    assert set((record.noisy - record.clean)[record.mask] % 10) == {1}
    assert abs(record.rate - 0.45) < 4 * sigma(0.45, N)
    assert (record.noisy[record.mask & (CIFAR10 == 9)] == 0).all()


@pytest.mark.parametrize("count", ["bernoulli", "exact", "exact_per_class"])
def test_asymmetric_cifar10(count):
    record = noise.asymmetric(CIFAR10, 0.4, class_map="cifar10", seed=0, count=count)
    expected = np.eye(10)
    for source, target in {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}.items():
        expected[source, source], expected[source, target] = 0.6, 0.4
    limit = 1e-12 if count == "exact_per_class" else 5 * sigma(0.4, N / 10)
    assert np.abs(record.transition - expected).max() < limit
    assert (record.transition[[0, 1, 6, 7, 8]] == expected[[0, 1, 6, 7, 8]]).all()
    # From frozen labels: the total is half the nominal rate. In-place mapping would give 18.4 % here.
    assert abs(record.rate - 0.2) < (1e-12 if count == "exact_per_class" else 4 * sigma(0.2, N))


def test_cats_turned_dogs_are_not_turned_back():
    # In place, all cats would become dogs and then all dogs cats.
    record = noise.asymmetric(CIFAR10, 1.0, class_map="cifar10", seed=0)
    assert (record.noisy[CIFAR10 == 3] == 5).all()
    assert (record.noisy[CIFAR10 == 5] == 3).all()


def test_cifar100_superclass_map_keeps_the_coarse_label():
    coarse = np.array(CIFAR100_SUPERCLASS)
    assert (np.bincount(coarse) == 5).all()
    record = noise.asymmetric(CIFAR100, 0.4, class_map="cifar100_superclass", seed=0)
    assert (coarse[record.noisy] == coarse[record.clean]).all()
    assert abs(record.rate - 0.4) < 4 * sigma(0.4, N)
    targets = resolve_map("cifar100_superclass", 100, 0)
    assert sorted(targets) == list(range(100))
    # aquatic mammals: beaver 4, dolphin 30, otter 55, seal 72, whale 95
    assert [targets[c] for c in (4, 30, 55, 72, 95)] == [30, 55, 72, 95, 4]


def test_cifar100_block_map_is_cyclic_in_fives_and_seldom_within_a_superclass():
    targets = np.array(resolve_map("cifar100_blocks", 100, 0))
    assert targets.tolist() == [5 * (c // 5) + (c % 5 + 1) % 5 for c in range(100)]
    coarse = np.array(CIFAR100_SUPERCLASS)
    assert (coarse[targets] == coarse).mean() == 0.06
    record = noise.asymmetric(CIFAR100, 0.3, class_map="cifar100_blocks", seed=0)
    assert set(zip(record.clean[record.mask], record.noisy[record.mask], strict=True)) == set(enumerate(targets))


def test_cifar100_block_pairs_swap_two_of_each_block():
    targets = np.array(resolve_map("cifar100_block_pairs", 100, 5))
    assert (targets[targets] == np.arange(100)).all()
    moved = np.flatnonzero(targets != np.arange(100))
    assert (np.bincount(moved // 5) == 2).all()
    assert (moved // 5 == targets[moved] // 5).all()
    assert resolve_map("cifar100_block_pairs", 100, 6) != tuple(targets)


def test_next_class_map_is_pairflip():
    record = noise.asymmetric(CIFAR100, 0.4, class_map="next_class", seed=0)
    assert set((record.noisy - record.clean)[record.mask] % 100) == {1}


def test_maps_of_the_user():
    labels = [0, 1, 2, 2]
    assert noise.asymmetric(labels, 1.0, class_map={2: 0}).noisy.tolist() == [0, 1, 0, 0]
    assert noise.asymmetric(labels, 1.0, class_map=[1, 2, 0]).noisy.tolist() == [1, 2, 0, 0]
    # A sequence states the number of classes, so a subset without class 2 needs nothing more.
    assert noise.asymmetric([0, 0, 1], 1.0, class_map=[1, 2, 0]).num_classes == 3


def test_transition_matrix_is_followed():
    matrix = np.array([[0.7, 0.2, 0.1], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])
    labels = np.arange(60_000) % 3
    record = noise.from_transition(labels, transition=matrix, seed=0)
    assert np.abs(record.transition - matrix).max() < 5 * sigma(0.5, 20_000)
    assert (record.transition == 0).tolist() == (matrix == 0).tolist()


def test_transition_scaled_to_a_rate_keeps_the_confusions_in_proportion():
    matrix = np.array([[0.8, 0.15, 0.05], [0.0, 1.0, 0.0], [0.1, 0.3, 0.6]])
    labels = np.repeat([0, 1, 2], [30_000, 30_000, 60_000])
    record = noise.from_transition(labels, 0.3, transition=matrix, seed=0)
    factor = 0.3 / (0.25 * 0.2 + 0.5 * 0.4)
    assert abs(record.rate - 0.3) < 4 * sigma(0.3, len(labels))
    assert abs(record.transition[0, 1] - factor * 0.15) < 5 * sigma(0.18, 30_000)
    assert abs(record.transition[2, 1] - factor * 0.3) < 5 * sigma(0.36, 60_000)
    with pytest.raises(ValueError, match=r"rate=0\.9.*at most 0\.625"):
        noise.from_transition(labels, 0.9, transition=matrix)


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1, 0)])
def test_a_class_of_probability_zero_is_never_drawn(uniform):
    probabilities = np.array([[0.0, 0.3, 0.7, 0.0]])
    expected = 1 if uniform == 0 else 2
    assert draw_rows(probabilities, np.array([uniform])).tolist() == [expected]
    matrix = np.repeat(probabilities, 4, axis=0)
    assert draw_by_class(matrix, np.array([3, 0]), None, np.full(2, uniform)).tolist() == [expected] * 2


ALL = {
    "symmetric": {},
    "uniform": {},
    "pairflip": {},
    "asymmetric": {"class_map": "next_class"},
    "from_transition": {"transition": np.full((10, 10), 0.1)},
    "instance": {"inputs": np.random.default_rng(0).random((500, 6)), "input": "unit"},
    "instance_shared": {"inputs": np.random.default_rng(0).random((500, 6)), "input": "unit"},
    "beta_instance": {},
    "from_model": {"probabilities": np.random.default_rng(0).dirichlet(np.ones(10), 500), "pick": "sampled"},
}


@pytest.mark.parametrize("name", noise.GENERATORS)
def test_every_generator_keeps_the_callers_labels_and_repeats_itself(name):
    labels = np.arange(500) % 10
    before = labels.copy()
    options = ALL[name]
    one = noise.make(name, labels, 0.4, num_classes=10, seed=7, **options)
    assert (labels == before).all()
    assert one.mask.any()
    assert (one.clean == before).all()
    assert one.seed == 7
    assert one.recipe["name"] == name
    assert one.recipe["rate"] == 0.4
    for same in (labels.tolist(), torch.tensor(labels), labels.astype(np.uint8)):
        assert noise.make(name, same, 0.4, num_classes=10, seed=7, **options).sha256 == one.sha256
    assert noise.make(name, labels, 0.4, num_classes=10, seed=8, **options).sha256 != one.sha256
    with pytest.raises(ValueError, match="read-only"):
        one.noisy[0] = 1


# Not for the projections: a normal of mean 0, truncated to [0, 1], is positive.
@pytest.mark.parametrize("name", [name for name in noise.GENERATORS if not name.startswith("instance")])
def test_rate_zero_changes_nothing(name):
    labels = np.arange(500) % 10
    assert noise.make(name, labels, 0.0, **ALL[name]).mask.sum() == 0


def test_labels_of_a_seed_stay_what_they_are():
    # Published results name a seed; a change of these values changes everybody's labels.
    labels = np.arange(12) % 4
    assert noise.symmetric(labels, 0.5, seed=0).noisy.tolist() == [0, 2, 2, 1, 0, 3, 1, 3, 0, 3, 0, 3]
    assert noise.uniform(labels, 0.5, seed=0).noisy.tolist() == [0, 1, 2, 1, 0, 3, 1, 2, 2, 1, 2, 3]


def test_seed_shared_with_the_data_gives_other_numbers():
    # Drawing the data with default_rng(0) and corrupting with seed 0 must not be correlated.
    data = np.random.default_rng(0).random(20_000)
    record = noise.symmetric(np.arange(20_000) % 10, 0.4, seed=0)
    assert abs(np.corrcoef(data, record.mask)[0, 1]) < 4 / np.sqrt(20_000)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.floats(0, 1),
    st.integers(0, 2**32),
    st.sampled_from(["bernoulli", "exact", "exact_per_class"]),
)
def test_any_labels_give_valid_noise(labels, rate, seed, count):
    for name in ("symmetric", "uniform", "pairflip"):
        record = noise.make(name, labels, rate, num_classes=6, seed=seed, count=count)
        assert record.clean.tolist() == labels
        assert 0 <= record.noisy.min() <= record.noisy.max() < 6
        if count == "exact" and name != "uniform":
            assert record.mask.sum() == share(rate, len(labels))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 1.5}, r"rate=1\.5"),
        ({"rate": float("nan")}, "rate=nan"),
        ({"rate": "0.4"}, "rate='0.4'"),
        ({"rate": None}, "rate=None"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"count": "exactly"}, "unknown count 'exactly'.*Did you mean 'exact'"),
        ({"labels": [0, 1, 3]}, r"num_classes=None.*every class from 0 to 3"),
        ({"labels": [0, 1, 3], "num_classes": 3}, r"labels\[2\]=3"),
        ({"labels": [0, -1, 1]}, r"labels\[1\]=-1"),
        ({"labels": [0.0, 1.0]}, r"labels\.dtype='float64'"),
        ({"labels": []}, r"labels\.shape"),
        ({"labels": [[0, 1]]}, r"labels\.shape=\(1, 2\)"),
        ({"labels": [0, 0]}, "num_classes"),
        ({"num_classes": 1}, "num_classes=1"),
        ({"num_classes": 2.0}, r"num_classes=2\.0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    arguments = {"labels": [0, 1, 1, 0], "rate": 0.4, **arguments}
    with pytest.raises(ValueError, match=message):
        noise.symmetric(**arguments)


def test_bad_maps_and_matrices_are_named():
    with pytest.raises(ValueError, match=r"unknown class map 'cifar1'.*cifar10"):
        noise.asymmetric([0, 1], 0.4, class_map="cifar1")
    with pytest.raises(ValueError, match=r"num_classes=2: .*10"):
        noise.asymmetric([0, 1], 0.4, class_map="cifar10", num_classes=2)
    with pytest.raises(ValueError, match=r"class_map='1 to 5'.*0 to 1"):
        noise.asymmetric([0, 1], 0.4, class_map={1: 5})
    with pytest.raises(ValueError, match=r"transition\.shape=\(2, 3\)"):
        noise.from_transition([0, 1], transition=np.ones((2, 3)) / 3)
    with pytest.raises(ValueError, match=r"transition\[1\]\.sum\(\)=0\.5"):
        noise.from_transition([0, 1], transition=[[1, 0], [0.5, 0]])
    with pytest.raises(ValueError, match="negative"):
        noise.from_transition([0, 1], transition=[[1.5, -0.5], [0, 1]])
    with pytest.raises(ValueError, match=r"'symetric'.*'symmetric'"):
        noise.make("symetric", [0, 1], 0.4)
