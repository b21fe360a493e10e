"""One record of options: read, checked, saved, compared; and the presets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from resolved import resolved

from ncsam import NCSAM
from ncsam.engine import RunConfig, preset_names, preset_text, train
from ncsam.engine.optimizers import learning_rate
from ncsam.engine.resolve import resolve
from ncsam.engine.task import load_task
from ncsam.errors import UsageError
from ncsam.runs.reader import RunFolder


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    config = RunConfig(
        data="cifar10", noise="pairflip", rate=0.45, optimizer_options={"sign": -1}, loggers=["wandb"], rho="auto"
    )
    config.save(tmp_path / "config.yaml", "ncsam train cifar10")
    assert RunConfig.from_yaml(tmp_path / "config.yaml") == config
    assert RunConfig.from_yaml(tmp_path / "config.yaml", lr=1).lr == 1.0
    assert (tmp_path / "config.yaml").read_text().startswith("version:")


def test_files_in_unicode_are_read_and_others_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        path.write_text("data: Füchse\n", encoding=encoding)
        assert RunConfig.from_yaml(path).data == "Füchse"
    path.write_text("epochs: 3\ndata: Füchse\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"c\.yaml, line 2.*UTF-8.*UTF-8"):
        RunConfig.from_yaml(path)


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("weight_decay: 1e-3\nlr: 1\nrho: 5e-2\n")  # YAML 1.1 takes 1e-3 for text
    config = RunConfig.from_yaml(tmp_path / "c.yaml")
    assert (config.weight_decay, config.lr, config.rho) == (0.001, 1.0, 0.05)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimzer": "sam"}, "unknown option 'optimzer'. Did you mean 'optimizer'"),
        ({"optimizer": "nsam"}, "unknown optimizer 'nsam'"),
        ({"lr": "fast"}, "lr='fast'"),
        ({"lr": float("inf")}, "lr=inf"),
        ({"epochs": 0}, "epochs=0"),
        ({"epochs": 2.5}, "epochs=2.5"),
        ({"epochs": True}, "epochs=True"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"rate": 1.5}, r"rate=1.5"),
        ({"flip_ratio": 1.5}, r"flip_ratio=1.5"),
        ({"warmup": "later"}, "warmup='later'"),
        ({"rho": "big"}, "rho='big'"),
        ({"rho": float("nan")}, "rho=nan"),
        ({"val_share": 1.0}, "val_share=1.0"),
        ({"loggers": ["wandbb"]}, "unknown logger 'wandbb'. Did you mean 'wandb'"),
        ({"loggers": "wandb"}, "loggers='wandb'"),
        ({"noise": "symmetric", "label_file": "x.pt"}, "label_file='x.pt'"),
        ({"label_column": "worst"}, "label_column='worst'"),
        ({"lr": 1e300}, "lr=1e[+]300"),
        ({"devices": "abc"}, "devices='abc'"),
        ({"devices": 0}, "devices=0"),
        ({"optimizer": np.array(["sgd", "sam"])}, "optimizer="),
    ],
)
def test_mistakes_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RunConfig.from_dict(options)


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- lr\n")
    (tmp_path / "broken.yaml").write_text("lr: [1\n")
    with pytest.raises(ValueError, match=r"list.yaml.*`option: value`"):
        RunConfig.from_yaml(tmp_path / "list.yaml")
    with pytest.raises(ValueError, match=r"broken.yaml is not YAML"):
        RunConfig.from_yaml(tmp_path / "broken.yaml")
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        RunConfig.from_yaml(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("method", "optimizer", "rho", "share"),
    [
        ("nct", "sam", "validation", 0.25),
        ("nct", "sam", "auto", 0.25),
        ("nct", "sam", 0.05, 0.0),
        ("nct", "sgd", "auto", 0.0),
        ("elr", "sam", "validation", 0.0),
        ("ce", "sam", "validation", 0.0),
        ("ce", "ncsam", 0.05, 0.25),
    ],
)
def test_warm_up_is_for_ncsam_and_for_methods_that_need_one(
    method: str, optimizer: str, rho: float | str, share: float
) -> None:
    config = RunConfig(method=method, optimizer=optimizer, rho=rho, epochs=200)
    found = resolve(config, load_task(config))
    assert (found.warmup, found.warmup_epochs) == (share, round(200 * share))
    assert resolve(config.replace(warmup=0.1), load_task(config)).warmup_epochs == 20


class MyNCSAM(NCSAM):
    """A user's own variant."""


