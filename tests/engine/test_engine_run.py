"""The engine against bare loops that do the same work, and what it writes."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from ncsam import models, optim
from ncsam.data import from_arrays
from ncsam.data.loading.loader import Loader
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train
from ncsam.engine.fitted_run import wrong_label_probabilities
from ncsam.engine.learner import Learner
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.methods import Plan, State, create

CLASSES = 4


def images(samples: int = 100, *, test: bool = True) -> DataSet:
    """Gray 6 x 6 images whose bright corner tells the class."""
    rng = np.random.default_rng(3)
    count = samples + (40 if test else 0)
    y = np.arange(count) % CLASSES
    x = rng.integers(0, 120, size=(count, 6, 6, 1))
    for i, label in enumerate(y):
        x[i, 3 * (label // 2) : 3 * (label // 2) + 3, 3 * (label % 2) : 3 * (label % 2) + 3] += 100
    x = x.astype(np.uint8)
    if not test:
        return from_arrays(x, y, name="corners")
    return from_arrays(x[:samples], y[:samples], x_test=x[samples:], y_test=y[samples:], name="corners")


def config(**changes: object) -> RunConfig:
    options = {"data": "corners", "noise": "symmetric", "rate": 0.4, "epochs": 4, "batch_size": 16, "val_share": 0.1}
    small = {
        "model": "mlp",
        "model_options": {"hidden": [16]},
        "augment": "standard",
        "rho": 0.1,
        "lr": 0.05,
        "weight_decay": 1e-3,
    }
    return RunConfig.from_dict({**options, **small, **changes})


def bare_loop(config: RunConfig, dataset: DataSet) -> tuple[torch.nn.Module, list[float]]:
    """The same training written out: no Fabric, no plans, the optimizers' own step."""
    task = load_task(config, dataset)
    config = resolve(config, task)
    loader = Loader(
        task.dataset.train,
        config.batch_size,
        views="weak" if config.augment == "standard" else "plain",
        mean=dataset.mean,
        std=dataset.std,
        seed=config.seed,
        subset=task.train,
    )
    torch.manual_seed(config.seed)
    network = models.create("mlp", CLASSES, 1, in_features=36, hidden=[16])
    if config.base == "sgd":
        base = torch.optim.SGD(network.parameters(), lr=config.lr, momentum=0.9, weight_decay=config.weight_decay)
    else:
        base = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    base.param_groups[0]["initial_lr"] = config.lr
    total = config.epochs * len(loader)
    shared = {"total_steps": total, "warmup_steps": config.warmup_epochs * len(loader), "rho": config.rho}
    optimizer = base
    if config.sharpness_aware:
        kind = optim.get(config.optimizer)
        if kind.flips_labels:
            shared |= {"kappa": config.kappa, "flip_ratio": 0.4}
            shared["generator"] = torch.Generator().manual_seed(config.seed)
        optimizer = kind(base, **shared)
    p_wrong = wrong_label_probabilities(config, task) if config.optimizer == "sam-weighted" else None
    method = create(config.method, **config.method_options)
    state = State(CLASSES, torch.tensor(task.dataset.train.labels), config.epochs, len(loader), None, config.seed)
    torch.manual_seed(config.seed)
    losses, step = [], 0
    for epoch in range(1, config.epochs + 1):
        total_loss = samples = 0.0
        for number, batch in enumerate(loader.iterate(epoch)):
            base.param_groups[0]["lr"] = config.lr * 0.5 * (1 + math.cos(math.pi * step / total))
            state.epoch, state.batch = epoch, number
            (plan,) = method.plan(batch, [network], state)
            if optimizer is base:
                base.zero_grad()
                loss = F.cross_entropy(network(plan.inputs), plan.targets)
                loss.backward()
                base.step()
            else:
                optimizer.progress = epoch / config.epochs
                extra = {} if p_wrong is None or plan.index is None else {"p_wrong": p_wrong[plan.index]}
                loss = optimizer.step(lambda plan=plan: network(plan.inputs), plan.targets, **extra)
            total_loss += float(loss.detach()) * len(batch)
            samples += len(batch)
            step += 1
        losses.append(total_loss / samples)
    return network, losses


#: Every optimizer once, in turn on either base and with either method; the two that users choose most in all ways.
COMBINATIONS = {
    *itertools.product(["sgd"], ["sgd"], ["ce", "mixup"]),
    *itertools.product(["adamw"], ["adamw"], ["ce", "mixup"]),
    *zip(optim.names(), itertools.cycle(["sgd", "adamw"]), itertools.cycle(["mixup", "mixup", "ce", "ce"])),
    *itertools.product(["sam", "ncsam"], ["sgd", "adamw"], ["ce", "mixup"]),
}


