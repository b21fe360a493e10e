"""Runs on data and models that are Python objects, with and without a run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ncsam.data import as_dataset, from_arrays, load
from ncsam.data.stored import load_dataset, save_dataset
from ncsam.data.types import DataSet, PathList, Split
from ncsam.engine import RunConfig, train
from ncsam.engine.config import IN_MEMORY
from ncsam.engine.task import task_of
from ncsam.errors import UsageError

CONFIG = RunConfig(noise="symmetric", rate=0.3, optimizer="sgd", epochs=2, batch_size=16)


def rows(samples: int = 80) -> DataSet:
    rng = np.random.default_rng(0)
    y = np.arange(samples) % 3
    x = (rng.normal(size=(samples, 5)) + 2 * np.eye(5)[y]).astype(np.float32)
    return from_arrays(
        x, np.array(["ant", "bee", "cat"])[y], x_test=x[:9], y_test=np.array(["ant", "bee", "cat"])[y[:9]]
    )


def build(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, num_classes))


def test_the_data_is_recorded_as_what_it_is_and_kept(tmp_path: Path) -> None:
    train(CONFIG, tmp_path / "run", dataset=rows(), console=False)
    assert RunConfig.from_yaml(tmp_path / "run/config.yaml").data == IN_MEMORY
    task = task_of(tmp_path / "run")
    again = rows()
    assert task.dataset.classes == again.classes
    np.testing.assert_array_equal(task.dataset.train.inputs, again.train.inputs)
    np.testing.assert_array_equal(task.dataset.train.clean, again.train.labels)
    assert 0 < np.mean(task.dataset.train.labels != again.train.labels) < 0.5  # the run's own noise, made again
    summary = train(CONFIG, tmp_path / "run", dataset=rows(), console=False)
    assert summary["data"] == IN_MEMORY


def test_without_a_copy_the_data_must_be_passed_again(tmp_path: Path) -> None:
    train(CONFIG, tmp_path / "run", dataset=rows(), console=False)
    (tmp_path / "run/data.npz").unlink()
    with pytest.raises(UsageError, match=f"data='{IN_MEMORY}'"):
        task_of(tmp_path / "run")
    assert len(task_of(tmp_path / "run", rows()).dataset.train) == 80


def test_texts_and_paths_are_stored_and_other_objects_are_not(tmp_path: Path) -> None:
    texts = as_dataset((["a good film", "bad ❄", "", "so good"] * 3, [1, 0, 0, 1] * 3))
    assert save_dataset(tmp_path / "texts.npz", texts)
    again = load(tmp_path / "texts.npz")
    assert list(again.train.inputs) == list(texts.train.inputs)
    assert again.train.inputs.tokenizer.state() == texts.train.inputs.tokenizer.state()  # type: ignore[union-attr]
    paths = DataSet("p", ("a", "b"), Split(PathList(tmp_path, ["x.png", "y.png"]), np.array([0, 1])), None, size=(8, 8))
    assert save_dataset(tmp_path / "paths.npz", paths)
    found = load_dataset(tmp_path / "paths.npz")
    assert (list(found.train.inputs), found.size) == (list(paths.train.inputs), (8, 8))
    assert not save_dataset(tmp_path / "other.npz", DataSet("o", ("a", "b"), Split([object()], np.array([0])), None))
    assert not (tmp_path / "other.npz").exists()


def test_a_run_without_a_folder_is_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summary = train(CONFIG, dataset=rows(), console=False)
    assert list(tmp_path.iterdir()) == []
    assert summary.trainer is not None
    written = train(CONFIG, tmp_path / "run", dataset=rows(), console=False)
    assert {**summary, "seconds": 0} == {**written, "seconds": 0}
    saved = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["learners"][0]["network"]
    ours = summary.trainer.result[1][0].state_dict()
    assert all(torch.equal(ours[name], value) for name, value in saved.items())


def test_a_model_is_trained_in_place_and_a_factory_builds_what_a_method_needs() -> None:
    torch.manual_seed(0)
    model = build(3)
    before = model[0].weight.detach().clone()
    summary = train(CONFIG, dataset=rows(), model=model, console=False)
    assert summary["model"] == IN_MEMORY
    assert not torch.equal(before, model[0].weight)
    assert summary.trainer is not None
    assert summary.trainer.config.lr == 0.0125  # an mlp's
    two = CONFIG.replace(method="coteaching")
    with pytest.raises(UsageError, match="model='Sequential'"):
        train(two, dataset=rows(), model=build(3), console=False)
    built = train(two, dataset=rows(), model=build, console=False).trainer
    assert built is not None
    assert len(built.result[1]) == 2


def test_evaluations_of_the_training_split_may_be_left_to_the_end() -> None:
    trainer = train(CONFIG.replace(evaluate_train_every=None), dataset=rows(), console=False).trainer
    assert trainer is not None
    assert [record["train_accuracy_observed"] is None for record in trainer.history] == [True, False]
    assert trainer.dynamics.numbers("evaluations").tolist() == [1] * 80
