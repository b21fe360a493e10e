"""`precision: auto`, bf16 and channels-last models: what is resolved; resume and reductions hold bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ncsam import _hardware, models
from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, resolve, train
from ncsam.engine.checkpoint import restore_trainer, trainer_state
from ncsam.engine.device import OneCpu, build_fabric, choose_device, first_device, set_precision
from ncsam.engine.predictor import load_predictor
from ncsam.engine.task import load_task
from ncsam.engine.trainer import Trainer
from ncsam.methods import Plan
from ncsam.models.backbone import is_convolutional, to_channels_last
from ncsam.optim import SAM

resolving = resolve.resolve
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def images(samples: int = 48) -> DataSet:
    """Color 8 x 8 images whose brighter half tells the class."""
    rng = np.random.default_rng(3)
    y = np.arange(samples) % 2
    x = rng.integers(0, 120, size=(samples, 8, 8, 3))
    x[y == 1, :4] += 100
    x[y == 0, 4:] += 100
    x = x.astype(np.uint8)
    return from_arrays(x[:-8], y[:-8], x_test=x[-8:], y_test=y[-8:], name="halves")


def config(**changes: Any) -> RunConfig:
    options = {"data": "halves", "noise": "symmetric", "rate": 0.2, "epochs": 2, "batch_size": 16, "val_share": 0.1}
    small = {"model": "cnn_small", "model_options": {"width": 4}, "augment": "none", "rho": 0.1, "lr": 0.05}
    machine = {"accelerator": "cpu", "telemetry_every": 1}
    return RunConfig.from_dict({**options, **small, **machine, **changes})


def trainer(chosen: RunConfig) -> Trainer:
    task = load_task(chosen, images())
    return Trainer(choose_device(chosen), resolving(chosen, task), task)


def weights(trained: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for learner in trained.learners for p in learner.bare.parameters()])


def trained(**changes: Any) -> Trainer:
    run = trainer(config(**changes))
    run.fit()
    return run


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with bf16 arithmetic, as far as decisions are concerned."""
    monkeypatch.setattr(resolve, "native_bfloat16", lambda device: True)


# --- what "auto" becomes


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "bf16-mixed"),
        ({"model": "resnet8", "model_options": {}}, "bf16-mixed"),
        ({"model": "mlp", "model_options": {"hidden": [4]}}, "32-true"),
        ({"model": "mlp", "model_options": {"hidden": []}}, "32-true"),
        ({"freeze": ["backbone"]}, "32-true"),
        ({"precision": "32-true"}, "32-true"),
        ({"precision": "64-true"}, "64-true"),
    ],
)
def test_auto_is_bf16_for_convolutions_alone(native: None, changes: dict[str, Any], expected: str) -> None:
    chosen = config(**changes)
    assert resolving(chosen, load_task(chosen, images())).precision == expected


def test_auto_is_float32_without_bf16_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "native_bfloat16", lambda device: False)
    chosen = config()
    assert resolving(chosen, load_task(chosen, images())).precision == "32-true"
    assert resolving(chosen.replace(precision="bf16-mixed"), load_task(chosen, images())).precision == "bf16-mixed"


@pytest.mark.parametrize(
    ("flags", "expected"), [("avx2 avx512f", False), ("avx512f avx512_bf16", True), ("amx_bf16", True), ("bf16", True)]
)
def test_native_bfloat16_reads_the_flags_of_the_processor(
    monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool
) -> None:
    monkeypatch.setattr(_hardware.platform, "system", lambda: "Linux")
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: f"flags : fpu {flags} sse\n")
    assert _hardware._cpu_bfloat16.__wrapped__() is expected


