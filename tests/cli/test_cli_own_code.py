"""A method, optimizers, a network and data of the user's own, from files in the current folder; damaged images."""

import csv
import io
import json
import os
import shutil
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from PIL import Image

from ncsam.cli.main import main
from ncsam.engine import RunConfig, checkpoint
from ncsam.engine.predictor import load_predictor

OWN = """
import numpy as np, torch
from ncsam import SAM
from ncsam.data import from_arrays
from ncsam.methods.loss_method import CE
from torch import nn

class HalfLoss(CE):
    calls = 0
    def criterion(self, logits, targets):
        HalfLoss.calls += 1
        return super().criterion(logits, targets) / 2

class CountingSAM(SAM):
    made = 0
    def __init__(self, *args, flavor="plain", **options):
        CountingSAM.made += 1
        assert flavor in ("plain", "odd")
        super().__init__(*args, **options)

def rmsprop(params, lr, weight_decay):
    assert (lr, weight_decay) == (0.01, 0.001)
    return torch.optim.RMSprop(params, lr=lr)

def network(num_classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(5, width), nn.ReLU(), nn.Linear(width, num_classes))

def rows(count=40):
    y = np.arange(count) % 2
    x = np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32) + y[:, None]
    return from_arrays(x, y)

number = 3

def three(params):
    return 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module whose name no other test has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # to be put back: the command adds to it
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    name = f"own_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(OWN), encoding="utf-8")
    return name


def ncsam(*words):
    return CliRunner().invoke(main, list(map(str, words)))


def test_everything_of_ones_own(folder):
    words = ["--method", f"{folder}:HalfLoss", "--optimizer", f"{folder}:CountingSAM", "--base", f"{folder}:rmsprop"]
    words += ["--model", f"{folder}:network", "--model-options", "width=3", "--data-options", "count=60"]
    done = ncsam("train", f"{folder}:rows", *words, "--lr", 0.01, "--epochs", 2, "--out", "run", "--quiet")
    assert done.exit_code == 0, done.output
    own = __import__(folder)
    assert own.HalfLoss.calls > 0
    assert own.CountingSAM.made == 1
    config = RunConfig.from_yaml(
        "run/config.yaml", method=f"{folder}:HalfLoss", optimizer=f"{folder}:CountingSAM", base=f"{folder}:rmsprop",
        model=f"{folder}:network", data=f"{folder}:rows",
    )  # fmt: skip
    assert config.model_options == {"width": 3}

    trained = load_predictor(Path("run"), model=f"{folder}:network", method=f"{folder}:HalfLoss")
    assert sum(p.numel() for p in trained.network.parameters()) == 5 * 3 + 3 + 3 * 2 + 2
    # a file decides nothing: what it names is imported only if the call names it, too
    with pytest.raises(ValueError, match="name it yourself with --method"):
        load_predictor(Path("run"), model=f"{folder}:network")
    with pytest.raises(ValueError, match="name it yourself with --method"):
        RunConfig.from_yaml("run/config.yaml", model=f"{folder}:network")
    again = ncsam("train", "--config", "run/config.yaml", "--out", "other")
    assert again.exit_code == 2
    assert "name it yourself" in again.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of nothing but what is ours."""
    top = tmp_path_factory.mktemp("finished")
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    np.savez(top / "f.npz", x=x, y=np.arange(24) % 3, y_clean=np.arange(24) % 3)
    options = ["--model-options", "hidden=[4]", "--rho", 0.1, "--epochs", 1, "--batch-size", 8, "--quiet"]
    assert ncsam("train", top / "f.npz", *options, "--out", top / "run").exit_code == 0
    return top / "run"


