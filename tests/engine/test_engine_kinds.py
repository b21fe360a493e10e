"""Runs on every kind of data, from training to export; a kind and a dataset that somebody adds."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ncsam import data
from ncsam._text import shortened
from ncsam.cli.main import main
from ncsam.embed import Choice
from ncsam.engine import RunConfig, train
from ncsam.engine.predictor import load_predictor
from ncsam.engine.trainer import Trainer
from ncsam.errors import UsageError
from two_processes import checkpoint, train_by_two

GOOD, BAD = ["lovely", "great", "superb"], ["awful", "dull", "poor"]


def texts(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Texts of two kinds of words among others, and their labels."""
    rng = np.random.default_rng(seed)
    made, labels = [], []
    for i in range(count):
        words = list(rng.choice(["the", "film", "a", "plot", "music", "it"], rng.integers(2, 12)))
        words.insert(int(rng.integers(0, len(words))), str(rng.choice(GOOD if i % 2 else BAD)))
        made.append(" ".join(words))
        labels.append("pos" if i % 2 else "neg")
    return made, labels


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reviews") / "reviews.csv"
    rng = np.random.default_rng(5)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label", "clean_label", "split"])
        for split, count in (("train", 120), ("test", 40)):
            for text, label in zip(*texts(count, count), strict=True):
                wrong = split == "train" and rng.random() < 0.15
                table.writerow([text, {"pos": "neg", "neg": "pos"}[label] if wrong else label, label, split])
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def trained_on_texts(reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "texts"
    run("train", reviews, "--epochs", 12, "--out", out, "--optimizer", "sam", "--lr", 0.5)
    return out


def test_texts_from_the_command_line(reviews: Path, trained_on_texts: Path, tmp_path: Path) -> None:
    summary = json.loads((trained_on_texts / "summary.json").read_text())
    assert summary["model"] == "text_mean"
    assert summary["last"] >= 90  # chance is 50
    rows = json.loads(run("predict", trained_on_texts, reviews, "--json"))
    written = list(csv.DictReader(reviews.open()))
    assert [row["input"] for row in rows] == [f"{reviews}[{i}]" for i in range(160)]
    right = np.mean([row["label"] == line["clean_label"] for row, line in zip(rows, written, strict=True)][120:])
    assert 100 * right == pytest.approx(summary["last"])
    lines = tmp_path / "new.txt"
    lines.write_text("the film it superb\nawful plot\n")
    found = list(csv.DictReader(run("predict", trained_on_texts, lines).splitlines()))
    assert [row["label"] for row in found] == ["pos", "neg"]
    assert list(found[0]) == ["input", "text", "label", "probability"]
    assert [row["text"] for row in found] == ["the film it superb", "awful plot"]
    assert [row["text"] for row in rows] == [shortened(line["text"]) for line in written]
    top = json.loads(run("issues", trained_on_texts, "--top", 10, "--json"))
    assert np.mean([row["given_label"] != row["clean_label"] for row in top]) >= 0.6  # 15 % of all are
    run("report", trained_on_texts, "--out", tmp_path / "page.html")
    assert written[top[0]["index"]]["text"][:30] in (tmp_path / "page.html").read_text()


def test_an_exported_network_of_texts_gives_the_same_logits(trained_on_texts: Path, tmp_path: Path) -> None:
    run("export", trained_on_texts, "--out", tmp_path / "model.pt")
    trained = load_predictor(trained_on_texts)
    example = trained.example(3)
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["inputs"] == ["input_ids", "attention_mask"]
    assert len(about["tokenizer"]["words"]) + 2 == about["vocabulary"]
    longer = {"input_ids": torch.randint(0, 9, (5, 11)), "attention_mask": torch.rand(5, 11) < 0.7}
    for inputs in (example, longer):
        found = torch.jit.load(tmp_path / "model.pt")(*inputs.values())
        torch.testing.assert_close(found, trained.network(inputs))


def test_a_run_on_texts_goes_on_with_the_same_bits(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(
        data=str(reviews), epochs=3, optimizer="ncsam", rho=0.1, warmup=0.3, checkpoint_every=1, batch_size=32
    )
    train(config, tmp_path / "whole", console=False)
    step, count = Trainer._step, [0]

    def failing(self: Trainer, *args: Any) -> None:
        if count[0] == 6:
            raise ZeroDivisionError
        count[0] += 1
        step(self, *args)

    monkeypatch.setattr(Trainer, "_step", failing)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "stopped", console=False)
    monkeypatch.undo()
    train(config, tmp_path / "stopped", console=False)
    one, other = (
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True) for name in ("whole", "stopped")
    )
    for name, value in one["learners"][0]["network"].items():
        assert torch.equal(value, other["learners"][0]["network"][name])
    assert (tmp_path / "whole/label_issues.csv").read_text() == (tmp_path / "stopped/label_issues.csv").read_text()


@pytest.mark.stress  # a pair of processes more: on arrays in test_engine_distributed.py
def test_two_processes_on_texts_equal_one(reviews: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data": str(reviews),
        "epochs": 2,
        "batch_size": 20,  # of 120 samples, so that both ranks hold equally many
        "val_share": 0.0,
        "optimizer": "sam",
        "rho": 0.1,
        "precision": "64-true",
        "accelerator": "cpu",
    }
    train_by_two([(tmp_path / "two", options, None)])
    train(RunConfig.from_dict(options), tmp_path / "one", console=False)
    one, two = (checkpoint(tmp_path / name)["learners"][0]["network"] for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value)


