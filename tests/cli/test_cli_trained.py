"""`predict` and `export`: the answers of the trained network itself, here and elsewhere."""

import csv
import io
import json
import sys

import numpy as np
import pytest
import torch
from cli_cases import QUICK, call
from PIL import Image

from ncsam import data, models
from ncsam.data.modalities import saved_modality
from ncsam.data.modalities.images import Images
from ncsam.engine import RunConfig
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.export import to_safetensors
from ncsam.engine.predictor import LoadedRun, Predictor, load_predictor
from ncsam.methods import Method

DIGITS = data.load("digits")


@pytest.fixture(scope="module")
def network(trained):
    """The trained network, built without the code under test."""
    state = load_checkpoint(trained / "checkpoints")
    built = models.create("mlp", 10, 1, in_features=64, hidden=[16])
    built.load_state_dict(state["learners"][0]["network"])
    return built.eval()


def logits_of(network, images):
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        return network((pixels - DIGITS.mean[0]) / DIGITS.std[0])


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def test_predictions_are_the_networks_own(tmp_path, trained, network):
    images = DIGITS.test.inputs[:40]
    np.savez(tmp_path / "some.npz", x=images)
    rows = list(csv.DictReader(io.StringIO(call("predict", trained, tmp_path / "some.npz", "--batch-size", 16).output)))
    probability, label = logits_of(network, images).softmax(dim=1).max(dim=1)
    assert [row["label"] for row in rows] == [str(number) for number in label.tolist()]
    np.testing.assert_allclose([float(row["probability"]) for row in rows], probability, atol=2e-6)
    assert rows[3]["input"] == f"{tmp_path / 'some.npz'}[3]"


def test_the_test_accuracy_comes_out_again(tmp_path, trained):
    np.savez(tmp_path / "test.npz", x=DIGITS.test.inputs)
    rows = json.loads(call("predict", trained, tmp_path / "test.npz", "--json").output)
    right = np.mean([int(row["label"]) for row in rows] == DIGITS.test.labels)
    last = json.loads((trained / "summary.json").read_text())["last"]
    assert 100 * right == pytest.approx(last, abs=1e-9)


def test_files_and_folders_are_found_and_decoded(tmp_path, trained, network):
    images = DIGITS.test.inputs[:3]
    (tmp_path / "more").mkdir()
    paths = [tmp_path / "a.png", tmp_path / "more" / "b.png", tmp_path / "more" / "c.png"]
    for path, pixels in zip(paths, images, strict=True):
        Image.fromarray(pixels[..., 0]).save(path)
    out = tmp_path / "out.json"
    assert call("predict", trained, paths[0], tmp_path / "more", "--top", 2, "--out", out).output == f"{out}\n"
    rows = json.loads(out.read_text())
    values, classes = logits_of(network, images).softmax(dim=1).topk(2, dim=1)
    assert [row["input"] for row in rows] == [str(path) for path in paths]
    assert [[row["label"], row["label2"]] for row in rows] == [[str(c) for c in pair] for pair in classes.tolist()]
    np.testing.assert_allclose([[row["probability"], row["probability2"]] for row in rows], values, atol=2e-6)


def test_what_cannot_be_predicted_is_said(tmp_path, trained):
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.png").write_text("no image")
    (tmp_path / "rows.csv").write_text("text,label\ngood,1\n")
    np.savez(tmp_path / "z.npz", z=np.zeros(3))
    np.savez(tmp_path / "x.npz", x=DIGITS.test.inputs[:1])
    assert "a folder with images" in call("predict", trained, tmp_path / "empty", code=2).output
    assert "expected image files, folders of them" in call("predict", trained, tmp_path / "rows.csv", code=2).output
    assert "cannot be decoded as an image" in call("predict", trained, tmp_path / "no.png", code=1).output
    assert "has no array named x or images; it holds z" in call("predict", trained, tmp_path / "z.npz", code=2).output
    both = call("predict", trained, tmp_path / "z.npz", tmp_path / "no.png", code=2).output
    assert "invalid inputs=" in both
    assert "invalid --top=11" in call("predict", trained, tmp_path / "x.npz", "--top", 11, code=2).output
    assert "a run folder with a checkpoint" in call("predict", tmp_path, tmp_path / "x.npz", code=2).output


def test_torchscript_gives_the_same_logits(tmp_path, trained, network, inputs):
    out = tmp_path / "m.pt"
    assert call("export", trained, "--format", "torchscript", "--out", out).output.splitlines() == [
        str(out),
        str(tmp_path / "m.json"),
    ]
    loaded = torch.jit.load(out)
    with torch.no_grad():
        torch.testing.assert_close(loaded(inputs), network(inputs), rtol=0, atol=0)
    about = json.loads((tmp_path / "m.json").read_text())
    assert about["classes"] == [str(c) for c in range(10)]
    assert about["size"] == [8, 8]
    np.testing.assert_allclose(about["mean"], DIGITS.mean)
    assert about["model_options"] == {"hidden": [16], "in_features": 64}


