"""What a generator cannot take is said in one sentence that names it, and no number makes it run for ever."""

import numpy as np
import pytest

from ncsam import noise

LABELS = np.arange(12) % 3
PIXELS = np.random.default_rng(0).integers(0, 256, (12, 4)).astype(np.float64)
RAGGED = [[1, 2], [3]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        # nearly no draw of so wide a normal falls into [0, 1]: it was drawn from for ever
        (
            lambda: noise.instance(LABELS, 0.3, inputs=PIXELS, std=1e9),
            "std=1000000000.0",
        ),
        (lambda: noise.instance_shared(LABELS, 0.3, inputs=PIXELS, seed=2**32), "seed=4294967296"),
        (
            lambda: noise.pairflip(LABELS, 0.3, num_classes=10**9),
            "num_classes=1000000000",
        ),
        (lambda: noise.symmetric(LABELS, 0.3, num_classes=True), "num_classes=True"),
        (lambda: noise.symmetric(LABELS, 0.3, count=[]), r"unknown count \[\]"),
        (lambda: noise.symmetric(RAGGED, 0.3), "labels=.*"),
        (lambda: noise.asymmetric(LABELS, 0.3, class_map=0.5), "class_map=0.5"),
        (lambda: noise.asymmetric(LABELS, 0.3, class_map=np.array(0.5)), "class_map=.*"),
        (lambda: noise.asymmetric(LABELS, 0.3, class_map=["a", 1, 2]), "class_map='0 to a'"),
        (lambda: noise.asymmetric(LABELS, 0.3, class_map={None: 1}), "class_map='None to 1'"),
        (lambda: noise.from_transition(LABELS, transition=RAGGED), "transition=.*"),
        (lambda: noise.from_transition(LABELS, transition=np.eye(3) * 1j), "transition.dtype='complex128'"),
        (lambda: noise.from_model(LABELS, 0.3, probabilities=RAGGED), "probabilities=.*"),
        (
            lambda: noise.from_model(LABELS, 0.3, probabilities=np.eye(3)[LABELS], seed=[0]),
            r"seed=\[0\]",
        ),
        (lambda: noise.from_model(LABELS, 0.3, probabilities=np.eye(3)[LABELS], pick=[]), r"unknown pick \[\]"),
        (lambda: noise.estimate_noise(LABELS, RAGGED), "probabilities=.*"),
        (lambda: noise.beta_instance(LABELS, 0.3, input=["raw255"]), r"unknown input scale \['raw255'\]"),
        (lambda: noise.make(["symmetric"], LABELS, 0.3), r"unknown noise \['symmetric'\]"),
        (lambda: noise.NoisyLabels(LABELS, LABELS, 3, "by hand"), "recipe='by hand'"),
        (lambda: noise.NoisyLabels(LABELS, LABELS, 3, {}, seed="x"), "seed='x'"),
        (
            lambda: noise.NoisyLabels(LABELS, LABELS, 3, {}, flip_probability=["a"] * 12),
            "flip_probability.dtype='<U1'",
        ),
    ],
)
def test_wrong_arguments(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_numbers_of_numpy():
    record = noise.symmetric(LABELS, np.float32(0.5), num_classes=np.int64(3), seed=np.int64(1))
    assert (record.num_classes, record.recipe["rate"]) == (3, 0.5)
    assert type(record.num_classes) is int


def test_what_numpy_has_made_can_be_saved(tmp_path):
    """JSON knows no numbers of numpy."""
    half, seed, size = np.float32(0.5), np.int64(1), np.int64(3)
    for record in (
        noise.symmetric(LABELS, half, num_classes=size, seed=seed),
        noise.beta_instance(LABELS, half, concentration=np.float32(2), seed=seed),
        noise.NoisyLabels(LABELS, LABELS, size, {}, seed),
    ):
        read = noise.NoisyLabels.load(record.save(tmp_path / "labels"))
        assert (read.num_classes, read.seed, read.sha256) == (3, 1, record.sha256)
    with pytest.raises(ValueError, match="num_classes=None"):
        noise.NoisyLabels(LABELS, LABELS, None, {})