@pytest.mark.parametrize(("optimizer", "base", "method"), sorted(COMBINATIONS))
def test_every_optimizer_equals_a_bare_loop_bit_for_bit(tmp_path: Path, optimizer: str, base: str, method: str) -> None:
    chosen = config(optimizer=optimizer, base=base, method=method, lr=0.05 if base == "sgd" else 0.002)
    train(chosen, tmp_path, dataset=images(), console=False)
    network, losses = bare_loop(chosen, images())
    saved = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["learners"][0]["network"]
    for name, value in network.state_dict().items():
        assert torch.equal(value, saved[name]), name
    assert [record["train_loss"] for record in records(tmp_path)] == pytest.approx(losses, rel=1e-12)


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_those_of_the_saved_network(tmp_path: Path) -> None:
    chosen = config(optimizer="sgd", epochs=30)
    summary = train(chosen, tmp_path, dataset=images(), console=False)
    task = load_task(chosen, images())
    state = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)
    network = models.create("mlp", CLASSES, 1, in_features=36, hidden=[16])
    network.load_state_dict(state["learners"][0]["network"])

    def probabilities(images: np.ndarray) -> np.ndarray:
        x = torch.tensor(images, dtype=torch.float32).permute(0, 3, 1, 2) / 255
        with torch.no_grad():
            return network((x - task.dataset.mean[0]) / task.dataset.std[0]).softmax(1).numpy()

    split, test = task.dataset.train, task.dataset.test
    last = records(tmp_path)[-1]
    on_train, on_test = probabilities(split.inputs), probabilities(test.inputs)
    predicted, wrong = on_train.argmax(1), split.labels != split.clean
    trained = np.zeros(len(split), dtype=bool)
    trained[task.train] = True
    assert last["test_accuracy"] == pytest.approx(100 * np.mean(on_test.argmax(1) == test.labels))
    assert last["train_accuracy_observed"] == pytest.approx(100 * np.mean((predicted == split.labels)[trained]))
    assert last["train_accuracy_clean"] == pytest.approx(100 * np.mean((predicted == split.clean)[trained]))
    assert last["val_accuracy"] == pytest.approx(100 * np.mean((predicted == split.labels)[~trained]))
    of_label = on_train[np.arange(len(split)), split.labels]
    assert last["val_loss"] == pytest.approx(-np.log(of_label[~trained]).mean(), rel=1e-5)
    assert last["memorized"] == pytest.approx(100 * np.mean((predicted == split.labels)[trained & wrong]))
    assert summary["noise_rate"] == pytest.approx(np.mean(wrong[trained]))
    assert summary["last"] == last["test_accuracy"]


def test_dynamics_are_sums_over_the_epochs(tmp_path: Path) -> None:
    """Runs of one, two and three epochs with a constant rate are the beginnings of one another."""
    sums, right, flips = [], [], []
    for epochs in (1, 2, 3):
        chosen = config(optimizer="sgd", schedule="constant", epochs=epochs)
        train(chosen, tmp_path / str(epochs), dataset=images(), console=False)
        samples = torch.load(tmp_path / f"{epochs}/checkpoints/last.ckpt", weights_only=True)["samples"]
        sums.append(samples["margin_sum"])
        right.append(samples["was_right"])
        flips.append((samples["first_learned"], samples["times_forgotten"]))
    steps = [sums[0], sums[1] - sums[0], sums[2] - sums[1]]
    for margin, was_right in zip(steps, right, strict=True):
        assert torch.equal(margin > 0, was_right)
    forgotten = (right[0] & ~right[1]).long() + (right[1] & ~right[2]).long()
    assert torch.equal(flips[2][1], forgotten)
    learned = torch.where(right[0], 1, torch.where(right[1], 2, torch.where(right[2], 3, 0)))
    assert torch.equal(flips[2][0], learned)


