"""`embed`: a plain forward's features, with labels and names kept; and what a kill leaves behind is used."""

import csv
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
from ncsam.embed import embed, embed_texts, image_encoder, read_texts
from ncsam.embed.text import masked_mean


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
    assert not out.with_name("features.npz.parts").exists()
    call("train", out, "--epochs", 1, "--val-share", 0.2, "--quiet", "--out", tmp_path / "run")
    with (tmp_path / "run" / "label_issues.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(Path(row["path"]).name for row in rows) == sorted(f"{n}.png" for n in range(10))


def test_a_killed_run_goes_on_with_the_parts_it_has(photos, tmp_path):
    folder, _ = photos
    dataset, out = data.load(folder), tmp_path / "f.npz"
    whole = embed(dataset, image_encoder("tiny_networks:build"), tmp_path / "whole.npz", batch_size=1, say=str)

    class DiesError(Exception):
        pass

    encoder = image_encoder("tiny_networks:build")
    asked = []

    def features(x, real=encoder.network.features, dies=True):
        asked.append(len(x))
        if dies and len(asked) > 4:
            raise DiesError
        return real(x)

    from ncsam.embed import run

    part, run._PART = run._PART, 3
    try:
        encoder.network.features = features
        with pytest.raises(DiesError):
            embed(dataset, encoder, out, batch_size=1, say=str)
        assert not out.exists()
        asked.clear()
        encoder.network.features = lambda x: features(x, dies=False)
        embed(dataset, encoder, out, batch_size=1, say=str)
    finally:
        run._PART = part
    assert sum(asked) == 7  # the first part of three was there
    for name in np.load(whole).files:
        np.testing.assert_array_equal(np.load(whole)[name], np.load(out)[name])


def test_parts_of_another_network_are_not_used(photos, tmp_path):
    folder, pixels = photos
    dataset, out = data.load(folder), tmp_path / "f.npz"
    from ncsam.embed.parts import Parts

    encoder = image_encoder("tiny_networks:build")
    Parts(out.with_name("f.npz.parts"), {"encoder": "another"})
    np.save(out.with_name("f.npz.parts") / "train-00000000.npy", np.full((10, 6), 7.0, dtype=np.float32))
    embed(dataset, encoder, out, say=str)
    torch.testing.assert_close(torch.from_numpy(np.load(out)["x"]), plain_forward(pixels), rtol=1e-5, atol=1e-6)


def test_images_of_another_size_are_scaled(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (4, 4, 4, 3), dtype=np.uint8)
    dataset = data.from_arrays(pixels, [0, 1, 0, 1], y_clean=[0, 1, 1, 1])
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


def test_bf16_is_near_and_not_the_same(photos, tmp_path):
    folder, pixels = photos
    encoder = image_encoder("tiny_networks:build", precision="bf16-mixed")
    found = np.load(embed(data.load(folder), encoder, tmp_path / "f.npz", say=str))["x"]
    wanted = plain_forward(pixels).numpy()
    np.testing.assert_allclose(found, wanted, atol=0.03)
    assert not np.array_equal(found, wanted)


def test_texts_are_embedded_in_their_order(tmp_path):
    table = tmp_path / "reviews.csv"
    table.write_text("review,label,part\ngood,yes,train\nawful,no,test\nfine,yes,train\nbad one,no,train\n")

    class Lengths:
        def __call__(self, texts):
            return torch.tensor([[len(text), text.count("o")] for text in texts], dtype=torch.float32)

        def fingerprint(self):
            return "lengths"

    texts, dataset = read_texts(table, "review", "label", "part")
    found = data.load(embed_texts(texts, dataset, Lengths(), tmp_path / "t.npz", batch_size=2, say=str))
    assert found.train.inputs.tolist() == [[4, 2], [4, 0], [7, 1]]
    assert [found.classes[label] for label in found.train.labels] == ["yes", "yes", "no"]
    assert found.test.inputs.tolist() == [[5, 0]]
    with pytest.raises(ValueError, match=r"column of reviews\.csv 'text'"):
        read_texts(table, "text")


def test_the_mean_over_tokens_leaves_padding_out():
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]]])
    assert masked_mean(hidden, torch.tensor([[1, 1, 0]])).tolist() == [[2.0, 3.0]]


def test_features_cannot_be_embedded_again(tmp_path):
    dataset = data.from_arrays(np.zeros((4, 3), dtype=np.float32), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="data="):
        embed(dataset, image_encoder("tiny_networks:build"), tmp_path / "f.npz", say=str)


def test_parts_that_are_spoiled_are_computed_again_and_nothing_else_is_removed(photos, tmp_path):
    folder, _ = photos
    dataset, encoder = data.load(folder), image_encoder("tiny_networks:build")
    parts = tmp_path / "f.npz.parts"
    parts.mkdir()
    (parts / "precious.txt").write_text("mine")
    (parts / "about.json").write_text("{")
    embed(dataset, encoder, tmp_path / "f.npz", say=str)
    assert [path.name for path in parts.iterdir()] == ["precious.txt"]
    embed(dataset, encoder, tmp_path / "g.npz", say=str)
    assert not (tmp_path / "g.npz.parts").exists()

    from ncsam.embed.parts import Parts

    for spoiled in (b"", b"\x93NUMPY", b"x" * 500):
        kept = Parts(parts, {"a": 1})
        (parts / "train-00000000.npy").write_bytes(spoiled)
        rows = kept.rows("train", 2, 2, lambda start, stop: [np.ones((2, 3), dtype=np.float32)], lambda done: None)
        np.testing.assert_array_equal(rows, np.ones((2, 3)))
        np.save(parts / "train-00000000.npy", np.zeros((5, 3), dtype=np.float32))  # as many rows as it never had
        rows = kept.rows("train", 2, 2, lambda start, stop: [np.ones((2, 3), dtype=np.float32)], lambda done: None)
        np.testing.assert_array_equal(rows, np.ones((2, 3)))


def test_texts_in_any_encoding(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("text,label\nÄpfel,a\nBirnen,b\n", encoding="utf-16")
    assert read_texts(table, "text")[0] == ["Äpfel", "Birnen"]
    table.write_text("text,label\nÄpfel,a\n", encoding="latin-1")
    with pytest.raises(ValueError, match="line 2, is not UTF-8"):
        read_texts(table, "text")
    table.write_text("text,label\nonly\n")
    with pytest.raises(ValueError, match="line 2: 1 fields, but the header has 2"):
        read_texts(table, "text")
