"""`train`, `compare`: options from the configuration's own fields, and results that can be repeated."""

import dataclasses
import json
from typing import Literal

import click
import numpy as np
import pytest
import yaml
from cli_cases import QUICK, call
from lightning_fabric import Fabric
from PIL import Image
from torch import nn

from ncsam.cli.options import ConfigOption, Scalar, Settings, default_out
from ncsam.cli.train import train
from ncsam.engine import RunConfig
from ncsam.engine.config import ResolvedConfig
from ncsam.engine.learner import Learner
from ncsam.methods import create


def dry(*arguments):
    """The configuration that `train --dry-run` prints, and the sentence below it."""
    output = call("train", *arguments, "--dry-run").output
    return yaml.safe_load(output), [line for line in output.splitlines() if line.startswith("#")]


def test_every_field_is_an_option_with_its_own_sentence():
    options = {param.name: param for param in train.params if isinstance(param, ConfigOption) and not param.hidden}
    fields = {field.name: field for field in dataclasses.fields(RunConfig)}
    assert set(options) == set(fields) - {"data"}
    for name, option in options.items():
        assert option.help.startswith(fields[name].metadata["help"])
        assert option.opts == ["--" + name.replace("_", "-")]
    text = call("train", "--help-all").output
    headings = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    wanted = ["Options", "Data and labels", "Method and optimizer", "Model", "Training", "Machine", "Logging"]
    assert headings == wanted


def test_options_reach_the_configuration():
    config, _ = dry(
        *("digits", "--noise", "symmetric", "--rate", "0.3", "--rho", "auto", "--epochs", "7", "--warmup", "null"),
        *("--model", "mlp", "--model-options", "hidden=[8, 4]", "--model-options", "dropout=0.5", "--download"),
        *("--loggers", "tensorboard", "--noise-seed", "null", "--kappa", "1", "--devices", "1"),
    )
    assert config["rho"] == "auto"
    assert config["rate"] == 0.3
    assert config["epochs"] == 7
    assert config["warmup"] == 0  # resolved: sam needs none
    assert config["noise_seed"] is None
    assert config["model_options"] == {"hidden": [8, 4], "dropout": 0.5, "in_features": 64}
    assert config["download"] is True
    assert config["loggers"] == ["tensorboard"]
    assert config["kappa"] == 1.0
    assert config["devices"] == 1


def test_what_is_not_given_is_the_configurations_default():
    config, _ = dry("digits", "--model", "mlp", "--augment", "none")
    expected = RunConfig(data="digits", model="mlp", augment="none", model_options={"in_features": 64})
    for name, value in expected.to_dict().items():
        if value not in ("auto", None):  # those are resolved by the data and the optimizer
            assert config[name] == value, name


def test_a_file_lies_over_a_preset_and_options_over_both(tmp_path, monkeypatch):
    from ncsam.cli import options

    monkeypatch.setattr(options, "read_preset", lambda name: {"data": "digits", "lr": 0.1, "rho": 0.2, "kappa": 0.3})
    file = tmp_path / "some.yaml"
    file.write_text("rho: 0.5\nkappa: 0.6\nmodel_options: {hidden: [9], dropout: 0.1}\n")
    config, _ = dry("--preset", "any", "--config", file, "--kappa", "0.7", "--model-options", "dropout=0.2")
    assert (config["lr"], config["rho"], config["kappa"]) == (0.1, 0.5, 0.7)
    assert config["model_options"]["hidden"] == [9]
    assert config["model_options"]["dropout"] == 0.2