def test_an_ncsam_of_ones_own_gets_warm_up_and_flip_ratio(tmp_path: Path) -> None:
    config = RunConfig(optimizer=f"{__name__}:MyNCSAM", noise="symmetric", rate=0.3, epochs=4)
    found = resolve(config, load_task(config))
    assert (found.warmup, found.flip_ratio) == (0.25, 0.3)
    assert resolve(config.replace(rate=0.6), load_task(config)).flip_ratio == 0.4
    summary = train(config.replace(flip_ratio="auto"), console=False)
    assert summary["warmup_epochs"] == 1
    assert summary["flip_ratio"] == min(summary["warmup_noise"], 0.4)


def test_the_default_is_the_recommended_setting() -> None:
    assert RunConfig.from_preset("recommended") == RunConfig()


def test_the_cheap_recommendation_differs_only_in_the_optimizer():
    cheap = RunConfig.from_preset("recommended-cheap")
    assert (cheap.optimizer, cheap.rho) == ("msam", "validation")
    assert cheap.replace(optimizer="auto") == RunConfig()


def test_a_resolved_configuration_resolves_to_itself() -> None:
    for optimizer in ("sam", "ncsam", "sgd", "adamw"):
        config = RunConfig(optimizer=optimizer)
        found = resolve(config, load_task(config))
        assert resolve(found, load_task(found)) == found
        assert config.conflicts(found) == {}


def test_a_resolved_configuration_has_values_only() -> None:
    for name in ("lr", "weight_decay", "epochs", "rho_target"):
        with pytest.raises(UsageError, match=f"{name}='auto'"):
            resolved(**{name: "auto"})


def test_a_resolved_value_agrees_with_one_left_to_the_data() -> None:
    saved = RunConfig(model="mlp", model_options={"hidden": [8]}, augment="none", batch_size=32, flip_ratio=0.4)
    assert RunConfig(batch_size=None).conflicts(saved) == {}
    assert RunConfig(batch_size=32, workers=3, loggers=["mlflow"]).conflicts(saved) == {}
    assert RunConfig(model="resnet18", batch_size=32).conflicts(saved) == {"model": ("mlp", "resnet18")}
    assert RunConfig(flip_ratio=0.2, batch_size=32).conflicts(saved) == {"flip_ratio": (0.4, 0.2)}
    assert RunConfig(model_options={"hidden": [9]}, batch_size=32).conflicts(saved).keys() == {"model_options"}


def test_learning_rates() -> None:
    cosine = learning_rate(RunConfig())
    assert [cosine(t) for t in (0.0, 0.5, 1 / 3)] == pytest.approx([1.0, 0.5, 0.75])
    steps = learning_rate(RunConfig(schedule="steps", schedule_options={"milestones": [0.4, 0.8], "gamma": 0.2}))
    assert [steps(t) for t in (0.0, 0.39, 0.4, 0.79, 0.8)] == pytest.approx([1, 1, 0.2, 0.2, 0.04])
    assert [learning_rate(RunConfig(schedule="linear"))(t) for t in (0.0, 0.25)] == [1.0, 0.75]
    assert learning_rate(RunConfig(schedule="constant"))(0.9) == 1.0
    for gamma in (-1, 0, 1.5):
        with pytest.raises(ValueError, match=f"gamma={float(gamma)}"):
            learning_rate(RunConfig(schedule="steps", schedule_options={"gamma": gamma}))
    with pytest.raises(ValueError, match="unknown option of cosine 'gamma'"):
        learning_rate(RunConfig(schedule_options={"gamma": 1}))


#: model, epochs, warm-up epochs, batch, weight decay, kappa, flip ratio: the paper's settings.
PAPER = {
    "cifar10-symmetric": ("resnet18", 200, 50, 128, 1e-3, 0.1, None),
    "cifar100-symmetric": ("resnet18", 200, 50, 128, 1e-3, 0.3, None),
    "cifar10-instance": ("resnet34", 200, 50, 128, 1e-3, 0.2, None),
    "cifar100-instance": ("resnet34", 200, 50, 128, 1e-3, 0.2, None),
    "tiny-imagenet-symmetric": ("resnet18", 200, 50, 128, 1e-3, 0.2, 0.2),
    "tiny-imagenet-pairflip": ("resnet18", 200, 50, 128, 1e-3, 0.2, 0.4),
    "animal10n": ("vgg19_bn", 120, 30, 64, 5e-4, 0.05, 0.1),
    "food101n": ("resnet50", 100, 25, 32, 5e-4, 0.1, 0.2),
    "clothing1m": ("resnet50", 100, 25, 32, 5e-4, 0.2, 0.3),
}