def test_safetensors_hold_the_same_weights(trained, network, inputs):
    safetensors = pytest.importorskip("safetensors")
    from safetensors.torch import load_file

    call("export", trained, "--format", "safetensors")
    path = trained / "model.safetensors"
    fresh = models.create("mlp", 10, 1, in_features=64, hidden=[16], pretrained=str(path)).eval()
    with torch.no_grad():
        torch.testing.assert_close(fresh(inputs), network(inputs), rtol=0, atol=0)
    assert set(load_file(path)) == set(network.state_dict())
    with safetensors.safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["ncsam"])["model"] == "mlp"


def test_onnx_gives_the_same_logits(tmp_path, trained, network, inputs):
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    call("export", trained, "--format", "onnx", "--out", tmp_path / "m.onnx")
    (logits,) = reference.ReferenceEvaluator(str(tmp_path / "m.onnx")).run(["logits"], {"inputs": inputs.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(logits, network(inputs), atol=1e-5)


def test_onnx_says_what_it_needs(tmp_path, trained, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    output = call("export", trained, "--format", "onnx", "--out", tmp_path / "m.onnx", code=2).output
    assert "exporting to ONNX needs 'onnxscript'" in output
    assert 'pip install "ncsam[onnx]"' in output
    assert not list(tmp_path.iterdir()), "nothing half-written is left"


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    from made_runs import make_run

    with pytest.raises(ValueError, match="a checkpoint"):
        load_predictor(make_run(tmp_path / "a"))


def test_double_precision_is_no_obstacle(tmp_path):
    call("train", "digits", *QUICK, "--precision", "64-true", "--epochs", 1, "--quiet", "--out", tmp_path / "r")
    np.savez(tmp_path / "test.npz", x=DIGITS.test.inputs)
    rows = json.loads(call("predict", tmp_path / "r", tmp_path / "test.npz", "--json").output)
    last = json.loads((tmp_path / "r" / "summary.json").read_text())["last"]
    assert 100 * np.mean([int(row["label"]) for row in rows] == DIGITS.test.labels) == pytest.approx(last, abs=0.3)


class Averaged(Method):
    """Predicts with a network of its own, or with all of them."""

    def __init__(self, average):
        self.average = average

    def predict(self, networks, inputs):
        return super().predict(networks if self.average is None else [self.average], inputs)


def test_the_networks_that_answer_are_the_ones_exported(tmp_path, inputs):
    from safetensors.torch import load_file

    one, two, average = (models.create("mlp", 10, 1, in_features=64, hidden=[3]) for _ in range(3))
    for kept, expected in ((average, [average]), (None, [one, two])):
        answer = Predictor(Averaged(kept), [one, two]).eval()
        assert answer.predictors(inputs) == expected
        kind = saved_modality(Images((0.5,), (0.5,), (8, 8), 1))
        about = {"name": "d", "classes": list("abcdefghij"), **kind}
        to_safetensors(LoadedRun(answer, RunConfig(), about), tmp_path / "w.safetensors")
        names = set(average.state_dict())
        prefixes = [""] if kept is not None else ["0.", "1."]
        weights = load_file(tmp_path / "w.safetensors")
        assert set(weights) == {prefix + name for prefix in prefixes for name in names}
        for prefix, network in zip(prefixes, expected, strict=True):
            torch.testing.assert_close(weights[f"{prefix}fc.bias"], network.fc.bias.detach(), rtol=0, atol=0)
    assert not Predictor(Averaged(average.train()), [one]).eval().kept[0].training


@pytest.mark.parametrize("method", [["regce"], ["sln", "--method-options", "decay=0.95"]])
def test_a_method_that_averages_weights_exports_the_average(tmp_path, method):
    call("train", "digits", *QUICK, "--method", *method, "--epochs", 1, "--quiet", "--out", tmp_path / "r")
    state = load_checkpoint(tmp_path / "r" / "checkpoints")
    call("export", tmp_path / "r", "--format", "safetensors", "--out", tmp_path / "w.safetensors")
    network = models.create("mlp", 10, 1, in_features=64, hidden=[16], pretrained=str(tmp_path / "w.safetensors"))
    for name, value in network.state_dict().items():
        assert torch.equal(value, state["method"]["average"][name])
    assert not torch.equal(network.fc.bias, state["learners"][0]["network"]["fc.bias"])
    np.savez(tmp_path / "test.npz", x=DIGITS.test.inputs)
    rows = json.loads(call("predict", tmp_path / "r", tmp_path / "test.npz", "--json").output)
    expected = logits_of(network.eval(), DIGITS.test.inputs).argmax(dim=1).tolist()
    assert [row["label"] for row in rows] == [str(label) for label in expected]


def test_features_are_predicted_too(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    np.savez(tmp_path / "f.npz", x=x, y=(x[:, 0] > 0).astype(int))
    call("train", tmp_path / "f.npz", *QUICK[4:], "--quiet", "--out", tmp_path / "r")
    rows = json.loads(call("predict", tmp_path / "r", tmp_path / "f.npz", "--json").output)
    assert len(rows) == 60
    assert load_predictor(tmp_path / "r").example(3).shape == (3, 5)
    call("export", tmp_path / "r", "--out", tmp_path / "m.pt")
    with torch.no_grad():
        logits = torch.jit.load(tmp_path / "m.pt")(torch.from_numpy((x - x.mean(0)) / x.std(0)))
    assert [row["label"] for row in rows] == [str(c) for c in logits.argmax(dim=1).tolist()]
