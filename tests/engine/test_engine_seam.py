"""The seam carries more than plain methods: two networks, several views, memory per sample, averages of weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncsam.data.loading.loader import Batch
from ncsam.engine import RunConfig, train
from ncsam.engine.trainer import Trainer
from ncsam.methods import Method, Plan, State, registry

from test_engine_run import images  # isort: skip


class Exchange(Method):
    """Two networks: each trains on the half of a batch that the other one finds easiest, and remembers who was easy."""

    networks: ClassVar[int] = 2
    views: ClassVar[tuple[str, ...]] = ("train", "plain")

    def __init__(self) -> None:
        self.average: Tensor | None = None
        self.epochs_seen: list[int] = []

    def on_train_start(self, state: State) -> None:
        state.samples.column("chosen", dtype=torch.int64)
        state.samples.column("smoothed", (state.num_classes,))

    def on_epoch_start(self, networks: Sequence[nn.Module], state: State) -> None:
        self.epochs_seen.append(state.epoch)
        if state.epoch > 1:
            state.samples["smoothed"].mul_(0.5).add_(state.predict(networks), alpha=0.5)

    def plan(self, batch: Batch, networks: Sequence[nn.Module], state: State) -> tuple[Plan, ...]:
        assert not torch.is_grad_enabled()
        weak, plain = batch.views
        easy = [
            F.cross_entropy(network(plain), batch.labels, reduction="none").argsort()[: len(batch) // 2]
            for network in networks
        ]
        for rows in easy:
            state.samples.add("chosen", batch.index[rows], 1)
        return tuple(Plan(weak[rows], batch.labels[rows], batch.index[rows]) for rows in reversed(easy))

    def on_step_end(self, networks: Sequence[nn.Module], state: State) -> None:
        weights = nn.utils.parameters_to_vector(networks[0].parameters()).detach()
        self.average = weights if self.average is None else torch.lerp(self.average, weights, 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average, "epochs_seen": self.epochs_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average, self.epochs_seen = state["average"], state["epochs_seen"]


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._METHODS, "exchange", Exchange)


def config(**changes: object) -> RunConfig:
    small = {"model": "mlp", "model_options": {"hidden": [16]}, "augment": "standard", "batch_size": 16, "epochs": 3}
    return RunConfig.from_dict({"noise": "symmetric", "rate": 0.4, "method": "exchange", **small, **changes})


@pytest.mark.parametrize("optimizer", ["sgd", "ncsam"])
def test_two_networks_with_memory_survive_a_stop_in_the_middle_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    chosen = config(optimizer=optimizer, rho=0.1, checkpoint_every=1)
    train(chosen, tmp_path / "whole", dataset=images(), console=False)
    step, count = Trainer._step, [0]

    def failing(self: Trainer, *args: object) -> None:
        count[0] += 1
        if count[0] == 10:
            raise ZeroDivisionError
        step(self, *args)

    monkeypatch.setattr(Trainer, "_step", failing)
    with pytest.raises(ZeroDivisionError):
        train(chosen, tmp_path / "stopped", dataset=images(), console=False)
    monkeypatch.setattr(Trainer, "_step", step)
    train(chosen, tmp_path / "stopped", dataset=images(), console=False)
    one, other = (
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True) for name in ("whole", "stopped")
    )
    assert len(one["learners"]) == 2
    first, second = (learner["network"]["fc.weight"] for learner in one["learners"])
    assert not torch.equal(first, second)
    for here, there in zip(one["learners"], other["learners"], strict=True):
        for name, value in here["network"].items():
            assert torch.equal(value, there["network"][name])
    for column, values in one["samples"].items():
        assert torch.equal(values, other["samples"][column]), column
    assert torch.equal(one["method"]["average"], other["method"]["average"])
    assert one["method"]["epochs_seen"] == other["method"]["epochs_seen"] == [1, 2, 3]
    # each network chooses half of every batch, in every epoch, from the samples trained on
    trained = 5 * (15 // 2) + 16 // 2  # 91 samples in six batches
    assert int(one["samples"]["chosen"].sum()) == 2 * 3 * trained