#: kappa (their gamma) and flip ratio: the authors' public code.
AUTHORS = {
    "ncsam-authors-cifar10-20": (0.1, 0.2),
    "ncsam-authors-cifar10-40": (0.25, 0.4),
    "ncsam-authors-cifar10-60": (1.25, 0.4),
    "ncsam-authors-cifar100-20": (0.25, 0.2),
    "ncsam-authors-cifar100-40": (0.75, 0.4),
    "ncsam-authors-cifar100-60": (1.5, 0.4),
}


@pytest.mark.parametrize("name", sorted(AUTHORS))
def test_presets_of_the_authors_code(name: str) -> None:
    c = RunConfig.from_preset(name)
    assert (c.kappa, c.flip_ratio) == AUTHORS[name]
    assert (c.optimizer, c.rho, c.epochs, round(c.warmup * c.epochs, 9)) == ("ncsam-authors", 0.05, 200, 49)
    assert (f"ncsam-authors-{c.data}-{100 * c.rate:g}", c.noise) == (name, "instance")
    assert c.augment == ("strong" if c.data == "cifar10" else "stronger")
    assert (c.model, c.optimizer_options) == ("resnet34", {"clusters": 5})
    assert c.noise_options == {"input": "normalized"}
    assert (c.lr, c.weight_decay, c.batch_size) == (0.05, 1e-3, 128)


def test_there_is_a_preset_for_every_setting() -> None:
    assert preset_names() == sorted([*PAPER, *AUTHORS, "cifar10n", "recommended", "recommended-cheap"])
    human, symmetric = RunConfig.from_preset("cifar10n"), RunConfig.from_preset("cifar10-symmetric")
    assert human == symmetric.replace(data="cifar10n", noise=None, rate=None, flip_ratio=0.4)
    with pytest.raises(ValueError, match=r"'cifar10-symetric'.*'cifar10-symmetric'"):
        RunConfig.from_preset("cifar10-symetric")


@pytest.mark.parametrize("name", sorted(PAPER))
def test_presets_say_what_the_paper_says_and_what_it_does_not(name: str) -> None:
    c = RunConfig.from_preset(name)
    found = (c.model, c.epochs, round(c.warmup * c.epochs), c.batch_size, c.weight_decay, c.kappa, c.flip_ratio)
    assert found == PAPER[name]
    assert (c.lr, c.momentum, c.optimizer, c.base, c.rho, c.schedule) == (0.05, 0.9, "ncsam", "sgd", 0.05, "cosine")
    assert c.pretrained is (name in ("food101n", "clothing1m"))
    comments = [line for line in preset_text(name).splitlines() if line.startswith("#")]
    assert any("Stated" in line for line in comments)
    assert any("Not stated" in line for line in comments)
    assert RunConfig.from_preset(name, epochs=2).epochs == 2


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(
            ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)), "data: *a8"]
        ),
        "model_options: &loop {hidden: *loop}",
    ],
)
def test_aliases_that_multiply_or_form_a_loop_are_refused(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kilobyte of YAML that would be gigabytes of values, or endless; one alias more is nothing to refuse."""
    monkeypatch.setattr("ncsam._files._MOST_VALUES", 40_000)
    (tmp_path / "config.yaml").write_text(text)
    for read in (RunConfig.from_yaml, lambda path: RunFolder.read(path.parent)):
        with pytest.raises(ValueError, match=r"config\.yaml.*than 40,000"):
            read(tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("method_options: &same {}\nmodel_options: *same\n")
    assert RunConfig.from_yaml(tmp_path / "config.yaml").model_options == {}


def test_a_configuration_shows_what_differs_from_the_default():
    assert repr(RunConfig()) == "RunConfig()"
    assert repr(RunConfig(rate=0.4, noise="symmetric")) == "RunConfig(noise='symmetric', rate=0.4)"
    assert "momentum=0.9" in repr(resolved())
