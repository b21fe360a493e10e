"""Models passed to the API as objects: trained, loaded again, and never silently left out."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import ncsam
from ncsam.engine.out_of_fold import check_folds
from ncsam.errors import UsageError

QUICK: dict[str, Any] = {"epochs": 2, "optimizer": "sgd", "accelerator": "cpu"}


class Net(nn.Module):
    """Its number of classes is neither the first parameter nor the only one that says "class"."""

    def __init__(self, width: int = 7, classifier_dropout: float = 0.5, *, n_classes: int) -> None:
        super().__init__()
        hidden = (nn.Linear(5, width), nn.BatchNorm1d(width), nn.Dropout(classifier_dropout))
        self.layers = nn.Sequential(*hidden, nn.Linear(width, n_classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def anything(**options: int) -> nn.Module:
    return nn.Linear(5, options.get("num_classes", 10))


def lazy(outputs: int) -> nn.Module:
    return nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(outputs))


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = np.arange(96) % 3
    return (generator.normal(size=(96, 5)) + 3 * np.eye(3, 5)[labels]).astype(np.float32), labels


@pytest.mark.parametrize("build", [Net, functools.partial(Net, 4), anything, lazy, lambda: nn.Linear(5, 3)])
def test_what_was_trained_predicts_whatever_its_signature(build: Callable[..., nn.Module], rows: Any) -> None:
    run = ncsam.train(rows, model=build, **QUICK)
    x = rows[0]
    prepared = (torch.from_numpy(x) - torch.tensor(run.data.mean)) / torch.tensor(run.data.std)
    with torch.no_grad():
        expected = run.model(prepared).softmax(dim=1).numpy()
    np.testing.assert_allclose(run.predict(x).probabilities, expected, atol=1e-5)


def test_a_model_with_a_learning_rate_for_its_head_is_loaded_as_it_was_built(rows: Any, tmp_path: Path) -> None:
    ncsam.train(rows, tmp_path / "run", model=Net, head_lr=0.01, **QUICK)
    assert ncsam.load_run(tmp_path / "run").classes == ["0", "1", "2"]  # without the model
    with pytest.raises(UsageError, match=r"model.*expected the model itself.*load_run\(folder, model=\.\.\.\)"):
        ncsam.load_run(tmp_path / "run").predict(rows[0])
    loaded = ncsam.load_run(tmp_path / "run", model=Net)
    assert loaded.predict(rows[0]).probabilities.shape == (96, 3)
    assert loaded.to_datalab()["pred_probs"].shape == (96, 3)


@pytest.mark.parametrize(
    ("call", "model"),
    [
        (ncsam.auto, Net),
        (ncsam.audit, Net(n_classes=3)),
        (ncsam.compare, Net(n_classes=3)),
        (ncsam.compare, lambda n: nn.Linear(5, n)),
        (ncsam.compare, functools.partial(Net, 4)),
    ],
)
def test_where_only_names_serve_an_object_is_refused(call: Any, model: Any, rows: Any) -> None:
    with pytest.raises(UsageError, match=r"invalid model=.*expected the name of a model"):
        call(rows, model=model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": Net(n_classes=3), "folds": 3}, "expected a function that builds it"),
        ({"model": Net, "model_options": {"width": 3}}, "invalid model_options={'width': 3}"),
        ({"model": Net, "pretrained": True}, "invalid pretrained=True"),
        ({"model": Net(n_classes=3).requires_grad_(False)}, "a parameter that requires a gradient"),
        ({"model": nn.Linear(5, 3, device="meta")}, "on the meta device"),
        ({"model": nn.Sequential(nn.Linear(5, 3), nn.Softmax(dim=1))}, "logits, not probabilities"),
        ({"model": LogisticRegression()}, r"ncsam.find_label_issues\(labels, cross_val_predict"),
        ({"model": LogisticRegression}, r"returned LogisticRegression; .*ncsam.find_label_issues"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    options: dict[str, Any], said: str, rows: Any, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        ncsam.train(rows, tmp_path / "run", **QUICK, **options)
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda rows: ncsam.train(rows, method=ncsam.methods.get("gce")), r"invalid method=.*'ncsam.methods.gce:GCE'"),
        (lambda rows: ncsam.train(rows, optimizer=ncsam.SAM), r"invalid optimizer=.*'ncsam.optim.sam:SAM'"),
        (lambda rows: ncsam.compare(rows, optimizers=["sgd", ncsam.SAM]), r"invalid optimizers=.*names; a class"),
        (lambda rows: ncsam.compare(rows, methods=[ncsam.methods.get("gce")]), r"invalid methods=.*'module:Name'"),
    ],
)
def test_a_class_in_place_of_a_name_is_answered_with_the_form_of_the_name(call: Any, said: str, rows: Any) -> None:
    with pytest.raises(UsageError, match=said):
        call(rows)


def test_a_function_may_be_trained_on_folds(rows: Any) -> None:
    check_folds(ncsam.RunConfig(), 3, ncsam.data.as_dataset(rows), Net)


@pytest.mark.slow
def test_a_comparison_imports_a_class_that_lies_beside_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "nets.py").write_text(
        "from torch import nn\n"
        "class Flat(nn.Sequential):\n"
        "    def __init__(self, n_class):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, n_class))\n",
        encoding="utf-8",
    )
    (folder / "script.py").write_text(
        "import ncsam, nets\n"
        "shared = dict(optimizers=['sgd'], seeds=1, epochs=1, workers=1)\n"
        "print(ncsam.compare('digits', 'runs', model=nets.Flat, **shared).table['model'].tolist())\n"
        "print(ncsam.compare('digits', 'others', model='nets:missing', **shared))\n",
        encoding="utf-8",
    )
    said = subprocess.run(
        [sys.executable, os.path.join("scripts", "script.py")], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, *rest = said.stdout.splitlines()
    assert first == "['nets:Flat']"
    assert "1 failed (" in rest[-1]
    assert "has no 'missing'" in rest[-1]