def forged(finished, folder, changes):
    """The run with other words in its configuration and in its checkpoint, whose checksum fits."""
    shutil.copytree(finished, folder)
    content = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**content, **changes}))
    path, buffer = folder / "checkpoints" / "last.ckpt", io.BytesIO()
    state = torch.load(path, weights_only=True)
    state["config"] |= changes
    torch.save(state, buffer)
    checkpoint._seal(buffer)
    path.write_bytes(buffer.getvalue())
    (folder / "checkpoints" / "previous.ckpt").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize(
    ("changes", "command", "said"),
    [
        ({"data": "MODULE:rows"}, ["report", "RUN"], None),
        ({"data": "MODULE:rows"}, ["bound", "RUN"], "name it yourself with --data"),
        ({"data": "MODULE:rows"}, ["align", "RUN"], "name it yourself with --data"),
        ({"data": "MODULE:rows"}, ["clean", "RUN", "--dry-run"], "name it yourself with --data"),
        ({"data": "reduced", "data_options": {"of": "MODULE:rows"}}, ["report", "RUN"], None),
        ({"data": "reduced", "data_options": {"of": "MODULE:rows"}}, ["bound", "RUN"], "another dataset, by its name"),
        ({"data": "reduced", "data_options": {"of": "MODULE:rows"}}, ["clean", "RUN", "--dry-run"], "another dataset"),
        ({"optimizer": "MODULE:CountingSAM"}, ["report", "RUN"], None),
        ({"base": "MODULE:rmsprop", "lr": None}, ["train", "DATA", "--epochs", 1, "--out", "RUN"], "another config"),
    ],
)
def test_a_run_folder_runs_no_code(folder, finished, changes, command, said):
    """Whatever it names, and also where that can be imported: a report, a bound, the resuming of a run."""
    sys.path.append(str(Path.cwd()))
    run = forged(finished, Path("run"), json.loads(json.dumps(changes).replace("MODULE", folder)))
    words = {"RUN": run, "DATA": finished.parent / "f.npz"}
    done = ncsam(*(words.get(word, word) for word in command))
    assert folder not in sys.modules
    assert done.exit_code == (0 if said is None else 1 if said == "another config" else 2), done.output
    assert said is None or said in done.output
    if command[0] == "report" and "data" in changes:
        page = (run / "report.html").read_text()
        assert ("which a report does not run" if changes["data"] != "reduced" else "another dataset") in page


def test_data_of_ones_own_is_named_to_be_read_again(folder):
    words = ["--model-options", "hidden=[4]", "--rho", 0.1, "--noise", "symmetric", "--rate", 0.2, "--epochs", 1]
    assert ncsam("train", f"{folder}:rows", *words, "--out", "run", "--quiet").exit_code == 0
    named = ["--data", f"{folder}:rows"]
    assert ncsam("bound", "run", "--steps", 1, "--restarts", 1, *named).exit_code == 0
    assert ncsam("align", "run", "--batches", 1, *named).exit_code == 0


def test_everything_of_ones_own_in_a_comparison(folder):
    """In worker processes, which import it as well; beside what is ours."""
    words = ["--methods", f"ce,{folder}:HalfLoss", "--model", f"{folder}:network", "--epochs", 2, "--seeds", 1]
    optimizers = ["sgd", f"{folder}:CountingSAM:flavor=odd:rho=0.1", f"sam:base={folder}:rmsprop:lr=0.01"]
    done = ncsam("compare", f"{folder}:rows", *words, "--optimizers", ",".join(optimizers), "--out", "out", "--jobs", 1)
    assert done.exit_code == 0, done.output
    with open("out/comparison.json", encoding="utf-8") as file:
        rows = json.load(file)
    assert [(row["method"], row["optimizer"]) for row in rows] == [
        (method, optimizer) for method in ("ce", f"{folder}:HalfLoss") for optimizer in optimizers
    ]
    assert all(row["seeds"] == [1] and row["last"]["mean"] is not None for row in rows)
    losses = [
        json.loads(Path(f"out/{name}-sgd-s1/metrics.jsonl").read_text().splitlines()[0])["train_loss"]
        for name in ("ce", f"{folder}_HalfLoss")
    ]
    assert losses[1] == pytest.approx(losses[0] / 2, rel=0.05)  # half of it at the start, and in other steps after
    wrong = ncsam("compare", f"{folder}:rows", "--optimizers", f"{folder}:rows", "--out", "other")
    assert wrong.exit_code == 2
    assert "a subclass of ncsam.optim.SharpnessAware" in wrong.output
    wrong = ncsam("compare", f"{folder}:rows", "--methods", f"{folder}:absent", "--out", "other")
    assert wrong.exit_code == 2
    assert "has no 'absent'" in wrong.output


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("--method", "rows", "a subclass of ncsam.methods.Method"),
        ("--method", "absent", "has no 'absent'"),
        ("--method", "number", "expected a class or function"),
        ("--optimizer", "rows", "a subclass of ncsam.optim.SharpnessAware"),
        ("--base", "three", "expected a factory of a torch.optim.Optimizer"),
    ],
)
def test_a_wrong_thing_is_named(folder, option, name, words):
    done = ncsam("train", f"{folder}:rows", option, f"{folder}:{name}", "--out", "run", "--epochs", 1)
    assert done.exit_code in (1, 2)
    assert words in done.output


