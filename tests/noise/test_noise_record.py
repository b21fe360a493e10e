"""The record: its figures, its print, its files."""

import hashlib
import json
import pickle
import struct

import numpy as np
import pytest

from ncsam import noise
from ncsam.noise import NoisyLabels, record


def example():
    return NoisyLabels([0, 0, 0, 0, 1, 1], [0, 1, 1, 2, 1, 0], 4, {"name": "by hand", "rate": 0.5}, 3)


def test_figures_by_hand():
    labels = example()
    assert labels.mask.tolist() == [False, True, True, True, False, True]
    assert labels.rate == pytest.approx(4 / 6)
    assert labels.transition[:2].tolist() == [[0.25, 0.5, 0.25, 0.0], [0.5, 0.5, 0.0, 0.0]]
    assert np.isnan(labels.transition[2:]).all()
    assert len(labels) == 6


def test_sha256_is_that_of_the_little_endian_words():
    assert example().sha256 == hashlib.sha256(struct.pack("<6q", 0, 1, 1, 2, 1, 0)).hexdigest()


def test_prints_a_short_table():
    assert str(example()).splitlines() == [
        "recipe      by hand(rate=0.5), seed 3",
        "samples     6 in 4 classes",
        "wrong       4 (66.67 %)",
        "kept        0.250 to 0.500 of a class",
        "most often  0 labeled 1 (0.500 of class 0)",
        "class sizes 0 to 3 by noisy label",
        f"sha256      {example().sha256}",
    ]
    assert repr(example()) == "<NoisyLabels by hand: 6 samples, 66.67 % wrong>"
    assert "seed" not in str(NoisyLabels([0, 1], [0, 1], 2, {"name": "file"}))
    assert "10,000" in str(NoisyLabels([0, 1], [0, 1], 10_000, {"name": "many"}))


@pytest.mark.parametrize("name", ["labels", "labels.npz", "labels.json", "deep/er/sym_0.4"])
def test_round_trip(tmp_path, name):
    made = noise.beta_instance(np.arange(400) % 300, 0.4, num_classes=300, seed=5)
    written = made.save(tmp_path / name)
    assert written.suffix == ".npz"
    assert sorted(path.suffix for path in written.parent.iterdir()) == [".json", ".npz"]
    for path in (written, tmp_path / name):
        back = NoisyLabels.load(path)
        assert (back.clean == made.clean).all()
        assert (back.noisy == made.noisy).all()
        assert back.noisy.dtype == np.int64
        assert (back.flip_probability == made.flip_probability).all()
        assert (back.recipe, back.seed, back.num_classes) == (made.recipe, 5, 300)
        assert str(back) == str(made)
    about = json.loads(written.with_name(written.name[:-4] + ".json").read_text())
    assert about["sha256"] == made.sha256
    assert about["rate"] == made.rate


@pytest.mark.parametrize("name", ["asymmetric", "from_transition", "uniform"])
def test_every_recipe_is_plain_json(tmp_path, name):
    options = {
        "asymmetric": {"class_map": {0: 1}},
        "from_transition": {"transition": np.full((2, 2), 0.5, np.float32)},
        "uniform": {},
    }
    made = noise.make(name, np.arange(10) % 2, np.float32(0.5), **options[name])
    assert NoisyLabels.load(made.save(tmp_path / "x")).recipe == made.recipe


def test_nothing_half_written_is_visible(tmp_path, monkeypatch):
    old = noise.symmetric(np.arange(50) % 5, 0.4, seed=0)
    old.save(tmp_path / "labels")

    def torn(file, **arrays):
        file.write(b"PK half of it")
        raise OSError("disk full")

    monkeypatch.setattr(record.np, "savez_compressed", torn)
    with pytest.raises(OSError, match="disk full"):
        noise.symmetric(np.arange(50) % 5, 0.4, seed=1).save(tmp_path / "labels")
    with pytest.raises(OSError, match="disk full"):
        old.save(tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.json", "labels.npz"]
    assert NoisyLabels.load(tmp_path / "labels").sha256 == old.sha256


def test_changed_labels_are_noticed(tmp_path):
    one = noise.symmetric(np.arange(50) % 5, 0.4, seed=0).save(tmp_path / "one")
    two = noise.symmetric(np.arange(50) % 5, 0.4, seed=1).save(tmp_path / "two")
    one.write_bytes(two.read_bytes())
    with pytest.raises(ValueError, match=r"one\.npz.*SHA-256.*one\.json"):
        NoisyLabels.load(one)


def test_damaged_foreign_and_missing_files_are_refused(tmp_path):
    path = noise.symmetric(np.arange(50) % 5, 0.4, seed=0).save(tmp_path / "labels")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="are not saved noisy labels"):
        NoisyLabels.load(path)
    path.with_suffix(".json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="not readable JSON"):
        NoisyLabels.load(path)
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(ValueError, match="does not say"):
        NoisyLabels.load(path)
    path.with_suffix(".json").write_text('{"format": "ncsam.NoisyLabels 1", "recipe": 3}')
    with pytest.raises(ValueError, match="holds no recipe"):
        NoisyLabels.load(path)
    with pytest.raises(FileNotFoundError):
        NoisyLabels.load(tmp_path / "nothing")


class Hostile:
    def __reduce__(self):
        return exec, ("raise SystemExit('ran')",)


def test_a_pickle_inside_is_not_run(tmp_path):
    path = noise.symmetric(np.arange(4) % 2, 0.4, seed=0).save(tmp_path / "labels")
    np.savez(path, clean=np.array([Hostile()], dtype=object), noisy=np.arange(4))
    with pytest.raises(ValueError, match="are not saved noisy labels"):
        NoisyLabels.load(path)


def test_records_survive_copies_and_guard_their_arrays():
    labels = [0, 1, 1]
    made = NoisyLabels(np.array(labels), np.array([1, 1, 1]), 2, {"name": "x"})
    assert pickle.loads(pickle.dumps(made)).sha256 == made.sha256
    mutable = np.array(labels)
    kept = NoisyLabels(mutable, mutable, 2, {"name": "x"})
    mutable[0] = 1
    assert kept.noisy.tolist() == labels
    for name, message in (({"noisy": [0, 1, 2]}, r"noisy\[2\]=2"), ({"noisy": [0, 1]}, r"len\(noisy\)=2")):
        with pytest.raises(ValueError, match=message):
            NoisyLabels(**{"clean": labels, "num_classes": 2, "recipe": {}, **name})


def test_plot_draws_the_transition_matrix():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    made = noise.pairflip(np.arange(100) % 5, 0.4, seed=0)
    ax = made.plot(class_names=list("abcde"))
    assert (ax.images[0].get_array() == made.transition).all()
    assert [tick.get_text() for tick in ax.get_xticklabels()] == list("abcde")
    assert noise.pairflip(np.arange(100), 0.4).plot(ax) is ax
    with pytest.raises(ValueError, match=r"len\(class_names\)=1"):
        made.plot(class_names=["a"])
    matplotlib.pyplot.close("all")
