"""Fine-tuning from files by the command: resumed, used, reviewed and cleaned; long work needs a yes; bad input."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_cases import QUICK, call
from PIL import Image

sys.path.append(str(Path(__file__).parents[1]))
from ncsam import load_run
from ncsam.engine import RunConfig
from ncsam.engine.device import choose_device
from ncsam.engine.forecast import remaining_seconds
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task, task_of
from ncsam.engine.trainer import Trainer
from ncsam.review.samples import Samples
from tiny_transformer import save_texts, save_tiny_bert

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    save_tiny_bert(folder / "bert")
    save_texts(folder / "texts.csv", rows=60)
    return folder


def options(files, *more):
    read = ["--label-column", "label", "--data-options", "clean_column=clean"]
    return ["train", files / "texts.csv", "--model", f"transformers:{files / 'bert'}", *read, "--quiet", *more]


@pytest.fixture(scope="module")
def tuned(files):
    call(*options(files, "--lr", "0.01", "--epochs", "3", "--batch-size", "8", "--out", files / "run"))
    return files / "run"


def test_new_texts_are_classified(tuned, tmp_path):
    (tmp_path / "new.txt").write_text("good great film\nawful bad song\n")
    call("predict", tuned, tmp_path / "new.txt", "--out", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == 2
    expected = load_run(tuned).predict(["good great film", "awful bad song"]).probabilities.max(axis=1)
    assert [float(row["probability"]) for row in found] == pytest.approx(expected, abs=1e-5)


def test_the_cleaned_table_and_the_report_have_the_texts(tuned, files, tmp_path):
    call("clean", tuned, "--apply", "all", "--out", tmp_path / "cleaned.csv")
    with (tmp_path / "cleaned.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (files / "texts.csv").open() as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert [row["text"] for row in rows] == texts
    call("report", tuned, "--out", tmp_path / "report.html")
    assert any(text in (tmp_path / "report.html").read_text() for text in texts)


def test_texts_are_reviewed_as_texts(tuned, files):
    samples = Samples(task_of(tuned).dataset.train)
    with (files / "texts.csv").open() as file:
        first = next(csv.DictReader(file))["text"]
    assert samples.shown(0) == {"kind": "text", "text": first}


def test_weights_are_exported(tuned, tmp_path):
    call("export", tuned, "--format", "safetensors", "--out", tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").stat().st_size > 1000


def test_a_stopped_run_is_resumed_to_the_same_bits(tuned, files, tmp_path, monkeypatch):
    step, stops = Trainer._step, [(2, 1)]

    def failing(self, epoch, number, batch):
        if (epoch, number) in stops:
            stops.remove((epoch, number))
            raise RuntimeError("stopped")
        step(self, epoch, number, batch)

    monkeypatch.setattr(Trainer, "_step", failing)
    command = options(files, "--lr", "0.01", "--epochs", "3", "--batch-size", "8", "--out", tmp_path / "run")
    call(*command, code=1)
    call(*command)
    one, other = (torch.load(f / "checkpoints/last.ckpt", weights_only=True) for f in (tuned, tmp_path / "run"))
    for name, value in one["learners"][0]["network"].items():
        assert torch.equal(value, other["learners"][0]["network"][name]), name
    assert one["early_stopping"]["best_epoch"] == other["early_stopping"]["best_epoch"]


# --- the expected time


def test_long_training_needs_a_yes(tmp_path, monkeypatch):
    monkeypatch.setattr("ncsam.engine.run.remaining_seconds", lambda trainer: 7200.0)
    out = call("train", "digits", *QUICK, "--model", "mlp", "--out", tmp_path / "run", code=2).output
    assert "2.0 h" in out
    assert "--yes" in out
    assert not (tmp_path / "run" / "config.yaml").exists()
    call("train", "digits", *QUICK, "--model", "mlp", "--out", tmp_path / "run", "--yes")
    assert (tmp_path / "run" / "summary.json").is_file()


def test_folds_count(tmp_path, monkeypatch):
    monkeypatch.setattr("ncsam.engine.run.remaining_seconds", lambda trainer: 700.0)
    call("train", "digits", *QUICK, "--model", "mlp", "--folds", "2", "--out", tmp_path / "run", code=2)


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0)])
def test_a_terminal_is_asked(answer, code, monkeypatch):
    import click
    from click.testing import CliRunner

    from ncsam.cli.output import approval

    @click.command()
    def work():
        monkeypatch.setattr("ncsam.cli.output._on_terminal", lambda: True)
        approval(False, shorter="less")(1801.0, "training")

    result = CliRunner().invoke(work, input=answer)
    assert result.exit_code == code
    assert "30 min" in result.output


def test_auto_needs_a_yes(tmp_path, monkeypatch):
    monkeypatch.setattr("ncsam.automl.candidates.training_seconds", lambda *arguments: 3600.0)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", x=rng.normal(size=(60, 5)).astype(np.float32), y=np.arange(60) % 2)
    out = call("auto", tmp_path / "f.npz", "--quiet", "--out", tmp_path / "auto", code=2).output
    assert "--yes" in out
    assert not (tmp_path / "auto" / "summary.json").exists()


def test_a_forecast_changes_nothing():
    asked = RunConfig(data="digits", model="mlp", epochs=2, optimizer="sgd", batch_size=256)
    task = load_task(asked)
    ends = []
    for timed in (False, True):
        trainer = Trainer(choose_device(asked), resolve(asked, task), task)
        if timed:
            assert 0 < remaining_seconds(trainer) < 600
        trainer.fit()
        ends.append(torch.cat([p.detach().flatten() for p in trainer.networks[0].parameters()]))
    assert torch.equal(*ends)


# --- bad input: one sentence, and nothing is written


def bad(tmp_path, *command, names):
    result = call("train", *command, "--quiet", "--out", tmp_path / "run", code=2)
    message = [line for line in result.output.splitlines() if line.startswith("Error")]
    assert len(message) == 1
    assert names in message[0]
    assert not (tmp_path / "run" / "config.yaml").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_corrupt_image_is_named(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(8):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)
    (tmp_path / "photos" / "a" / "broken.png").write_bytes(b"\x89PNG broken")
    result = call(
        "train",
        tmp_path / "photos",
        "--val-share",
        "0.3",
        "--epochs",
        "1",
        "--quiet",
        "--out",
        tmp_path / "run",
        code=1,
    )
    assert "broken.png" in result.output
    assert not (tmp_path / "run" / "summary.json").exists()


def test_one_class_is_refused(tmp_path, files):
    (tmp_path / "t.csv").write_text("text,label\ngood film,a\nbad film,a\n")
    bad(tmp_path, tmp_path / "t.csv", "--model", f"transformers:{files / 'bert'}", names="two classes")


def test_an_empty_text_is_named(tmp_path, files):
    (tmp_path / "t.csv").write_text("text,label\ngood film,a\n,b\nbad film,a\nfine,b\n")
    bad(tmp_path, tmp_path / "t.csv", "--model", f"transformers:{files / 'bert'}", names="row 1")


def test_an_unknown_model_is_named(files, tmp_path):
    bad(tmp_path, files / "texts.csv", "--label-column", "label", "--model", "resnet81", names="resnet18")


def test_an_unknown_published_model_is_named(files, tmp_path, monkeypatch):
    def offline(*arguments, **settings):
        raise OSError("no connection")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    named = "transformers:nobody/nothing"
    bad(tmp_path, files / "texts.csv", "--label-column", "label", "--model", named, names=named)
