"""`embed`: a plain forward's features, with labels and original samples kept; nothing is computed twice."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

sys.path.append(str(Path(__file__).parent))
import tiny_networks

from ncsam import data
from ncsam.cli.main import main
from ncsam.data.modalities import modality_of, restored_modality, saved_modality
from ncsam.embed import (
    FeatureCache,
    NamedTextEncoder,
    embed,
    encoder_from,
    features_of,
    image_encoder,
    read_inputs,
    read_samples,
)
from ncsam.embed import features as features_module
from ncsam.errors import UsageError

#: The model that the caller allows to be imported.
OWN = ("tiny_networks:build",)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NCSAM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path):
    """Ten PNG images of 8 x 8 in two classes; the truth, in order."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        folder = tmp_path / "photos" / ("cat" if number < 5 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    return tmp_path / "photos", pixels


def plain_forward(pixels):
    network = tiny_networks.build(2).eval()
    mean, std = torch.tensor(network.mean), torch.tensor(network.std)
    x = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.no_grad():
        return network.norm(network.conv(x)).relu().mean(dim=(2, 3))


def call(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


class Lengths:
    """A text encoder whose embedding is (characters, number of o's)."""

    num_features = 2

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return np.array([[len(text), text.count("o")] for text in texts], dtype=np.float32)

    def fingerprint(self):
        return "lengths"


def lengths():
    return NamedTextEncoder("lengths", Lengths(), 256)


def test_the_features_are_those_of_a_plain_forward_and_the_file_trains(photos, tmp_path):
    folder, pixels = photos
    out = tmp_path / "features.npz"
    printed = call("embed", folder, "--model", "tiny_networks:build", "--batch-size", 3, "--out", out)
    assert "10 training samples, 6 features" in printed
    found = data.load(out)
    assert found.classes == ("cat", "dog")
    assert found.train.labels.tolist() == [0] * 5 + [1] * 5
    assert [Path(found.train.path(i)).name for i in (0, 9)] == ["0.png", "9.png"]
    torch.testing.assert_close(torch.from_numpy(found.train.inputs), plain_forward(pixels), rtol=1e-5, atol=1e-6)
    call("train", out, "--epochs", 1, "--val-share", 0.2, "--quiet", "--out", tmp_path / "run")
    with (tmp_path / "run" / "label_issues.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(Path(row["path"]).name for row in rows) == sorted(f"{n}.png" for n in range(10))


def test_the_original_images_are_remembered_in_memory_and_in_the_file(photos, tmp_path):
    folder, _ = photos
    dataset, encoder = data.load(folder), image_encoder("tiny_networks:build")
    for found in (features_of(dataset, encoder), data.load(embed(dataset, encoder, tmp_path / "f.npz", say=str))):
        original = found.original
        assert modality_of(original).name == "images"
        assert [str(path) for path in original.train.inputs] == [str(path) for path in dataset.train.inputs]
        assert original.train.labels.tolist() == dataset.train.labels.tolist()
        assert (original.size, original.mean) == (dataset.size, pytest.approx(dataset.mean))
        part = found.train.take(np.array([9, 2]))
        assert [path.name for path in part.original] == ["9.png", "2.png"]
        assert modality_of(original).preview(original.train.inputs, 3).size == (8, 8)
        assert original.original is original


def test_new_files_are_encoded_as_the_training_files_were(photos, tmp_path):
    folder, pixels = photos
    found = features_of(data.load(folder), image_encoder("tiny_networks:build"))
    saved = json.loads(json.dumps(saved_modality(modality_of(found))))
    kind = restored_modality(saved)
    for new in (folder, [folder / "cat", folder / "dog"], sorted(folder.glob("*/*.png"))):
        names, again = read_inputs(kind, new, named=OWN)
        np.testing.assert_allclose(again, found.train.inputs, rtol=1e-5, atol=1e-6)
        assert [Path(name).name for name in names] == [f"{n}.png" for n in range(10)]
    np.testing.assert_allclose(read_inputs(kind, pixels, named=OWN)[1], found.train.inputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        read_inputs(kind, data.load(folder), named=OWN)[1], found.train.inputs, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(read_inputs(kind, found.train.inputs)[1], found.train.inputs)
    for wrong in (["a text"], tmp_path / "nothing"):
        with pytest.raises((ValueError, FileNotFoundError)):
            read_inputs(kind, wrong, named=OWN)


def test_an_encoder_is_made_again_from_its_description_and_refused_with_other_weights():
    encoder = image_encoder("tiny_networks:build", size=16, crop=False)
    description = json.loads(json.dumps(encoder.describe()))
    again = encoder_from(description, named=OWN)
    with pytest.raises(UsageError, match="name it yourself with --model tiny_networks:build"):
        encoder_from(description)
    assert (again.size, again.crops, again.fingerprint()) == ((16, 16), False, encoder.fingerprint())
    with pytest.raises(ValueError, match="encoder="):
        encoder_from({**description, "weights": "0" * 64}, named=OWN)
    with pytest.raises(ValueError, match="encoder="):
        encoder_from({"kind": "sounds"})


def test_what_was_computed_is_not_computed_again(photos, tmp_path, monkeypatch):
    folder, _ = photos
    monkeypatch.setattr(FeatureCache.rows, "__kwdefaults__", {**FeatureCache.rows.__kwdefaults__, "chunk": 3})
    dataset = data.load(folder)
    whole = features_of(dataset, image_encoder("tiny_networks:build"), cache=FeatureCache(tmp_path / "other"))
    encoder = image_encoder("tiny_networks:build")
    asked = []

    def features(x, real=encoder.network.features, most=4):
        asked.append(len(x))
        if len(asked) > most:
            raise KeyboardInterrupt
        return real(x)

    encoder.network.features = features
    with pytest.raises(KeyboardInterrupt):
        embed(dataset, encoder, tmp_path / "f.npz", batch_size=1, say=str)
    assert not (tmp_path / "f.npz").exists()
    asked.clear()
    encoder.network.features = lambda x: features(x, most=99)
    found = data.load(embed(dataset, encoder, tmp_path / "f.npz", batch_size=1, say=str))
    assert sum(asked) == 7  # the first three were kept
    np.testing.assert_allclose(found.train.inputs, whole.train.inputs, rtol=1e-5, atol=1e-6)
    asked.clear()
    (folder / "cat" / "renamed.png").write_bytes((folder / "cat" / "4.png").read_bytes())
    (folder / "cat" / "4.png").unlink()
    features_of(data.load(folder), encoder)
    assert asked == []  # the same content under another name


def test_images_of_another_size_are_scaled(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (4, 4, 4, 3), dtype=np.uint8)
    dataset = data.from_arrays(pixels, [0, 1, 0, 1], y_clean=[0, 1, 1, 1], x_val=pixels[:1], y_val=[1], y_val_clean=[0])
    out = embed(dataset, image_encoder("tiny_networks:build", size=(8, 8)), tmp_path / "f.npz", say=str)
    network = tiny_networks.build(2).eval()
    mean, std = torch.tensor(network.mean), torch.tensor(network.std)
    x = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(0, 3, 1, 2)
    x = torch.nn.functional.interpolate(x, (8, 8), mode="bilinear", antialias=True)
    with torch.no_grad():
        wanted = network.norm(network.conv(x)).relu().mean(dim=(2, 3))
    found = data.load(out)
    torch.testing.assert_close(torch.from_numpy(found.train.inputs), wanted, rtol=1e-5, atol=1e-6)
    assert found.train.clean.tolist() == [0, 1, 1, 1]
    assert found.val.clean.tolist() == [0]


def test_gray_images_serve_as_color_ones(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (4, 8, 8, 1), dtype=np.uint8)
    encoder = image_encoder("tiny_networks:build")
    found = features_of(data.from_arrays(pixels, [0, 1, 0, 1]), encoder)
    np.testing.assert_allclose(
        found.train.inputs, plain_forward(pixels.repeat(3, axis=3)).numpy(), rtol=1e-4, atol=1e-5
    )


def test_bf16_is_near_and_not_the_same(photos, tmp_path):
    folder, pixels = photos
    encoder = image_encoder("tiny_networks:build", precision="bf16-mixed")
    found = np.load(embed(data.load(folder), encoder, tmp_path / "f.npz", say=str))["x"]
    wanted = plain_forward(pixels).numpy()
    np.testing.assert_allclose(found, wanted, atol=0.03)
    assert not np.array_equal(found, wanted)


def test_texts_are_embedded_with_splits_and_clean_labels(tmp_path):
    table = tmp_path / "reviews.csv"
    rows = ["good,yes,yes,train", "awful,no,yes,test", "fine,yes,no,train", "bad one,no,no,train", "so so,no,yes,dev"]
    table.write_text("review,label,true_label,split\n" + "\n".join(rows) + "\n")
    encoder = lengths()
    found = data.load(embed(data.load(table), encoder, tmp_path / "t.npz", say=str))
    assert found.train.inputs.tolist() == [[4, 2], [4, 0], [7, 1]]
    assert [found.classes[label] for label in found.train.labels] == ["yes", "yes", "no"]
    assert [found.classes[label] for label in found.train.clean] == ["yes", "no", "no"]
    assert (found.test.inputs.tolist(), found.val.inputs.tolist()) == ([[5, 0]], [[5, 2]])
    assert list(found.original.train.inputs) == ["good", "fine", "bad one"]
    assert list(found.original.val.inputs) == ["so so"]
    assert modality_of(found.original).preview(found.original.train.inputs, 2) == "bad one"
    asked = len(encoder.encoder.asked)
    features_of(data.load(table), encoder)
    assert len(encoder.encoder.asked) == asked  # from the cache


def test_new_texts_are_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(features_module, "text_encoder", lambda name, **options: lengths())
    found = features_of(data.from_texts(["good", "bad one"], [0, 1]), lengths())
    kind = restored_modality(json.loads(json.dumps(saved_modality(modality_of(found)))))
    np.testing.assert_array_equal(read_inputs(kind, ["so", "oooo"])[1], [[2, 1], [4, 4]])
    (tmp_path / "new.txt").write_text("so\noooo\n")
    (tmp_path / "new.csv").write_text("n,text\n1,so\n2,oooo\n")
    for new in (tmp_path / "new.txt", tmp_path / "new.csv", {"n": [1, 2], "text": ["so", "oooo"]}):
        np.testing.assert_array_equal(read_inputs(kind, new)[1], [[2, 1], [4, 4]])
        assert read_samples(kind, new).texts == ["so", "oooo"]
    assert read_samples(kind, found.train).texts == ["good", "bad one"]  # of which the features were computed
    assert read_samples(kind, np.zeros((2, 2), dtype=np.float32)).texts is None
    with pytest.raises(ValueError, match="data="):
        read_inputs(kind, np.zeros((2, 8, 8, 3), dtype=np.uint8))


def test_new_rows_of_a_plain_table_and_new_texts_of_a_plain_model():
    table = modality_of(data.as_dataset({"a": [1, 2], "b": [3, 4], "label": [0, 1]}))
    assert read_inputs(table, {"b": [5], "a": [6]})[1].tolist() == [[6, 5]]
    assert read_inputs(table, [[1.0, 2.0]])[1].tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="inputs="):
        read_inputs(table, [[1.0, 2.0, 3.0]])
    words = modality_of(data.from_texts(["a b", "c"], [0, 1]))
    names, found = read_inputs(words, ["b a x"])
    assert found.tokenizer.encode(list(found), 9) == [[3, 2, 1]]
    assert names == ["[0]"]


def test_other_samples_than_the_encoder_takes_are_refused(tmp_path):
    features = data.from_arrays(np.zeros((4, 3), dtype=np.float32), [0, 1, 0, 1])
    texts = data.from_texts(["a", "b"], [0, 1])
    for dataset, encoder in (
        (features, image_encoder("tiny_networks:build")),
        (texts, image_encoder("tiny_networks:build")),
        (features, lengths()),
    ):
        with pytest.raises(ValueError, match="data="):
            embed(dataset, encoder, tmp_path / "f.npz", say=str)
    with pytest.raises(ValueError, match="out="):
        embed(texts, lengths(), tmp_path / "f.csv", say=str)
    assert not list(tmp_path.glob("f.*"))


def test_a_spoiled_description_is_one_error(tmp_path):
    arrays = {"x": np.zeros((2, 3), dtype=np.float32), "y": np.array([0, 1])}
    for bad in ("{", "5", '{"original": {"size": 5}}', '{"original": {"mean": "abc"}}'):
        np.savez(tmp_path / "f.npz", **arrays, encoder=np.array(bad))
        with pytest.raises(ValueError, match="encoder"):
            data.load(tmp_path / "f.npz")
    np.savez(tmp_path / "f.npz", **arrays, encoder=np.array("{}"), texts=np.array(["one"]))
    with pytest.raises(ValueError, match="texts"):
        data.load(tmp_path / "f.npz")