def test_native_bfloat16_of_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((7, 5), False), ((8, 0), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert _hardware.native_bfloat16(torch.device("cuda", 0)) is expected
    assert not _hardware.native_bfloat16(torch.device("mps"))


def test_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [first_device(name).type for name in ("auto", "gpu", "cuda", "cpu")] == ["cuda", "cuda", "cuda", "cpu"]


def test_a_run_records_and_uses_what_auto_became(native: None, tmp_path: Path) -> None:
    train(config(epochs=1), tmp_path / "auto", dataset=images(), console=False)
    train(config(epochs=1, precision="bf16-mixed"), tmp_path / "bf16", dataset=images(), console=False)
    assert RunConfig.from_yaml(tmp_path / "auto/config.yaml").precision == "bf16-mixed"
    one, other = (load_predictor(tmp_path / name).network.state_dict() for name in ("auto", "bf16"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_keeps_its_precision_on_another_machine(tmp_path: Path) -> None:
    """Started in bf16 by "auto"; this machine, or the test's, would choose float32."""
    chosen = config(epochs=1, precision="bf16-mixed")
    train(chosen, tmp_path, dataset=images(), console=False)
    (tmp_path / "summary.json").unlink()
    train(chosen.replace(precision="auto"), tmp_path, dataset=images(), console=False)
    assert RunConfig.from_yaml(tmp_path / "config.yaml").precision == "bf16-mixed"


def test_set_precision_switches_both_ways() -> None:
    fabric, cpu = build_fabric(config(precision="auto")), OneCpu()
    for device in (fabric, cpu):
        for name in ("bf16-mixed", "32-true"):
            set_precision(device, name)
            assert device.strategy.precision.precision == name
            found = device.setup_module(nn.Linear(2, 2))(torch.full((1, 2), 1 / 3))
            assert found.dtype == torch.float32
            assert torch.equal(found, found.bfloat16().float()) is (name == "bf16-mixed")


# --- bf16


@pytest.mark.parametrize("optimizer", ["sgd", "ncsam"])
def test_one_cpu_computes_what_fabric_does(optimizer: str) -> None:
    runs = []
    for build in (choose_device, build_fabric):
        chosen = config(optimizer=optimizer, precision="bf16-mixed", epochs=1)
        task = load_task(chosen, images())
        runs.append(Trainer(build(chosen), resolving(chosen, task), task))
        runs[-1].fit()
    assert torch.equal(weights(runs[0]), weights(runs[1]))
    assert runs[0].history[0]["val_loss"] == runs[1].history[0]["val_loss"]


def test_logits_weights_and_statistics_stay_float32() -> None:
    run = trained(optimizer="sam", precision="bf16-mixed", epochs=1)
    (learner,) = run.learners
    batch = next(run.loader.iterate(1))
    outcome = run.method.loss(learner.network, Plan(batch.views[0], batch.labels))
    assert outcome.logits.dtype == outcome.loss.dtype == torch.float32
    assert not torch.equal(outcome.logits, learner.bare(batch.views[0]))  # which bf16 has rounded
    assert torch.allclose(outcome.logits, learner.bare(batch.views[0]), atol=0.05)
    for name, value in learner.bare.state_dict().items():
        assert value.dtype == (torch.int64 if name.endswith("num_batches_tracked") else torch.float32)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_reductions(precision: str) -> None:
    """NCSAM with kappa = 0 is SAM, and SAM with rho = 0 is its base optimizer, bit for bit."""
    options = {"precision": precision, "warmup": 0.0}
    sam = weights(trained(optimizer="sam", **options))
    assert torch.equal(weights(trained(optimizer="ncsam", kappa=0.0, **options)), sam)
    base = weights(trained(optimizer="sgd", **options))
    assert torch.equal(weights(trained(optimizer="sam", rho=0.0, **options)), base)
    assert not torch.equal(sam, base)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("optimizer", ["sgd", "ncsam"])
def test_resume_is_exact(precision: str, optimizer: str) -> None:
    chosen = config(optimizer=optimizer, precision=precision, warmup=0.0)
    whole = trainer(chosen)
    whole.train_epoch()
    saved = io.BytesIO()
    torch.save(trainer_state(whole), saved)
    whole.train_epoch()
    saved.seek(0)
    resumed = trainer(chosen)
    restore_trainer(resumed, torch.load(saved, weights_only=True))
    resumed.train_epoch()
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.history[-1]["telemetry"] == whole.history[-1]["telemetry"]
    assert resumed.history[-1]["val_loss"] == whole.history[-1]["val_loss"]


@pytest.mark.parametrize("method", ["coteaching", "elr", "mixup"])
def test_methods_train_in_bf16(method: str) -> None:
    single, half = (
        trained(method=method, optimizer="sam", precision=precision, epochs=1).history[0]["train_loss"]
        for precision in ("32-true", "bf16-mixed")
    )
    assert half == pytest.approx(single, rel=0.03)
    assert half != single


# --- channels last


def test_convolutions_alone_are_channels_last() -> None:
    run = trainer(config())
    assert is_convolutional(run.learners[0].bare)
    for loader in (run.loader, run.evaluator.train, run.evaluator.test):
        assert next(loader.iterate(1)).views[0].is_contiguous(memory_format=torch.channels_last)
    for module in run.learners[0].bare.modules():
        if isinstance(module, nn.Conv2d):
            assert module.weight.is_contiguous(memory_format=torch.channels_last)
    assert not trainer(config(model="mlp", model_options={"hidden": [4]})).loader.channels_last
    volumes = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Conv2d(2, 2, 3))
    assert to_channels_last(volumes)[0].weight.is_contiguous()


def test_a_perturbed_step_does_not_depend_on_the_memory_format() -> None:
    """In double precision, where the order of a sum shows in the last digits alone."""
    x, y = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double(), torch.arange(8) % 2
    found = {}
    for name, order in FORMATS.items():
        torch.manual_seed(0)
        network = models.create("cnn_small", 2, 3, width=4).double()
        if name == "channels_last":
            to_channels_last(network)
        optimizer = SAM(torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9), rho=0.5)
        inputs = x.contiguous(memory_format=order)
        for _ in range(3):
            optimizer.step(lambda inputs=inputs, network=network: network(inputs), y)
        found[name] = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    assert torch.allclose(*found.values(), rtol=0, atol=1e-11)


def test_checkpoints_load_in_either_format(tmp_path: Path) -> None:
    run = trainer(config())
    run.fit()
    state = trainer_state(run)
    plain = models.create("cnn_small", 2, 3, width=4)
    plain.load_state_dict(state["learners"][0]["network"])
    contiguous = {name: value.contiguous() for name, value in plain.state_dict().items()}
    other = trainer(config())
    state["learners"][0]["network"] = contiguous
    restore_trainer(other, state)
    assert torch.equal(weights(other), weights(run))
    convolution = next(m for m in other.learners[0].bare.modules() if isinstance(m, nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)


def test_predictions_of_a_loaded_run_are_those_of_its_evaluation(tmp_path: Path) -> None:
    data = images()
    train(config(), tmp_path, dataset=data, console=False)
    found = torch.cat(list(load_predictor(tmp_path).probabilities(data.test.inputs)))
    run = trainer(config())
    run.fit()
    assert torch.equal(
        found.argmax(1), torch.from_numpy(run.evaluator.predict(run.networks, run.evaluator.test).predicted)
    )
