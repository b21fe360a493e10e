"""What "auto" stands for: by network, data and method."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resolved import resolved

from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.optimizers import build_optimizer
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.methods import create
from ncsam.methods.elr import ELR


def features(folder: Path, samples: int, columns: int = 40) -> str:
    rng = np.random.default_rng(0)
    path = folder / "features.npz"
    labels = np.arange(samples) % 3
    inputs = rng.normal(size=(samples, columns)).astype(np.float32) + labels[:, None]
    np.savez(path, x_train=inputs, y_train=labels, x_test=inputs[:30], y_test=labels[:30])
    return str(path)


def zeros(samples: int, columns: int) -> DataSet:
    return from_arrays(np.zeros((samples, columns), dtype=np.float32), np.arange(samples) % 2, name="zeros")


def images(channels: int = 3) -> DataSet:
    return from_arrays(np.zeros((40, 32, 32, channels), dtype=np.uint8), np.arange(40) % 2, name="images")


def resolved_for(data: DataSet, **options: Any) -> ResolvedConfig:
    config = RunConfig.from_dict({"val_share": 0.0, "rho": "auto", **options})
    return resolve(config, load_task(config, data))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (100, 800),  # one step an epoch
        (640, 160),  # five
        (900, 100),  # eight
        (3456, 30),  # 27, of which 30 epochs make 810
        (50_000, 30),
    ],
)
def test_an_mlp_makes_800_steps_or_30_epochs(samples: int, expected: int) -> None:
    assert resolved_for(zeros(samples, 2)).epochs == expected
    assert resolved_for(images()).epochs == 60


def test_steps_are_small_for_mlps_and_pretrained_models() -> None:
    assert resolved_for(zeros(40, 2)).lr == resolved_for(images(), pretrained=True).lr == 0.0125
    assert resolved_for(images(), pretrained="IMAGENET1K_V1").lr == 0.0125
    assert resolved_for(images()).lr == 0.05
    assert (resolved_for(zeros(40, 2)).weight_decay, resolved_for(images()).weight_decay) == (0.005, 0.001)
    frozen = resolved_for(images(), freeze=["backbone"])
    assert (frozen.lr, frozen.weight_decay) == (0.0125, 0.3)
    assert resolved_for(images(), freeze=["layer1"]).weight_decay == 0.001


def test_the_full_target_is_for_cross_entropy_without_augmentation() -> None:
    assert [resolved_for(zeros(40, columns)).rho_target for columns in (39, 40)] == [0.1, 0.4]
    assert resolved_for(images(), augment="none").rho_target == 0.5
    assert resolved_for(images()).rho_target == resolved_for(zeros(40, 40), method="gce").rho_target == 0.1


def test_few_features_have_the_small_target(tmp_path: Path) -> None:
    config = RunConfig(data=features(tmp_path, 300, columns=4), model="network")
    assert resolve(config, load_task(config)).rho_target == 0.1


def test_the_recommended_setting_follows_the_data_and_yields_to_what_is_given(tmp_path: Path) -> None:
    config = RunConfig(data=features(tmp_path, 300), model="network")
    found = resolve(config, load_task(config))
    assert (found.lr, found.weight_decay, found.rho_target, found.batch_size) == (0.0125, 0.005, 0.4, 128)
    assert found.epochs == 267  # 270 samples in three steps
    given = config.replace(lr=0.1, weight_decay=0.0, epochs=3, rho_target=0.2)
    found = resolve(given, load_task(given))
    assert (found.lr, found.weight_decay, found.epochs, found.rho_target) == (0.1, 0.0, 3, 0.2)
    assert config.conflicts(found) == {}


def own_base(params: Any, lr: float = 0.007) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, lr=lr)


def nameless_rate(params: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(params, **options)


@pytest.mark.parametrize(
    ("options", "lr", "gentle"),
    [
        ({"optimizer": "sgd"}, 0.05, 0.0125),
        ({"optimizer": "adamw"}, 0.001, 0.00025),
        ({"optimizer": "sam", "base": "adamw"}, 0.001, 0.00025),
        ({"base": f"{__name__}:own_base"}, 0.007, 0.00175),
        ({"base": f"{__name__}:nameless_rate"}, 0.05, 0.0125),
    ],
)
def test_the_learning_rate_knows_its_base(tmp_path: Path, options: dict[str, Any], lr: float, gentle: float) -> None:
    config = RunConfig.from_dict({"data": features(tmp_path, 60), "lr": None, **options})
    assert resolve(config, load_task(config)).lr == lr
    assert resolve(config.replace(lr="auto"), load_task(config)).lr == pytest.approx(gentle)
    assert config.conflicts(config.replace(lr=lr)) == {}
    assert config.conflicts(config.replace(lr=0.3)) == {"lr": (0.3, lr)}  # a folder's other rate is not taken over


@pytest.mark.parametrize("options", [{"optimizer": "adamw"}, {"optimizer": "sam", "base": "adamw"}])
def test_adamw_learns_without_a_word_on_its_rate(tmp_path: Path, options: dict[str, Any]) -> None:
    """At SGD's .05 it stays near chance, a tenth."""
    found = []
    for lr in (None, 0.05):
        config = RunConfig.from_dict({"noise": "symmetric", "rate": 0.4, "epochs": 4, "lr": lr, **options})
        found.append(train(config, tmp_path / f"run{lr}", console=False)["last"])
    assert found[0] > 85
    assert found[1] < 50


@pytest.mark.parametrize("name", ["lr", "weight_decay", "epochs"])
def test_other_words_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='fast'"):
        RunConfig.from_dict({name: "fast"})


@pytest.mark.parametrize(
    ("method", "options", "warned"),
    [
        ("elr", {"optimizer": "sam", "rho": "auto"}, True),
        ("elr", {"optimizer": "sam", "rho": 0.05}, False),
        ("elr", {"optimizer": "sgd", "rho": "auto"}, False),
        ("ce", {"optimizer": "sam", "rho": "auto"}, False),
    ],
)
def test_train_warns_of_methods_that_are_worse_with_sam(
    tmp_path: Path, method: str, options: dict[str, object], warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ELR, "worse_with_sam", ("LabelMe", "CIFAR-10"))
    config = {"data": features(tmp_path, 60), "method": method, "epochs": 1, "model": "mlp", **options}
    said = io.StringIO()
    with redirect_stdout(said):
        train(RunConfig.from_dict(config), tmp_path / "run")
    warning = "elr with an adaptive radius was worse than with sgd in our experiments, on LabelMe, CIFAR-10 (docs"
    assert (warning in said.getvalue()) == warned


@pytest.mark.parametrize(("augment", "begin"), [("none", 1 / 3), ("standard", 0.0)])
def test_validation_guides_the_radius_from_the_start_where_images_are_augmented(augment: str, begin: float) -> None:
    config = resolved(optimizer="sam", rho="validation", rho_target=0.1, augment=augment, epochs=3)
    network = torch.nn.Linear(2, 2)
    optimizer = build_optimizer(config, network, create("ce"), steps_per_epoch=4)
    assert optimizer.radius.begin_at == pytest.approx(begin)
    assert optimizer.radius.full == 0.1


def test_data_of_one_class_is_nothing_to_learn() -> None:
    one = from_arrays(np.ones((60, 4), dtype=np.float32), np.zeros(60, dtype=np.int64), classes=["cat"])
    with pytest.raises(ValueError, match=r"data='one'"):
        load_task(RunConfig(data="one", optimizer="sgd"), one)
