"""What a method may ask of the engine: features, inner batches, stages, verified labels, heads, steps of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ncsam import methods, models
from ncsam.data import from_arrays
from ncsam.data.modalities.images import Images
from ncsam.engine import RunConfig, train
from ncsam.engine.evaluate import verdicts
from ncsam.engine.learner import train_mode
from ncsam.engine.schedule_control import Stages
from ncsam.engine.task import view_names
from ncsam.engine.trainer import Trainer
from ncsam.methods import Method, Stage, State
from ncsam.methods.heads import WithHeads, features_of
from ncsam.methods.registry import _METHODS
from ncsam.methods.steps import sgd
from ncsam.vectors.saved import evaluation_mode
from two_processes import checkpoint, on_features, train_by_two, write_features

import staged_method  # isort: skip


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_METHODS, "staged", staged_method.Staged)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_features(tmp_path_factory.mktemp("data") / "small.npz")


def options(data: Path, **changes: object) -> dict[str, Any]:
    return on_features(data, method="staged", epochs=3, warmup=0.0, checkpoint_every=2, lr=0.05, **changes)


def parts(folder: Path) -> dict[str, Any]:
    state = checkpoint(folder)
    return {name: state[name] for name in ("learners", "samples", "method")}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(*pair) for pair in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize(("fresh", "frozen"), [(True, False), (False, True)])
@pytest.mark.parametrize("optimizer", ["sgd", "ncsam"])
def test_the_same_bits_after_stops(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, fresh: bool, frozen: bool
) -> None:
    wanted = RunConfig.from_dict(options(data, optimizer=optimizer, method_options={"fresh": fresh, "frozen": frozen}))
    summary = train(wanted, tmp_path / "whole", console=False)
    assert summary["verified"]["samples"] == 20  # a quarter of 80
    assert "seed 1" in summary["verified"]["source"]
    step, stops = Trainer._step, [(1, 3), (2, 0), (2, 3), (3, 4)]

    def failing(self: Trainer, epoch: int, number: int, batch: Any) -> None:
        if (epoch, number) in stops:
            stops.remove((epoch, number))
            raise ZeroDivisionError
        step(self, epoch, number, batch)

    monkeypatch.setattr(Trainer, "_step", failing)
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            train(wanted, tmp_path / "stopped", console=False)
    train(wanted, tmp_path / "stopped", console=False)
    assert equal(parts(tmp_path / "whole"), parts(tmp_path / "stopped"))


def test_a_stage_begins_with_fresh_weights_optimizer_and_schedule(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, Any] = {}
    begin, step = staged_method.Staged.on_epoch_start, Trainer._step
    rates: list[float] = []

    def beginning(self: Any, networks: Any, state: State) -> None:
        weights = networks[0].state_dict()["backbone.fc.weight"].clone()
        seen[state.epoch] = (weights, len(self_trainer[0].learners[0].optimizer.state))
        begin(self, networks, state)

    self_trainer: list[Trainer] = []
    monkeypatch.setattr(staged_method.Staged, "on_epoch_start", beginning)

    def stepping(self: Trainer, *args: Any) -> None:
        step(self, *args)
        rates.append(self.learners[0].lr)

    monkeypatch.setattr(Trainer, "_step", stepping)
    fit = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda self, *sinks: (self_trainer.append(self), fit(self, *sinks))[1])
    train(RunConfig.from_dict(options(data, optimizer="sgd", schedule="linear")), tmp_path, console=False)
    assert seen[2][1] == 0  # no momentum
    assert seen[3][1] > 0
    assert not torch.equal(seen[1][0], seen[2][0])  # other weights than those of the beginning
    assert float(seen[2][0].std()) == pytest.approx(float(seen[1][0].std()), rel=0.5)
    # 5 steps an epoch: 1 - t of the run's .05 over the first, then half of that over the other two
    expected = [0.05 * (1 - i / 5) for i in range(5)] + [0.025 * (1 - i / 10) for i in range(10)]
    assert rates == pytest.approx(expected)


def test_frozen_norms_stay_frozen(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through evaluations, which put networks into evaluation mode and back."""
    seen: list[torch.Tensor] = []
    after = staged_method.Staged.on_step_end

    def noting(self: Any, networks: Any, state: State) -> None:
        after(self, networks, state)
        seen.append(networks[0].state_dict()["heads.side.0.running_mean"].clone())

    monkeypatch.setattr(staged_method.Staged, "on_step_end", noting)
    wanted = options(data, optimizer="sgd", method_options={"fresh": False, "frozen": True})
    train(RunConfig.from_dict(wanted), tmp_path, console=False)
    assert not torch.equal(seen[0], seen[4])
    assert all(torch.equal(seen[4], mean) for mean in seen[5:])


