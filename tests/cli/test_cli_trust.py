"""A run folder, a checkpoint or a configuration of someone else's runs no code: it names networks of ours alone."""

import sys

import numpy as np
import pytest
import yaml
from cli_cases import QUICK, call

from ncsam.engine import RunConfig, train
from ncsam.engine.checkpoint import load_checkpoint, save_checkpoint
from ncsam.engine.predictor import load_predictor

FACTORY = "trap_networks:build"
ATTACK = """
from pathlib import Path
Path({mark!r}).touch()

def build(num_classes, **options):
    from ncsam import models
    Path({called!r}).touch()
    return models.create("mlp", num_classes, in_features=64, hidden=[16])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small run whose checkpoint and configuration are then made to name a factory."""
    folder = tmp_path_factory.mktemp("theirs") / "run"
    call("train", "digits", *QUICK, "--epochs", 1, "--quiet", "--out", folder)
    forge(folder, model=FACTORY, model_options={})
    return folder


def forge(folder, **changes):
    state = load_checkpoint(folder / "checkpoints")
    config = {**state["config"], **changes}
    save_checkpoint(folder / "checkpoints", {**state, "config": config}, {"labels_sha256": state["labels_sha256"]})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module in the current folder that leaves a mark when it is imported, and another when it is called."""
    marks = [tmp_path / "imported", tmp_path / "called"]
    (tmp_path / "trap_networks.py").write_text(ATTACK.format(mark=str(marks[0]), called=str(marks[1])))
    monkeypatch.syspath_prepend(str(tmp_path))  # as `python -m ncsam` finds what lies in the current folder
    monkeypatch.delitem(sys.modules, "trap_networks", raising=False)
    np.savez(tmp_path / "inputs.npz", x=np.zeros((2, 8, 8, 1), dtype=np.uint8))
    yield marks
    sys.modules.pop("trap_networks", None)


def commands(folder, tmp_path):
    return {
        "predict": ["predict", folder, tmp_path / "inputs.npz"],
        "export": ["export", folder, "--format", "safetensors", "--out", tmp_path / "w.safetensors"],
        "bound": ["bound", folder, "--steps", 1, "--restarts", 1, "--rho", 0.1],
        "align": ["align", folder, "--batches", 1, "--json", "--rho", 0.1],
        "train": ["train", "--config", folder / "config.yaml", "--out", tmp_path / "new", "--quiet"],
        "compare": ["compare", "--config", folder / "config.yaml", "--out", tmp_path / "new", "--seeds", 1],
        "report": ["report", folder, "--out", tmp_path / "report.html"],
        "issues": ["issues", folder],
        "folds": ["issues", folder, "--folds", 2],
        "predictions": ["export-predictions", folder, "--out", tmp_path / "p.npy"],
        "clean": ["clean", folder, "--dry-run"],
        "table": ["export-predictions", folder, "--table", tmp_path / "t.csv"],
    }


@pytest.mark.parametrize("command", ["predict", "export", "bound", "align", "train", "compare", "folds", "predictions"])
def test_a_factory_named_by_a_file_is_neither_imported_nor_called(command, folder, tmp_path, trap):
    output = call(*commands(folder, tmp_path)[command], code=2).output
    assert f"asks for the model '{FACTORY}'" in output
    assert f"name it yourself with --model {FACTORY}" in output
    assert not any(mark.exists() for mark in trap)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["report", "issues", "clean", "table"])
def test_reading_a_run_imports_nothing(command, folder, tmp_path, trap):
    call(*commands(folder, tmp_path)[command])
    assert not any(mark.exists() for mark in trap)


def test_a_factory_that_the_user_names_is_called(folder, tmp_path, trap):
    call(*commands(folder, tmp_path)["predict"], "--model", FACTORY)
    assert all(mark.exists() for mark in trap)


def test_naming_another_factory_than_the_file_does_not_help_the_file(folder, tmp_path, trap):
    call(*commands(folder, tmp_path)["predict"], "--model", "mlp", code=2)
    assert not any(mark.exists() for mark in trap)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("torch.hub:load", {"repo_or_dir": ".", "source": "local"}),
        ("os:system", {}),
        ("timm:resnet18", {"checkpoint_path": "weights.pth"}),
        (":", {}),
    ],
)
def test_no_other_name_gets_through(model, options, folder, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"data": "digits", "model": model, "model_options": options}))
    with pytest.raises(ValueError, match="asks for"):
        RunConfig.from_yaml(path)


def test_a_run_of_one_s_own_factory_goes_on_and_can_be_used(tmp_path, trap):
    config = RunConfig(data="digits", model=FACTORY, epochs=1, batch_size=256, optimizer="sgd")
    train(config, tmp_path / "run", console=False)
    assert train(config, tmp_path / "run", console=False)["model"] == FACTORY
    assert load_predictor(tmp_path / "run", model=FACTORY).config.model == FACTORY
    assert RunConfig.from_yaml(tmp_path / "run/config.yaml", model=FACTORY).model == FACTORY


def test_nothing_is_downloaded_because_a_run_folder_says_so(folder, tmp_path, monkeypatch):
    import shutil

    shutil.copytree(folder, tmp_path / "run")
    forge(tmp_path / "run", model="mlp", model_options={"in_features": 64, "hidden": [16]}, download=True)
    asked = []
    monkeypatch.setattr("ncsam.engine.analysis.load_task", lambda config: asked.append(config.download) or 1 / 0)
    call("bound", tmp_path / "run", code=1)
    assert asked == [False]
    monkeypatch.setattr("ncsam.engine.task.load_task", lambda config, dataset: asked.append(config.download) or 1 / 0)
    call("clean", tmp_path / "run", "--dry-run", code=1)
    assert asked == [False, False]
