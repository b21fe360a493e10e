"""Answers that are not finite end a run as divergence, whatever its weights are, before anything rests on them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_engine_resume import small_config, small_data, stop_after_two_epochs

from ncsam.engine import RunError, train
from ncsam.engine.trainer import Trainer

DEEP = {"hidden": [8, 8]}
NO_CHECKPOINT = r"training diverged\. Try a smaller lr \(now 1e\+18\)\. There is no checkpoint yet$"


def one_huge_step(folder: Path, **changes: object) -> None:
    """Weights that are finite, and so large that the products with them are not."""
    options: dict[str, object] = {
        "lr": 1e18,
        "method": "ce",
        "optimizer": "sgd",
        "batch_size": 128,
        "checkpoint_every": None,
    }
    options["model_options"] = DEEP
    train(small_config(**{**options, **changes}), folder, dataset=small_data(), console=False)


@pytest.mark.parametrize("changes", [{"epochs": 1}, {}, {"val_share": 0.0}, {"evaluate_train_every": 5}])
def test_predictions_that_are_not_finite_end_the_run(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(RunError, match=rf"predictions .* are not finite in epoch 1: {NO_CHECKPOINT}"):
        one_huge_step(tmp_path / "run", **changes)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        ".lock",
        "config.yaml",
        "data.npz",
        "noise.json",
        "noise.npz",
    }
    train(small_config(epochs=1), tmp_path / "run", dataset=small_data(), console=False)  # the folder is not blocked


def test_the_checkpoint_before_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(model_options=DEEP)
    kept = stop_after_two_epochs(tmp_path, monkeypatch, config)
    step = Trainer._step

    def lost_in_the_end(self: Trainer, epoch: int, number: int, batch: object) -> None:
        step(self, epoch, number, batch)
        if number == self.steps_per_epoch - 1:
            with torch.no_grad():
                for weight in self.networks[0].parameters():
                    weight.fill_(1e15)

    monkeypatch.setattr(Trainer, "_step", lost_in_the_end)
    said = r"predictions .* not finite in epoch 3: training diverged.* checkpoint is intact in .*run/checkpoints$"
    with pytest.raises(RunError, match=said):
        train(config, tmp_path / "run", dataset=small_data(), console=False)
    assert (tmp_path / "run/checkpoints/last.ckpt").read_bytes() == kept


def test_the_checkpoint_of_a_folder_around_it_is_none_of_the_runs(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/last.ckpt").write_bytes(b"of another run")
    with pytest.raises(RunError, match=NO_CHECKPOINT):
        one_huge_step(tmp_path / "run")