@pytest.mark.stress  # a pair of processes more: methods in two processes are in tests/methods
def test_two_processes(data: Path, tmp_path: Path) -> None:
    names = {"sgd": options(data, optimizer="sgd"), "ncsam": options(data, optimizer="ncsam")}
    frozen = options(data, optimizer="sgd", method_options={"fresh": False, "frozen": True})
    runs = [(tmp_path / name, wanted, None) for name, wanted in {**names, "frozen": frozen}.items()]
    stopped = [(tmp_path / "stopped", names["sgd"], [1, 4]), (tmp_path / "stopped", names["sgd"], None)]
    train_by_two([*runs, *stopped], "staged_method")
    both = checkpoint(tmp_path / "sgd")
    assert len(both["ranks"]) == 2
    assert equal(parts(tmp_path / "sgd"), parts(tmp_path / "stopped"))
    train(RunConfig.from_dict(names["sgd"]), tmp_path / "alone", console=False)
    alone = checkpoint(tmp_path / "alone")
    # features are those of the same fresh network, whoever computes them; later BatchNorm tells the halves apart
    assert both["method"]["means"][0] == pytest.approx(alone["method"]["means"][0], rel=1e-5)


def test_features_are_what_the_head_sees() -> None:
    backbone = models.create("mlp", 3, in_features=5, hidden=[4])
    network = WithHeads(backbone, {"extra": nn.Linear(4, 2)})
    x = torch.randn(6, 5)
    expected = backbone.features(x)
    for module in (backbone, network, nn.Sequential(network)):
        assert torch.equal(features_of(module, x), expected)
    answer = network(x, "extra")
    assert torch.equal(answer["features"], expected)
    assert torch.equal(answer["logits"], backbone(x))
    assert torch.equal(answer["extra"], network.heads["extra"](expected))
    with pytest.raises(ValueError, match="model='Linear'"):
        features_of(nn.Linear(5, 3), x)


def test_a_head_that_is_not_asked_has_a_gradient_of_zero() -> None:
    network = WithHeads(models.create("mlp", 3, in_features=5, hidden=[4]), {"extra": nn.Linear(4, 2)})
    network(torch.randn(6, 5)).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    assert float(network.heads["extra"].weight.grad.abs().sum()) == 0


def test_modes_are_put_back_one_by_one() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    train_mode([network], frozen_norms=True)
    assert [m.training for m in network] == [True, False, True]
    with evaluation_mode([network]):
        assert not any(m.training for m in network.modules())
    assert [m.training for m in network] == [True, False, True]


def test_stages_must_fill_the_run() -> None:
    class Short(Method):
        def stages(self, epochs: int) -> tuple[Stage, ...]:
            return Stage(2), Stage(3)

    assert [Stages(Short(), 5).at(epoch) for epoch in (1, 2, 3, 5)] == [(0, 1), (0, 2), (1, 1), (1, 3)]
    with pytest.raises(ValueError, match=r"stages=\[2, 3\]"):
        Stages(Short(), 6)


def test_a_side_step_is_plain_sgd() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    side = sgd([weight], lr=0.1, momentum=0.0, decay=0.0)
    state = State(2, torch.zeros(2), 1, 1, samples=None)
    side.step((weight**2).sum(), state)
    torch.testing.assert_close(weight.detach(), torch.tensor([0.8, -1.6]))  # w - .1 * 2 w
    side.step((weight**2).sum(), state, lr=0.5)
    torch.testing.assert_close(weight.detach(), torch.zeros(2))


def test_random_streams_are_apart_and_repeat() -> None:
    state = State(2, torch.zeros(2), 1, 1, samples=None, seed=3)
    assert state.random().random() == state.random(0).random()
    assert state.random(1).random() == state.random(1).random() != state.random(0).random()


