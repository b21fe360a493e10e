"""A closed-form model as the model of a run: the same folder, predictions, label issues, folds and export."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ncsam import classifiers
from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train
from ncsam.engine.metrics import class_metrics
from ncsam.engine.out_of_fold import out_of_fold
from ncsam.engine.predictor import load_predictor
from ncsam.engine.task import load_task
from ncsam.errors import UsageError
from ncsam.models import closed_form_names
from ncsam.runs.reader import RunFolder, load_oof
from ncsam.runs.writer import OutOfFold, save_oof


def made(samples: int = 200, classes: int = 3) -> DataSet:
    rng = np.random.default_rng(0)
    truth = rng.integers(classes, size=2 * samples)
    x = (2.0 * np.eye(classes, 5)[truth] + 0.7 * rng.normal(size=(2 * samples, 5))).astype(np.float32)
    given = np.where(rng.random(samples) < 0.3, rng.integers(classes, size=samples), truth[:samples])
    return from_arrays(x[:samples], given, y_clean=truth[:samples], x_test=x[samples:], y_test=truth[samples:])


@pytest.mark.parametrize("model", ["lda", "prototypes", "kernel", "smooth", "forest"])
def test_a_closed_form_run_is_a_run(tmp_path: Path, model: str) -> None:
    dataset = made()
    options = {"trees": 10} if model == "forest" else {}
    config = RunConfig(model=model, model_options=options, val_share=0.1, accelerator="cpu")
    summary = train(config, tmp_path, dataset=dataset, console=False)
    run = RunFolder.read(tmp_path)
    assert run.finished
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert dataset.test is not None
    p = torch.cat(list(load_predictor(tmp_path).probabilities(dataset.test.inputs))).double().numpy()
    assert summary["last"] == pytest.approx(100 * (p.argmax(axis=1) == dataset.test.labels).mean())
    assert summary["last"] > 85
    measured = class_metrics("test", p.argmax(axis=1), dataset.test.labels, p)
    assert {name: summary[name] for name in ("test_f1", "test_auc")}.items() <= {
        name: pytest.approx(value, abs=1e-3) for name, value in measured.items()
    }.items()
    assert summary["label_issues_auroc"] > 0.9
    oof = load_oof(tmp_path)
    assert oof is not None
    assert oof.belong_to(dataset.train.labels)
    assert train(config, tmp_path, dataset=dataset, console=False) == summary  # finished: returned as it is


def test_all_rows_are_fitted_and_those_of_validation_judged_out_of_fold(tmp_path: Path) -> None:
    dataset = made()
    config = RunConfig(model="lda", val_share=0.2, accelerator="cpu")
    summary = train(config, tmp_path, dataset=dataset, console=False)
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)["learners"][0]["network"]
    inputs: Any = dataset.train.inputs
    x = (inputs - np.array(dataset.mean, dtype=np.float32)) / np.array(dataset.std, dtype=np.float32)
    labels = torch.from_numpy(dataset.train.labels)
    direct = classifiers.cross_fit("lda", torch.from_numpy(x), labels, 3)
    torch.testing.assert_close(state["weight"], direct.member.state["weight"], atol=1e-3, rtol=1e-3)
    held = load_task(config, dataset).val
    assert held is not None
    right = direct.probabilities.argmax(axis=1)[held] == dataset.train.labels[held]
    assert summary["val_accuracy"] == pytest.approx(100 * right.mean())


def test_folds_are_those_of_the_model(tmp_path: Path) -> None:
    dataset = made()
    config = RunConfig(model="prototypes", val_share=0.0, accelerator="cpu")
    train(config, tmp_path, dataset=dataset, console=False)
    found = out_of_fold(tmp_path, 3, dataset=dataset, console=False)
    assert found.about["folds"] == 3
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-4)
    assert (found.probabilities.argmax(axis=1) == dataset.train.clean).mean() > 0.85


@pytest.mark.parametrize("model", ["mean", "stacked"])
def test_a_combination_keeps_the_folds_of_the_search(tmp_path: Path, model: str) -> None:
    dataset = made()
    members = [{"model": "forest", "options": {"trees": 5}}]
    options = {"mean": {"members": members, "weights": [1.0], "temperatures": [1.0]}, "stacked": {"groups": [members]}}
    RunConfig(model=model, model_options=options[model], val_share=0.0).save(tmp_path / "config.yaml")
    with pytest.raises(UsageError, match="run="):
        out_of_fold(tmp_path, 2, dataset=dataset, console=False)
    rows = np.full((200, 3), 1 / 3, dtype=np.float32)
    save_oof(tmp_path, OutOfFold.of(rows, dataset.train.labels, {"folds": 5, "seed": 1}))
    found = out_of_fold(tmp_path, 2, dataset=dataset, console=False)
    assert found.about["folds"] == 5
    np.testing.assert_allclose(found.probabilities, rows, atol=1e-3)
    other = dataclasses.replace(dataset, train=dataset.train.with_labels((dataset.train.labels + 1) % 3, None))
    with pytest.raises(UsageError, match="run="):
        out_of_fold(tmp_path, 2, dataset=other, console=False)


def test_label_issues_of_any_run_on_features_come_from_the_recommended_model(tmp_path: Path) -> None:
    dataset = made()
    config = RunConfig(
        model="mlp", model_options={"hidden": [8]}, optimizer="sgd", epochs=1, val_share=0.0, accelerator="cpu"
    )
    summary = train(config, tmp_path, dataset=dataset, console=False)
    oof = load_oof(tmp_path)
    assert oof is not None
    assert (oof.about["model"], oof.about["folds"]) == ("smooth", 5)
    inputs: Any = dataset.train.inputs
    x = (inputs - np.array(dataset.mean, dtype=np.float32)) / np.array(dataset.std, dtype=np.float32)
    fitted = classifiers.cross_fit("smooth", torch.from_numpy(x), torch.from_numpy(dataset.train.labels), 3)
    wanted = classifiers.issue_probabilities(fitted, dataset.train.labels, table=False)
    np.testing.assert_allclose(oof.probabilities, wanted, atol=1e-3)
    assert summary["label_issues_auroc"] > 0.9


def test_rare_classes_keep_their_frequencies() -> None:
    p = np.array([[0.6, 0.4]] * 10)
    member = classifiers.Member("lda")
    for labels, adjusted in ((np.array([0] * 7 + [1] * 3), True), (np.array([0] * 9 + [1]), False)):
        found = classifiers.issue_probabilities(classifiers.Fitted(member, p, p), labels, table=False)
        assert np.allclose(found, p) != adjusted
    q = classifiers.issue_probabilities(classifiers.Fitted(member, p, p), np.array([0] * 7 + [1] * 3), table=False)
    ratio = 0.6 / (8 / 12) / (0.4 / (4 / 12))
    np.testing.assert_allclose(q[:, 0] / q[:, 1], ratio)
    assert classifiers.issue_probabilities(classifiers.Fitted(member, p, p), np.zeros(10, int), table=True) is p


def test_every_name_is_documented() -> None:
    assert {"smooth", "smooth_table", "lda", "prototypes", "knn", "kernel", "forest"} <= set(closed_form_names())


def test_the_recommended_model_follows_the_data() -> None:
    from dataclasses import replace

    from ncsam.engine.resolve import resolve
    from ncsam.engine.task import load_task

    dataset = made()
    pixels = np.zeros((30, 20, 20, 3), dtype=np.uint8)
    cases = {
        "smooth": dataset,
        "smooth_table": replace(dataset, columns=("a", "b", "c", "d", "e")),
        "resnet18": from_arrays(pixels, np.arange(30) % 3),
    }
    config = RunConfig()
    for model, data in cases.items():
        assert resolve(config, load_task(config, data)).model == model
    assert RunConfig.from_preset("recommended") == RunConfig()
