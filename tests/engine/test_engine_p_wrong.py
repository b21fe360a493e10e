"""The engine gives `sam-weighted` the probabilities of wrong labels: out of fold, of the samples trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ncsam.classifiers.fit import cross_fit, issue_probabilities
from ncsam.engine import RunConfig, train
from ncsam.engine.device import choose_device
from ncsam.engine.fitted_run import feature_rows, wrong_label_probabilities
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.engine.trainer import Trainer
from ncsam.issues.find import find_label_issues
from ncsam.optim import WeightedSAM


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three separate classes in eight dimensions, every seventh label wrong."""
    rng = np.random.default_rng(0)
    clean = np.arange(210) % 3
    x = (rng.normal(size=(210, 8)) + 10 * np.eye(3, 8)[clean]).astype(np.float32)
    y = clean.copy()
    y[::7] = (y[::7] + 1) % 3
    file = tmp_path_factory.mktemp("blobs") / "blobs.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=clean)
    return file


def trainer(data: Path, **options: Any) -> Trainer:
    given = {"model": "mlp", "epochs": 1, "rho": 0.1, "lr": 0.05, "warmup": 0.0, "batch_size": 32, **options}
    config = RunConfig(data=str(data), val_share=0.2, **given)
    task = load_task(config)
    return Trainer(choose_device(config), resolve(config, task), task)


def test_wrong_labels_have_large_probabilities_and_held_out_samples_none(blobs: Path) -> None:
    run = trainer(blobs, optimizer="sam-weighted")
    assert run.p_wrong is not None
    train = torch.from_numpy(run.task.train)
    wrong = torch.arange(210) % 7 == 0
    used = torch.zeros(210, dtype=torch.bool)
    used[train] = True
    assert run.p_wrong[used & wrong].min() > 0.5 > run.p_wrong[used & ~wrong].max()
    assert not run.p_wrong[~used].any()
    assert torch.equal(run.p_wrong, wrong_label_probabilities(run.config, run.task))


def test_they_are_those_of_label_issues(blobs: Path) -> None:
    run = trainer(blobs, optimizer="sam-weighted")
    assert run.p_wrong is not None
    train = run.task.train
    labels = run.task.dataset.train.labels[train]
    rows = feature_rows(run.config, run.task, run.task.dataset.train)[torch.from_numpy(train)]
    fitted = cross_fit("smooth", rows, torch.from_numpy(labels), 3)
    issues = find_label_issues(labels, issue_probabilities(fitted, labels, table=False))
    p = np.empty(len(labels))
    p[issues.numbers("index").astype(int)] = issues.numbers("p_wrong")
    np.testing.assert_allclose(run.p_wrong[torch.from_numpy(train)].numpy(), p, atol=1e-6)


def test_where_they_cannot_be_estimated_they_are_zero(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(4, size=200)
    np.savez(tmp_path / "guesses.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    run = trainer(tmp_path / "guesses.npz", optimizer="sam-weighted")
    assert run.p_wrong is not None
    assert not run.p_wrong.any()


def test_each_batch_gets_its_own(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    weighted = WeightedSAM._weighted_loss
    monkeypatch.setattr(
        WeightedSAM, "_weighted_loss", lambda self, batch: (seen.append(self.p_wrong), weighted(self, batch))[1]
    )
    run = trainer(blobs, optimizer="sam-weighted")
    run.fit()
    assert run.p_wrong is not None
    joined = torch.cat(seen).sort().values
    assert torch.equal(joined, run.p_wrong[torch.from_numpy(run.task.train)].sort().values)


def test_without_strength_it_trains_as_sam_does(blobs: Path) -> None:
    found = []
    for options in (
        {"optimizer": "sam"},
        {"optimizer": "sam-weighted", "optimizer_options": {"strength": 0.0}},
        {"optimizer": "sam-weighted", "optimizer_options": {"strength": 1.0}},
    ):
        run = trainer(blobs, **options)
        run.fit()
        found.append(torch.cat([p.detach().flatten() for p in run.networks[0].parameters()]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gray 6 x 6 images whose bright corner tells the class, every seventh label wrong."""
    rng = np.random.default_rng(3)
    clean = np.arange(200) % 4
    x = rng.integers(0, 120, size=(200, 6, 6, 1), dtype=np.uint8)
    for i, label in enumerate(clean):
        x[i, 3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 100
    y = clean.copy()
    y[::7] = (y[::7] + 1) % 4
    file = tmp_path_factory.mktemp("corners") / "corners.npz"
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=clean)
    return file


def test_small_images_have_them_and_a_stopped_run_resumes_with_the_same(
    corners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighted: list[int] = []
    loss = WeightedSAM._weighted_loss

    def counted(self: WeightedSAM, batch: Any) -> torch.Tensor:
        assert self.p_wrong is not None
        weighted.append(int((self.p_wrong > 0.9).sum()))
        return loss(self, batch)

    monkeypatch.setattr(WeightedSAM, "_weighted_loss", counted)
    options = {"optimizer": "sam-weighted", "rho": 0.1, "warmup": 0.0, "epochs": 2, "checkpoint_every": 2}
    config = RunConfig.from_dict({"data": str(corners), "model": "mlp", "batch_size": 32, **options})
    train(config, tmp_path / "whole", console=False)
    assert sum(weighted) > 20

    def stopping(self: Trainer, epoch: int, number: int, batch: Any) -> None:
        if (epoch, number) == (2, 3):
            raise KeyError("stopped")
        step(self, epoch, number, batch)

    step = Trainer._step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopping)
        with pytest.raises(KeyError, match="stopped"):
            train(config, tmp_path / "stopped", console=False)
    train(config, tmp_path / "stopped", console=False)
    ends = [torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True) for name in ("whole", "stopped")]
    for one, other in zip(*(end["learners"][0]["network"].values() for end in ends), strict=True):
        assert torch.equal(one, other)


def test_rows_of_two_samples_have_none(blobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixed row has two labels, so mixup takes SAM's step."""
    monkeypatch.setattr(WeightedSAM, "_weighted_loss", lambda self, batch: pytest.fail("a mixed row was weighted"))
    trainer(blobs, optimizer="sam-weighted", method="mixup").fit()


def test_large_images_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "large.npz", x=rng.integers(256, size=(40, 40, 40, 3), dtype=np.uint8), y=np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"optimizer='sam-weighted'.*features"):
        trainer(tmp_path / "large.npz", optimizer="sam-weighted", model="cnn_small", model_options={"width": 2})