def test_a_mistyped_name_in_a_file_is_found(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("data: digits\nepoch: 3\n")
    assert "unknown option 'epoch'. Did you mean 'epochs'?" in call("train", "--config", file, code=2).output


def test_dry_run_says_what_would_be_done_and_does_nothing(tmp_path, trained):
    _, (line,) = dry("digits", "--out", tmp_path / "new")
    assert line == f"# {tmp_path / 'new'}: a new run would start"
    assert not list(tmp_path.iterdir())
    _, (line,) = dry("digits", *QUICK, "--out", trained)
    assert line == f"# {trained}: finished; nothing would be done"


def test_a_run_is_repeated_by_its_own_configuration(tmp_path, trained):
    output = call("train", "--config", trained / "config.yaml", "--out", tmp_path / "again").output
    first, second = (yaml.safe_load((f / "config.yaml").read_text()) for f in (trained, tmp_path / "again"))
    assert first.pop("command") != second.pop("command")
    assert first == second
    rows = [[json.loads(line) for line in (f / "metrics.jsonl").open()] for f in (trained, tmp_path / "again")]
    for a, b in zip(*rows, strict=True):
        assert (a["train_loss"], a["test_accuracy"], a["memorized"]) == (
            b["train_loss"],
            b["test_accuracy"],
            b["memorized"],
        )
    assert (trained / "label_issues.csv").read_bytes() == (tmp_path / "again" / "label_issues.csv").read_bytes()
    summary = json.loads((tmp_path / "again" / "summary.json").read_text())
    shown = {line.split()[0]: line.split()[1] for line in output.splitlines() if line.split()[0] in summary}
    assert shown["last"] == f"{summary['last']:.2f}"
    assert shown["memorized"] == f"{summary['memorized']:.2f}"
    assert f"next: ncsam issues {tmp_path / 'again'}" in output


def test_the_command_is_kept(trained):
    command = yaml.safe_load((trained / "config.yaml").read_text())["command"]
    assert command.startswith(
        "ncsam train digits --noise symmetric --rate 0.4 --epochs 2 --model-options 'hidden=[16]'"
    )


def test_another_configuration_does_not_overwrite_a_run(trained):
    output = call("train", "digits", *QUICK, "--lr", "0.2", "--out", trained, code=1).output
    assert "lr was 0.1, now 0.2" in output


def test_folders_are_named_for_what_runs_in_them():
    config = RunConfig(data="photos/cats.csv", noise="symmetric", rate=0.4, method="mixup", optimizer="sam", seed=3)
    assert str(default_out(config)) == "runs/cats-symmetric0.4-mixup-sam-s3"
    assert str(default_out(config, comparison=True)) == "runs/compare-cats-symmetric0.4"
    assert str(default_out(RunConfig(data="digits"))) == "runs/digits-s1"  # the classifier may need no optimizer
    assert str(default_out(RunConfig(data="digits", model="mlp"))) == "runs/digits-ce-sam-s1"


@pytest.mark.parametrize(
    ("kinds", "text", "value"),
    [
        ((int,), "3", 3),
        ((float, type(None)), "null", None),
        ((float, type(None)), "1e-3", 0.001),
        ((float, Literal["auto"]), "auto", "auto"),
        ((float, Literal["auto"]), "2", 2.0),
        ((float, Literal["auto"], type(None)), "null", None),
        ((int, str), "2", 2),
        ((bool, str), "True", True),
        ((bool, str), "weights.pt", "weights.pt"),
        ((str,), "null", "null"),
    ],
)
def test_values_become_what_the_field_allows(kinds, text, value):
    found = Scalar(kinds).convert(text, None, None)
    assert found == value
    assert type(found) is type(value)


def test_values_that_fit_nothing_are_refused():
    with pytest.raises(click.BadParameter, match=r"'x'.*whole"):
        Scalar((int, type(None))).convert("x", None, None)
    with pytest.raises(click.BadParameter, match=r"'big'.*number"):
        Scalar((float, Literal["auto"])).convert("big", None, None)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("hidden=[8, 4]", {"hidden": [8, 4]}),
        ("compensation=relative,sign=-1", {"compensation": "relative", "sign": -1}),
        ("hidden=[8,4],dropout=0.5,bias=false", {"hidden": [8, 4], "dropout": 0.5, "bias": False}),
        ("name=a,b", {"name": "a,b"}),
        ("map={0: 1, 2: 3},x=null", {"map": {0: 1, 2: 3}, "x": None}),
        ("url=a=b", {"url": "a=b"}),
        ("broken=[1", {"broken": "[1"}),
    ],
)
def test_settings_with_commas(text, settings):
    assert Settings().convert(text, None, None) == settings


def test_what_the_optimizer_takes_reaches_it(tmp_path):
    given = ["--rho", "auto", "--kappa", "0.3", "--optimizer-options", "compensation=relative,sign=-1"]
    given += ["--optimizer-options", "projection=false", "--rho-target", "0.4", "--flip-ratio", "auto"]
    given += ["--warmup", "auto"]
    config, _ = dry("digits", "--optimizer", "ncsam", *given)
    options = {"compensation": "relative", "sign": -1, "projection": False}
    assert config["optimizer_options"] == options
    assert (config["rho"], config["rho_target"], config["kappa"]) == ("auto", 0.4, 0.3)
    assert (config["flip_ratio"], config["warmup"]) == ("auto", "auto")
    run = Fabric(accelerator="cpu")
    network = nn.Linear(2, 2)
    optimizer = Learner(run, network, create("ce"), ResolvedConfig.from_dict(config), 10).optimizer
    assert {name: getattr(optimizer, name) for name in options} == options
    assert (optimizer.rho_target, optimizer.kappa) == (0.4, 0.3)
    for wrong, said in [
        (["--rho", "big"], "'big' is not a number or null or auto"),
        (["--rho", "-1"], "--rho=-1.0"),
        (["--rho-target", "0"], "--rho-target=0.0"),
        (["--warmup", "1.5"], "--warmup=1.5"),
        (["--warmup", "auto", "--val-share", "0"], "--warmup='auto'"),
    ]:
        assert said in call("train", "digits", *wrong, "--dry-run", code=2).output