def test_what_a_run_folder_holds(tmp_path: Path) -> None:
    chosen = config(optimizer="ncsam", epochs=4)
    summary = train(chosen, tmp_path, dataset=images(), console=False, command="ncsam train corners")
    lines = records(tmp_path)
    assert [line["epoch"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["telemetry"].keys() == {"rho"}  # warm-up: a quarter of the epochs
    # measured at steps 1, 7, 13, 19, six an epoch; s = kappa min(1, 2 (3 - 2t) t^2) at t = e / T
    assert [line["telemetry"].get("strength") for line in lines] == [None, 0.1, 0.1, 0.1]
    assert all(0 <= line["telemetry"]["flipped_mislabeled"] <= 100 for line in lines[1:])
    assert lines[1]["telemetry"]["flipped"] == 6  # floor(.4 * 15)
    steps = 24
    assert lines[-1]["lr"] == pytest.approx(0.05 * 0.5 * (1 + math.cos(math.pi * (steps - 1) / steps)))
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["test_accuracy"]) for row in rows] == [line["test_accuracy"] for line in lines]
    assert rows[0]["telemetry.grad_norm"] == ""
    saved = RunConfig.from_yaml(tmp_path / "config.yaml")
    assert saved.flip_ratio == 0.4
    assert saved.model_options == {"hidden": [16], "in_features": 36}
    assert "command: ncsam train corners" in (tmp_path / "config.yaml").read_text()
    again = train(saved, tmp_path / "again", dataset=images(), console=False)
    assert {**again, "seconds": 0} == {**summary, "seconds": 0}
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    with (tmp_path / "label_issues.csv").open() as file:
        label_issues = list(csv.DictReader(file))
    assert sorted(int(row["index"]) for row in label_issues) == list(range(100))
    scores = [float(row["label_quality"]) for row in label_issues]
    assert scores == sorted(scores)
    assert sum(int(row["held_out"]) for row in label_issues) == 9  # a tenth of each observed class, rounded
    # warm-up ends after 6 of 24 steps; each later one flips floor(.4 |B|): five batches of 15 and one of 16
    assert sum(int(row["times_flipped"]) for row in label_issues) == 3 * (5 * 6 + 6)
    assert all(row["times_flipped"] == "0" for row in label_issues if row["held_out"] == "1")


def test_without_a_test_split_the_validation_samples_serve(tmp_path: Path) -> None:
    summary = train(config(optimizer="sgd"), tmp_path, dataset=images(test=False), console=False)
    lines = records(tmp_path)
    assert all(line["test_accuracy"] is None and line["calibration_error"] is None for line in lines)
    assert summary["last"] == lines[-1]["val_accuracy"]
    assert "no test split" in summary["metric_names"]["last"]


def test_the_training_split_may_be_evaluated_less_often(tmp_path: Path) -> None:
    chosen = config(optimizer="sgd", epochs=5, evaluate_train_every=2)
    train(chosen, tmp_path / "seldom", dataset=images(), console=False)
    train(chosen.replace(evaluate_train_every=1), tmp_path / "always", dataset=images(), console=False)
    seldom, always = records(tmp_path / "seldom"), records(tmp_path / "always")
    for name in ("train_accuracy_observed", "train_accuracy_clean"):
        assert [line[name] is not None for line in seldom] == [False, True, False, True, True]
        assert seldom[1][name] == always[1][name]
    assert [line["val_accuracy"] for line in seldom] == [line["val_accuracy"] for line in always]