def test_inner_batches_hold_the_asked_samples_once(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def asking(self: Any, networks: Any, state: State) -> None:
        index = torch.tensor([3, 1, 4, 15, 9, 2, 6])
        for _ in range(2):
            batches = list(state.batches(index, ("plain", "train"), batch_size=3, stream=len(found) // 2))
            found.append(batches)
        self._side(networks)

    monkeypatch.setattr(staged_method.Staged, "on_epoch_start", asking)
    train(RunConfig.from_dict({**options(data, optimizer="sgd"), "epochs": 2}), tmp_path, console=False)
    orders = [torch.cat([batch.index for batch in batches]).tolist() for batches in found]
    assert sorted(len(batch) for batch in found[0]) == [2, 2, 3]
    assert all(sorted(order) == [1, 2, 3, 4, 6, 9, 15] for order in orders)
    assert orders[0] == orders[1]  # the same stream in the same epoch
    assert len(found[0][0].views) == 2


def test_verified_labels_of_the_data_set_or_drawn() -> None:
    labels = np.arange(40) % 2
    clean = np.where(np.arange(40) < 10, 1 - labels, labels)
    x = np.zeros((40, 3), dtype=np.float32)
    dataset = from_arrays(x, labels, x_test=x, y_test=labels)
    from dataclasses import replace

    from ncsam.engine.task import Task

    method = staged_method.Staged()
    known = replace(dataset, train=replace(dataset.train, clean=clean))
    found, about = verdicts(method, Task(known, np.arange(40), None, None), seed=1)
    rows = np.flatnonzero(found >= 0)
    assert len(rows) == 10
    assert (found[rows] == (labels[rows] == clean[rows])).all()
    assert about["source"] == "clean labels of 0.25 of the training samples, drawn by seed 1"
    judged = np.full(40, -1, dtype=np.int8)
    judged[[3, 5]] = 1, 0
    own = replace(dataset, train=replace(known.train, verified=judged))
    found, about = verdicts(method, Task(own, np.arange(4), np.arange(4, 40), None), seed=1)
    assert found.tolist() == [-1, -1, -1, 1] + [-1] * 36  # what is held out is not shown
    assert about == {"source": "the dataset's own", "samples": 1, "right": 1}
    with pytest.raises(ValueError, match="method='staged'"):
        verdicts(method, Task(replace(dataset, train=replace(dataset.train, clean=None)), np.arange(40), None, None), 1)
    assert verdicts(methods.create("ce"), Task(dataset, np.arange(40), None, None), 1) == (None, None)
    wrong = replace(dataset, train=replace(dataset.train, clean=1 - labels))
    with pytest.raises(ValueError, match="drawn by seed 1"):
        verdicts(method, Task(wrong, np.arange(40), None, None), 1)


def test_views_after_auto_are_shifted_where_the_run_does_not_augment() -> None:
    wanted = ("train", "auto", "auto:simclr", "simclr")
    kind = Images((0.5,), (0.5,), (8, 8), 1)
    assert view_names(RunConfig(augment="standard"), wanted, kind) == ["weak", "strong", "simclr", "simclr"]
    assert view_names(RunConfig(augment="none"), wanted, kind) == ["plain", "shifted", "shifted", "simclr"]


def test_a_method_of_images_says_so(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_method.Staged, "images_only", True)
    with pytest.raises(ValueError, match="method='staged'"):
        train(RunConfig.from_dict(options(data)), tmp_path, console=False)


def test_a_tables_column_of_verified_labels(tmp_path: Path) -> None:
    from PIL import Image

    from ncsam.data import from_table

    rows = ["path,label,verified,split"]
    for i, verdict in enumerate(("1", "", "no", "1.0", "yes", "")):
        Image.new("RGB", (8, 8), (40 * i, 0, 0)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{'ab'[i % 2]},{verdict},{'test' if i == 5 else 'train'}")
    table = tmp_path / "images.csv"
    table.write_text("\n".join(rows).replace("1.0", "0") + "\n", encoding="utf-8")
    assert from_table(table).train.verified.tolist() == [1, -1, 0, 0, 1]
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"row 3.*'1\.0'.*are 1, 0"):
        from_table(table)