def test_the_current_folder_is_importable_only_where_it_is_named(folder):
    import sys

    done = ncsam("train", "digits", "--epochs", 1, "--dry-run")
    assert done.exit_code == 0
    assert str(Path.cwd()) not in sys.path


def test_a_preset_with_another_network_drops_the_options_of_its_own():
    done = ncsam("train", "digits", "--preset", "cifar10-symmetric", "--rate", 0.2, "--model", "mlp", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "--model mlp: stem=cifar of resnet18 left out" in done.output
    assert "stem" not in done.output.split("left out")[1]
    kept = ncsam(
        "train", "digits", "--preset", "cifar10-symmetric", "--rate", 0.2, "--model", "mlp", "--model-options",
        "hidden=[8]", "--dry-run",
    )  # fmt: skip
    assert kept.exit_code == 0, kept.output


def test_so_it_does_with_another_optimizer_and_another_noise():
    preset = ["train", "digits", "--preset", "ncsam-authors-cifar10-40", "--model", "mlp", "--augment", "none"]
    done = ncsam(*preset, "--noise", "uniform", "--optimizer", "sam", "--dry-run")
    assert done.exit_code == 0, done.output
    assert "--noise uniform: input=normalized of instance left out" in done.output
    assert "--optimizer sam: clusters=5 of ncsam-authors left out" in done.output
    kept = ncsam(*preset, "--optimizer", "ncsam-authors", "--noise", "instance", "--dry-run")
    assert kept.exit_code == 0, kept.output
    assert "clusters: 5" in kept.output
    several = ["compare", *preset[1:], "--optimizers", "sam,ncsam-authors:clusters=4", "--dry-run"]
    done = ncsam(*several)
    assert done.exit_code == 0, done.output
    assert "--optimizers sam,ncsam-authors: clusters=5 of ncsam-authors left out" in done.output
    assert "clusters=5" not in kept.output


def test_skip_damaged_trains_on_the_rest_and_lists_what_it_left(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(6):
            pixels = rng.integers(0, 255, (10, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    broken = tmp_path / "photos" / "cat" / "3.png"
    broken.write_bytes(broken.read_bytes()[:40])
    words = ["train", tmp_path / "photos", "--model", "mlp", "--epochs", 1, "--val-share", 0.2, "--optimizer", "sam"]
    refused = ncsam(*words, "--out", tmp_path / "refused")
    assert refused.exit_code == 1
    assert "3.png" in refused.output
    assert "--skip-damaged" in refused.output
    done = ncsam(*words, "--skip-damaged", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "1 files could not be read" in done.output
    with (tmp_path / "run" / "damaged.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"].endswith("cat/3.png") for row in rows] == [True]
    refused = ncsam("predict", tmp_path / "run", tmp_path / "photos")
    assert refused.exit_code == 1
    assert "--skip-damaged" in refused.output
    done = ncsam("predict", tmp_path / "run", tmp_path / "photos", "--skip-damaged", "--out", tmp_path / "out.csv")
    assert done.exit_code == 0, done.output
    assert f"left out: {broken}" in done.output
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        predicted = [row["input"] for row in csv.DictReader(file)]
    assert len(predicted) == 11
    assert str(broken) not in predicted
    only = ncsam("predict", tmp_path / "run", broken, "--skip-damaged")
    assert only.exit_code == 2
    assert "at least one file that can be read" in only.output