def test_columns_of_numbers_from_the_command_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "age", "hours", "kind"])
        for i in range(150):
            table.writerow([i, round(30 + 20 * (i % 3) + rng.normal(), 3), rng.integers(0, 60), "abc"[i % 3]])
    out = tmp_path / "run"
    run(
        "train",
        tmp_path / "table.csv",
        "--label-column",
        "kind",
        "--lr",
        0.05,
        "--batch-size",
        32,
        "--epochs",
        6,
        "--out",
        out,
        "--optimizer",
        "sgd",
    )
    found = list(csv.DictReader(run("predict", out, tmp_path / "table.csv").splitlines()))
    assert np.mean([row["label"] == "abc"[i % 3] for i, row in enumerate(found)]) >= 0.95
    run("report", out, "--markdown", "--out", tmp_path / "r.md")
    assert "age " in (tmp_path / "r.md").read_text()
    run("export", out, "--format", "safetensors")


class Sum(torch.nn.Module):
    """A network for a tree of two tensors."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.values = torch.nn.Linear(3, 8)
        self.counts = torch.nn.Embedding(4, 8)
        self.fc = torch.nn.Linear(8, num_classes)

    def forward(self, x: dict[str, Any]) -> torch.Tensor:
        logits: torch.Tensor = self.fc(torch.relu(self.values(x["values"]) + self.counts(x["more"]["count"])))
        return logits


def test_trees_train_and_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values, count = rng.normal(size=(120, 3)).astype(np.float32), rng.integers(0, 4, 120)
    y = (values[:, 0] + count - 1.5 > 0).astype(np.int64)
    np.savez(tmp_path / "x.npz", **{"x.values": values, "x.more.count": count}, y=y)
    factory = f"{__name__}:Sum"
    sys.modules.setdefault(__name__, sys.modules[Sum.__module__])
    out = tmp_path / "run"
    run(
        "train",
        tmp_path / "x.npz",
        "--model",
        factory,
        "--rho",
        0.05,
        "--batch-size",
        32,
        "--epochs",
        20,
        "--out",
        out,
        "--optimizer",
        "sam",
    )
    found = list(csv.DictReader(run("predict", out, tmp_path / "x.npz", "--model", factory).splitlines()))
    assert np.mean([int(row["label"]) == label for row, label in zip(found, y, strict=True)]) >= 0.9
    run("export", out, "--model", factory, "--out", tmp_path / "m.pt")
    network = load_predictor(out, model=factory).network
    traced = torch.jit.load(tmp_path / "m.pt")(torch.from_numpy(values), torch.from_numpy(count))
    tree = {"values": torch.from_numpy(values), "more": {"count": torch.from_numpy(count)}}
    torch.testing.assert_close(traced, network(tree))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"augment": "standard"},
            "augment='standard'",
        ),
        ({"method": "mixup"}, "method='mixup'"),
        (
            {"method": "regce", "method_options": {"view": "strong"}},
            "method='regce'",
        ),
    ],
)
def test_what_needs_images_says_so(reviews: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(RunConfig(data=str(reviews), epochs=1, **options), tmp_path / "run", console=False)


def test_auto_embeds_texts_or_says_what_is_missing(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Choice(None, "no pretrained text encoder is installed")
    monkeypatch.setattr("ncsam.engine.backbone.choose_encoder", lambda *_: (None, nothing))
    result = CliRunner().invoke(main, ["auto", str(reviews), "--out", str(tmp_path / "auto")])
    assert result.exit_code != 0
    assert "no pretrained text encoder is installed" in result.output
    assert "ncsam embed" in f"{result.output} {result.exception}"


# --- what somebody adds

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_a_kind_of_data_and_a_dataset_are_added_by_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Adding a modality")[1]
    recipe = section.split("```python\n")[1].split("```")[0]
    (tmp_path / "point_sets.py").write_text(recipe)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("point_sets")
    try:
        assert "crowds" in data.names()
        assert data.describe(data.load("crowds")).splitlines()[1].endswith("60  sets of points, in memory")
        summary = train(RunConfig(data="crowds", epochs=1, batch_size=8), tmp_path / "run", console=False)
        assert summary["model"] == "point_sets:DeepSet"
        assert summary["last"] >= 80  # noisy validation; chance is 50
    finally:
        from ncsam.data import registry

        registry._entries.pop("crowds")
        for name in ("PointSets", "PointStore"):
            delattr(sys.modules["point_sets"], name)
        sys.modules.pop("point_sets")
        import gc

        gc.collect()
    assert "sets of points" not in data.modalities()


@pytest.mark.slow
def test_onnx_of_texts_takes_any_batch_and_length(trained_on_texts: Path, tmp_path: Path) -> None:
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    pytest.importorskip("onnxscript")
    run("export", trained_on_texts, "--format", "onnx", "--out", tmp_path / "model.onnx")
    network = load_predictor(trained_on_texts).network
    inputs = {"input_ids": torch.randint(0, 9, (5, 11)), "attention_mask": torch.rand(5, 11) < 0.7}
    (found,) = evaluator(str(tmp_path / "model.onnx")).run(None, {k: v.numpy() for k, v in inputs.items()})
    np.testing.assert_allclose(found, network(inputs).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("model", ["mlp", "resnet8"])
def test_a_model_that_reads_no_texts_is_refused_before_a_folder_is_made(
    reviews: Path, tmp_path: Path, model: str
) -> None:
    with pytest.raises(UsageError, match=f"model='{model}'"):
        train(RunConfig(data=str(reviews), model=model, epochs=1), tmp_path / "run", console=False)
    assert not (tmp_path / "run" / "config.yaml").exists()