def test_recommended_needs_no_other_option(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(60):
        path = tmp_path / "shades" / ("dark" if i % 2 else "light") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        level = rng.integers(0, 90, (6, 9)) + (0 if i % 2 else 150)
        Image.fromarray(level.astype(np.uint8)).save(path)
    config, (line,) = dry(tmp_path / "shades", "--preset", "recommended")
    assert config["data"] == str(tmp_path / "shades")
    assert (config["model"], config["batch_size"], config["rho"]) == ("mlp", 128, "validation")
    assert [config[name] for name in ("lr", "weight_decay", "epochs", "rho_target")] == [0.0125, 0.005, 800, 0.4]
    assert config["model_options"]["in_features"] == 3 * 6 * 9
    assert line == "# runs/shades-s1: a new run would start"
    assert "Missing argument 'DATA'" in call("train", "--preset", "recommended", code=2).output
    call("train", tmp_path / "shades", "--preset", "recommended", "--epochs", 8, "--quiet", "--out", tmp_path / "r")
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["last"] == 100
    output = call("compare", tmp_path / "shades", "--preset", "recommended", "--dry-run").output
    assert yaml.safe_load(output)["rho"] == "validation"
    assert output.count("a new run would start") == 9
    assert "recommended  " in call("presets").output
    assert "rho: validation" in call("presets", "show", "recommended").output


def test_compare_says_beforehand_what_it_would_run(tmp_path):
    arguments = [
        "compare",
        "digits",
        *QUICK,
        "--methods",
        "ce,mixup",
        "--optimizers",
        "sgd,sam:rho=0.1",
        "--seeds",
        "5,8",
    ]
    output = call(*arguments, "--out", tmp_path / "c", "--dry-run").output
    lines = [line for line in output.splitlines() if line.startswith("#")]
    assert len(lines) == 8
    assert lines[0] == f"# {tmp_path / 'c' / 'ce-sgd-s5'}: a new run would start"
    assert lines[-1] == f"# {tmp_path / 'c' / 'mixup-sam_rho=0.1-s8'}: a new run would start"
    assert not list(tmp_path.iterdir())


def test_a_wrong_option_of_a_method_is_said_before_anything_is_done(tmp_path):
    wrong = ["--method", "elr", "--method-options", "wieght=2", "--dry-run"]
    output = call("train", "digits", *wrong, "--out", tmp_path / "r", code=2).output
    assert "unknown option of elr 'wieght'. Did you mean 'weight'?" in output
    for more in ([], ["--dry-run"]):
        output = call("compare", "digits", "--methods", "ce,gce:q=2", "--out", tmp_path / "c", *more, code=2).output
        assert "q=2.0" in output
    assert "unknown method 'cee'" in call("train", "digits", "--method", "cee", "--dry-run", code=2).output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_compare_ends_in_a_table_a_image_a_report_and_numbers(tmp_path, jobs_here):
    arguments = ["compare", "digits", *QUICK, "--optimizers", "sgd,ncsam", "--seeds", "2", "--out", tmp_path / "c"]
    output = call(*arguments).output
    rows = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert [(row["optimizer"], row["seeds"]) for row in rows] == [("sgd", [1, 2]), ("ncsam", [1, 2])]
    lines = output.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("method"))
    columns = lines[head].split()
    for row, line in zip(rows, lines[head + 1 :], strict=False):
        cells = line.split()
        place = 3 + 2 * (columns.index("last") - 3)  # mean and deviation are two words
        assert cells[:3] == ["ce", row["optimizer"], "2"]
        assert cells[place : place + 2] == [f"{row['last']['mean']:.2f}", f"±{row['last']['std']:.2f}"]
    assert "last: test accuracy after the last epoch, percent" in output
    for name in ("curves.png", "report.html", "comparison.json"):
        assert str(tmp_path / "c" / name) in output
        assert (tmp_path / "c" / name).stat().st_size > 500
    assert "ncsam compare digits --noise symmetric" in (tmp_path / "c" / "report.html").read_text()
    again = call(*arguments).output
    assert "4 runs, 4 of them finished" in again


@pytest.mark.slow
def test_compare_names_the_runs_that_failed(tmp_path, jobs_here):
    arguments = [
        "compare",
        "digits",
        *QUICK,
        "--optimizers",
        "sgd,sgd:lr=1e30",
        "--seeds",
        "1",
        "--out",
        tmp_path / "c",
    ]
    output = call(*arguments, code=1).output
    assert "Error: 1 runs failed" in output
    assert "ce, sgd:lr=1e30, seed 1: the loss is not finite" in output
    assert "report: " in output, "what did finish is shown"
