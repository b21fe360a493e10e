"""Frozen parts keep every bit; a frozen backbone trains on features computed once; a head may have its own rate."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parent))
import tiny_networks

from ncsam.data import from_arrays
from ncsam.engine import RunConfig, train
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.optimizers import build_optimizer
from ncsam.engine.predictor import load_predictor
from ncsam.methods import create as create_method
from ncsam.models import create
from ncsam.models.freeze import freeze

MODEL = "tiny_networks:build"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.delenv("NCSAM_CACHE", raising=False)
    monkeypatch.setenv("NCSAM_DATA", str(tmp_path / "cache"))


def images(count=60):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, count)
    x = generator.integers(0, 200, (count, 8, 8, 3), dtype=np.uint8)
    x[labels == 1, :, :, 0] += 55
    return from_arrays(x, labels, x_test=x, y_test=labels)


def config(**changes):
    options = {"optimizer": "sgd", "epochs": 2, "batch_size": 16, "lr": 0.5, "augment": "none", "freeze": ["backbone"]}
    return RunConfig(data="made", model=MODEL, val_share=0.1, **{**options, **changes})


def trained_state(folder):
    return load_checkpoint(folder / "checkpoints")["learners"][0]["network"]


@pytest.mark.parametrize("augment", ["none", "standard"])
@pytest.mark.parametrize("optimizer", ["sgd", "sam"])
def test_no_frozen_bit_changes_and_the_head_learns(tmp_path, augment, optimizer):
    train(config(augment=augment, optimizer=optimizer), tmp_path / "run", dataset=images(), console=False)
    state, before = trained_state(tmp_path / "run"), tiny_networks.build(2).state_dict()
    for name, value in before.items():
        same = torch.equal(state[f"network.{name}"], value)
        assert same == (not name.startswith("fc.")), name


def test_cached_features_train_the_head_as_the_whole_network_would(tmp_path, monkeypatch):
    """The same run with and without the cache: the same head."""
    train(config(), tmp_path / "cached", dataset=images(), console=False)
    assert len(list((tmp_path / "cache" / "features").glob("*/*.npy"))) == 1  # the test images are the training images
    from ncsam.engine import run

    monkeypatch.setattr(run, "_on_features", lambda fabric, config, task, console: task)
    train(config(), tmp_path / "plain", dataset=images(), console=False)
    one, two = trained_state(tmp_path / "cached"), trained_state(tmp_path / "plain")
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-5)


def test_the_run_answers_images_and_the_cache_is_used_again(tmp_path):
    dataset = images()
    summary = train(config(), tmp_path / "run", dataset=dataset, console=False)
    answer = load_predictor(tmp_path / "run", model=MODEL)
    p = torch.cat(list(answer.probabilities(dataset.test.inputs)))
    assert 100 * (p.argmax(dim=1).numpy() == dataset.test.labels).mean() == pytest.approx(summary["last"])
    train(config(seed=2), tmp_path / "again", dataset=dataset, console=True)
    assert len(list((tmp_path / "cache" / "features").glob("*/*.npy"))) == 1


def test_label_issues_of_a_folder_are_told_by_their_files(tmp_path):
    """Though the head was trained on features of the images."""
    from PIL import Image

    made = images(24).train
    for i, (pixels, label) in enumerate(zip(made.inputs, made.labels, strict=True)):
        folder = tmp_path / "photos" / f"class {label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
    train(config(epochs=1).replace(data=str(tmp_path / "photos")), tmp_path / "run", console=False)
    with (tmp_path / "run" / "label_issues.csv").open() as file:
        assert {Path(row["path"]).name for row in csv.DictReader(file)} == {f"{i:02d}.png" for i in range(24)}


def test_augmentation_is_off_by_itself_with_a_frozen_backbone():
    from ncsam.engine.resolve import resolve
    from ncsam.engine.task import load_task

    large = np.zeros((20, 32, 32, 3), dtype=np.uint8)
    large[::2] = 255
    dataset = from_arrays(large, [0, 1] * 10)
    for parts, wanted in ((["backbone"], "none"), ([], "standard")):
        asked = config(augment="auto", freeze=parts)
        assert resolve(asked, load_task(asked, dataset)).augment == wanted


def test_parts_are_named_by_the_beginnings_of_their_names():
    network = freeze(create("resnet18", 3), ["conv1", "bn1", "layer1"])
    frozen = {name.partition(".")[0] for name, p in network.named_parameters() if not p.requires_grad}
    assert frozen == {"conv1", "bn1", "layer1"}
    network.train()
    assert not network.bn1.training
    assert not any(module.training for module in network.layer1.modules())
    assert all(module.training for module in network.layer2.modules())
    with pytest.raises(ValueError, match=r"'layr1'\. Did you mean 'layer1'"):
        freeze(create("resnet18", 3), ["layr1"])


def test_a_copy_of_a_frozen_network_is_frozen_too():
    import copy

    network = freeze(create("cnn_small", 3), ["backbone"])
    twin = copy.deepcopy(network).train()
    with torch.no_grad():
        for p in network.parameters():
            p.zero_()
    assert not twin.body.training
    assert twin.features(torch.rand(2, 3, 8, 8)).abs().sum() > 0  # its own weights, not the first one's
    features = torch.rand(4, twin.num_features)
    torch.testing.assert_close(twin(features), twin.fc(features))


def test_the_head_has_its_own_learning_rate():
    network = create("cnn_small", 3)
    options = RunConfig(optimizer="sgd", lr=0.01, head_lr=0.1, weight_decay=0.001, layer_decay=1.0, base="sgd")
    optimizer = build_optimizer(options, nn.Sequential(network), create_method("ce"), 5)
    body, head = optimizer.param_groups
    assert (body["lr"], head["lr"], head["initial_lr"]) == (0.01, 0.1, 0.1)
    assert {id(p) for p in head["params"]} == {id(p) for p in network.fc.parameters()}
    assert len(body["params"]) + len(head["params"]) == len(list(network.parameters()))