def test_clean_labels_change_nothing_but_metrics(tmp_path: Path) -> None:
    """Training on the noisy labels as they stand, with no clean ones to be seen, gives the same weights."""
    chosen = config(optimizer="ncsam", flip_ratio=0.3, telemetry_every=1)
    task = load_task(chosen, images())
    train(chosen, tmp_path / "known", dataset=images(), console=False)
    split = task.dataset.train
    blind = from_arrays(
        split.inputs, split.labels, x_test=task.dataset.test.inputs, y_test=task.dataset.test.labels, name="corners"
    )
    summary = train(chosen.replace(noise=None), tmp_path / "blind", dataset=blind, console=False)
    one, other = (
        torch.load(tmp_path / name / "checkpoints/last.ckpt", weights_only=True)["learners"][0]["network"]
        for name in ("known", "blind")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert summary["memorized"] is summary["noise_rate"] is summary["label_issues_auroc"] is None


def test_flip_ratio_is_estimated_where_no_rate_is_said(tmp_path: Path) -> None:
    task = load_task(config(), images(400))
    noisy = from_arrays(task.dataset.train.inputs, task.dataset.train.labels, name="corners")
    chosen = config(noise=None, rate=None, epochs=12, optimizer="ncsam", val_share=0.3)
    summary = train(chosen, tmp_path, dataset=noisy, console=False)
    assert RunConfig.from_yaml(tmp_path / "config.yaml").flip_ratio == "auto"
    assert 0.2 < summary["flip_ratio"] <= 0.4
    unperturbed = train(chosen.replace(epochs=4, warmup=0.0), tmp_path / "none", dataset=noisy, console=False)
    assert unperturbed["flip_ratio"] == 0.4


@pytest.mark.slow
def test_the_default_network_memorizes_the_wrong_labels_of_digits_under_sgd(tmp_path: Path) -> None:
    steps = {"lr": 0.05, "weight_decay": 1e-3, "batch_size": None, "epochs": 50}
    summary = train(RunConfig(noise="symmetric", rate=0.4, optimizer="sgd", **steps), tmp_path, console=False)
    assert summary["memorized"] > 95
    assert summary["last5"] < summary["best"] - 15
    assert summary["label_issues_auroc"] > 0.95
    saved = RunConfig.from_yaml(tmp_path / "config.yaml")
    assert (saved.model, saved.model_options) == ("mlp", {"hidden": [256, 256], "in_features": 64})
    assert (saved.augment, saved.batch_size) == ("none", 32)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
@pytest.mark.parametrize("optimizer", ["sgd", "ncsam"])
def test_precisions(tmp_path: Path, precision: str, optimizer: str) -> None:
    """Other precisions follow single precision within their own rounding."""
    chosen = config(optimizer=optimizer, epochs=2, warmup=0.0, telemetry_every=1, accelerator="cpu")
    train(chosen, tmp_path / "single", dataset=images(), console=False)
    train(chosen.replace(precision=precision), tmp_path / "other", dataset=images(), console=False)
    one, other = records(tmp_path / "single"), records(tmp_path / "other")
    tolerance = 1e-4 if precision == "64-true" else 0.03
    assert other[-1]["train_loss"] == pytest.approx(one[-1]["train_loss"], rel=tolerance)
    if optimizer == "ncsam":
        for name in ("grad_norm", "noise_grad_norm", "compensation_ratio"):
            assert other[0]["telemetry"][name] == pytest.approx(one[0]["telemetry"][name], rel=2 * tolerance), name


@pytest.mark.parametrize("optimizer", ["sgd", "sam", "bsam", "ncsam"])
def test_the_loss_scale_of_fp16_cancels(optimizer: str) -> None:
    """Fabric replaces fp16 on a CPU, so its plugin is given here: scaled passes lead where unscaled ones lead."""
    results = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))]):
        torch.manual_seed(0)
        chosen = resolve(
            config(optimizer=optimizer, epochs=1, warmup=0.0, telemetry_every=1), load_task(config(), images())
        )
        fabric = Fabric(accelerator="cpu", devices=1, plugins=plugins)
        network = models.create("mlp", CLASSES, 1, in_features=36, hidden=[16])
        begun = torch.cat([p.detach().flatten() for p in network.parameters()])
        learner = Learner(fabric, network, create("ce"), chosen, 5)
        x, y = torch.randn(16, 36), torch.arange(16) % CLASSES
        for _ in range(5):
            if learner.sharpness_aware is not None:
                learner.sharpness_aware.progress = 0.5
            learner.step(Plan(x, y), None)
        norms = learner.sharpness_aware.last_step.as_dict() if learner.sharpness_aware is not None else {}
        results.append((torch.cat([p.detach().flatten() for p in network.parameters()]), norms))
        assert plugins == [] or plugins[0].scaler.get_scale() == 256.0  # no step was skipped
    (single, norms), (half, scaled_norms) = results
    assert 0 < float((half - single).norm() / (single - begun).norm()) < 0.05
    for name in ("grad_norm", "noise_grad_norm"):
        assert scaled_norms.get(name) == (pytest.approx(norms[name], rel=0.02) if name in norms else None)


def test_sixteen_bit_weights_are_refused_under_a_perturbation(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rounded away in 16-bit weights"):
        train(config(optimizer="ncsam", precision="bf16-true"), tmp_path, dataset=images(), console=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "mixap"}, "unknown method 'mixap'. Did you mean 'mixup'"),
        ({"method_options": {"smoth": 0.1}}, "unknown option of ce 'smoth'"),
        ({"optimizer_options": {"sing": -1}}, "unknown option of sam 'sing'"),
        ({"optimizer_options": {"rho": 1}}, "optimizer_options={'rho': 1}"),
        ({"model": "resnet19"}, "unknown model 'resnet19'"),
        ({"noise": "symetric"}, "unknown noise 'symetric'. Did you mean 'symmetric'"),
        ({"noise": "symmetric", "rate": None}, "rate=None"),
        ({"noise": "asymmetric"}, "noise_options={}.*class_map"),
        ({"noise_options": {"cuont": "exact"}}, "unknown option of symmetric 'cuont'"),
        ({"schedule": "steps", "schedule_options": {"milestones": [30]}}, "milestones=.*"),
        ({"val_share": 0.001}, "val_share=0.001"),
        ({"strategy": "fsdp", "devices": "auto"}, "devices='auto'"),
        ({"precision": "8-true"}, "unknown precision '8-true'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(config(**changes), tmp_path, dataset=images(), console=False)
