"""When warm-up ends by itself, the flip ratio that a run estimates, and what augmentation means for the radius."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ncsam import models
from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train
from ncsam.engine.resolve import resolve
from ncsam.engine.schedule_control import is_memorizing
from ncsam.engine.task import load_task
from ncsam.noise import estimate_noise


@pytest.mark.parametrize(
    ("trained", "held_out", "samples", "expected"),
    [
        # 2 sqrt(.5 .5 / 100) = .1
        ([0.61] * 3, [0.5] * 3, 100, True),
        ([0.59] * 3, [0.5] * 3, 100, False),
        ([0.54] * 3, [0.5] * 3, 1000, True),  # .0316
        ([0.515] * 3, [0.5] * 3, 100_000, False),  # two points at least
        ([0.9] * 2, [0.5] * 2, 100, False),  # three epochs at least
        ([0.1, 0.9, 0.52, 0.52, 0.52], [0.1, 0.1, 0.5, 0.5, 0.5], 100, False),  # the last three alone
        ([0.5, 0.5, 0.82], [0.5] * 3, 100, True),  # their mean: .1067
        ([0.5, 0.5, 0.78], [0.5] * 3, 100, False),
        ([0.4] * 3, [0.5] * 3, 100, False),  # augmented or under-fitted: it is the other way round
        ([1.0] * 3, [1.0] * 3, 100, False),
    ],
)
def test_memorizing_is_fitting_seen_labels_better(
    trained: list[float], held_out: list[float], samples: int, expected: bool
) -> None:
    assert is_memorizing(trained, held_out, samples) is expected


def blobs(samples: int = 300) -> DataSet:
    rng = np.random.default_rng(0)
    y = np.arange(samples) % 4
    x = (rng.normal(size=(samples, 6)) + 2.5 * np.eye(6)[y]).astype(np.float32)
    return from_arrays(x, y, name="blobs")


def config(**changes: object) -> RunConfig:
    small = {"model": "mlp", "model_options": {"hidden": [16]}, "epochs": 20, "batch_size": 32, "val_share": 0.3}
    noise = {
        "data": "blobs",
        "noise": "symmetric",
        "rate": 0.3,
        "lr": 0.1,
        "rho": 0.2,
        "optimizer": "ncsam",
        "weight_decay": 1e-3,
    }
    return RunConfig.from_dict({**small, **noise, **changes})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["learners"][0]["network"]


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sam"},
        pytest.param({"optimizer": "bsam"}, marks=pytest.mark.stress),
        {"optimizer": "ncsam", "flip_ratio": "auto"},
        {"optimizer": "ncsam", "optimizer_options": {"ramp_from": "warmup"}, "kappa": 0.5},
    ],
)
def test_a_warm_up_that_ends_by_itself_is_one_of_that_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object]
) -> None:
    options |= {"rate": 0.5, "lr": 0.2}
    found = train(config(warmup="auto", **options), tmp_path / "auto", dataset=blobs())
    epochs = found["warmup_epochs"]
    assert 3 <= epochs < 15
    said = capsys.readouterr().out
    assert f"warm-up ends after {epochs} epochs: training labels are fitted better than held-out labels" in said
    records = [json.loads(line) for line in (tmp_path / "auto/metrics.jsonl").read_text().splitlines()]
    t, v = ([r[name] / 100 for r in records] for name in ("train_accuracy_observed", "val_accuracy"))
    assert epochs == next(e for e in range(20) if is_memorizing(t[:e], v[:e], 90))
    assert [bool(record["telemetry"].get("grad_norm")) for record in records] == [e >= epochs for e in range(20)]

    fixed = train(config(warmup=epochs / 20, **options), tmp_path / "fixed", dataset=blobs(), console=False)
    assert {**found, "seconds": 0} == {**fixed, "seconds": 0}
    other = weights(tmp_path / "fixed")
    assert all(torch.equal(value, other[name]) for name, value in weights(tmp_path / "auto").items())
    assert RunConfig.from_yaml(tmp_path / "auto/config.yaml").warmup == "auto"


@pytest.mark.parametrize("val_share", [0.3, 0.0])
def test_flip_ratio_is_what_the_warmed_up_network_makes_of_the_labels(tmp_path: Path, val_share: float) -> None:
    """Also where a rate is said; on samples held out where there are any."""
    chosen = config(optimizer="ncsam", flip_ratio="auto", warmup=0.25, schedule="constant", val_share=val_share)
    summary = train(chosen, tmp_path / "run", dataset=blobs(), console=False)
    train(chosen.replace(optimizer="sgd", epochs=5), tmp_path / "warm", dataset=blobs(), console=False)
    task = load_task(chosen, blobs())
    network = models.create("mlp", 4, 1, in_features=6, hidden=[16])
    network.load_state_dict(weights(tmp_path / "warm"))
    split = task.dataset.train
    which = slice(None) if task.val is None else task.val
    x = (torch.from_numpy(split.inputs[which]) - torch.tensor(task.dataset.mean)) / torch.tensor(task.dataset.std)
    with torch.no_grad():
        rate = estimate_noise(split.labels[which], network(x.float()).softmax(1).numpy()).rate
    assert 0.1 < rate < 0.4
    assert summary["warmup_noise"] == pytest.approx(rate, abs=1e-12)
    assert summary["flip_ratio"] == summary["warmup_noise"]
    assert "estimated" in summary["metric_names"]["warmup_noise"]
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    estimates = [json.loads(line)["noise_estimate"] for line in lines]
    assert estimates == [None] * 5 + [summary["warmup_noise"]] * 15


def test_flip_ratio_auto_does_not_believe_the_rate_and_is_capped(tmp_path: Path) -> None:
    clean = config(noise=None, optimizer="ncsam", epochs=8)  # clean labels, although the rate says 30 %
    assert train(clean, tmp_path / "said", dataset=blobs(), console=False)["flip_ratio"] == 0.3
    found = train(clean.replace(flip_ratio="auto"), tmp_path / "found", dataset=blobs(), console=False)
    assert found["flip_ratio"] == found["warmup_noise"] < 0.1
    noisy = config(rate=0.7, optimizer="ncsam", epochs=8, flip_ratio="auto")
    summary = train(noisy, tmp_path / "capped", dataset=blobs(), console=False)
    assert summary["warmup_noise"] > 0.5
    assert summary["flip_ratio"] == 0.4


def test_without_sharpness_there_is_nothing_to_settle(tmp_path: Path) -> None:
    chosen = config(optimizer="sgd", warmup="auto", flip_ratio="auto", epochs=2, val_share=0.0)
    summary = train(chosen, tmp_path, dataset=blobs(), console=False)
    assert summary["warmup_epochs"] is summary["flip_ratio"] is summary["warmup_noise"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warmup": "auto", "val_share": 0.0}, r"warmup='auto'"),
        ({"flip_ratio": "auto", "warmup": 0.0}, r"flip_ratio='auto'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(config(optimizer="ncsam", **changes), tmp_path, dataset=blobs(), console=False)


@pytest.mark.slow
def test_digits_are_warmed_up_until_memorization_starts(tmp_path: Path) -> None:
    chosen = RunConfig(
        noise="symmetric",
        rate=0.4,
        optimizer="ncsam",
        warmup="auto",
        flip_ratio="auto",
        epochs=20,
        rho=0.05,
        lr=0.1,
        weight_decay=1e-3,
        batch_size=32,
    )
    summary = train(chosen, tmp_path, console=False)
    assert 5 <= summary["warmup_epochs"] <= 18
    assert summary["warmup_noise"] == pytest.approx(0.4, abs=0.1)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert records[summary["warmup_epochs"] - 1]["memorized"] < 30


def test_what_memorizes_nothing_stays_with_the_base_optimizer(tmp_path: Path) -> None:
    """Two epochs are too few to tell, so this is SGD from beginning to end."""
    auto = train(config(optimizer="sam", warmup="auto", epochs=2), tmp_path / "auto", dataset=blobs(), console=False)
    assert auto["warmup_epochs"] is None
    train(config(optimizer="sgd", epochs=2), tmp_path / "sgd", dataset=blobs(), console=False)
    other = weights(tmp_path / "sgd")
    assert all(torch.equal(value, other[name]) for name, value in weights(tmp_path / "auto").items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": "sam", "rho": "auto", "epochs": 4}, True),  # four epochs fit no noise
        ({"optimizer": "sam", "rho": 0.01, "rate": 0.5, "lr": 0.2, "epochs": 30}, False),
        ({"optimizer": "sgd", "epochs": 4}, False),  # nothing to hold it back
        ({"optimizer": "sam", "rho": "auto", "epochs": 4, "val_share": 0.0}, False),  # nothing to tell by
    ],
)
def test_a_run_says_when_it_memorized_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], said: bool
) -> None:
    train(config(**options), tmp_path, dataset=blobs())
    record = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    words = f"no labels were memorized: accuracy {record['train_accuracy_observed']:.1f} % on training labels"
    assert (words in capsys.readouterr().out) is said


@pytest.mark.parametrize(
    ("channels", "options", "expected"),
    [
        (3, {}, 0.1),  # color images of this size are augmented
        (3, {"augment": "none"}, 0.5),
        (1, {}, 0.5),
        (1, {"model": "mlp"}, 0.4),
        (1, {"augment": "paper"}, 0.1),
        (3, {"rho_target": 0.3}, 0.3),
        (1, {"rho_target": 0.3, "augment": "standard"}, 0.3),
    ],
)
def test_a_target_left_open_is_gentle_where_images_are_augmented(
    channels: int, options: dict[str, object], expected: float
) -> None:
    images = np.zeros((20, 24, 24, channels), dtype=np.uint8)
    images[::2] = 255
    data = from_arrays(images, np.arange(20) % 2, name="images")
    chosen = RunConfig.from_dict({"data": "images", "optimizer": "sam", "rho": "auto", "rho_target": "auto", **options})
    found = resolve(chosen, load_task(chosen, data))
    assert found.rho_target == expected
    assert chosen.conflicts(found) == {}  # so the same command resumes the run
