"""Wrong options of every command: one sentence, and nothing is made, replaced or waited for."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_cases import call
from PIL import Image

from ncsam import models
from ncsam.cli.options import Readable, Written
from ncsam.embed.encoder import usable_device
from ncsam.engine import RunConfig, train
from ncsam.engine.optimizers import check_options
from ncsam.jobs import local as batch
from ncsam.runs.reader import load_oof
from ncsam.runs.writer import locked

sys.path.append(str(Path(__file__).parents[2]))  # where the package `stress` is
from stress import commands, inputs


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A finished run of one epoch, and its data beside it."""
    top = tmp_path_factory.mktemp("made")
    rng = np.random.default_rng(0)
    np.savez(top / "f.npz", x=rng.normal(size=(24, 3)).astype(np.float32), y=np.arange(24) % 3)
    config = RunConfig(data="f.npz", epochs=1, optimizer="sgd", noise="symmetric", rate=0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(top)
        train(config, "run", console=False)
    return top


@pytest.fixture
def features(made, tmp_path):
    return Path(shutil.copy(made / "f.npz", tmp_path))


@pytest.fixture
def run(made, features, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


@pytest.fixture
def photos(tmp_path):
    for i in range(4):
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def embedding(photos, tmp_path):
    """`ncsam embed` with a network that takes no time."""
    torch.save(models.create("cnn_small", 2).state_dict(), tmp_path / "w.pt")
    given = ["--model", "cnn_small", "--pretrained", tmp_path / "w.pt", "--size", 8, "--quiet"]
    return ["embed", photos, *given, "--out", tmp_path / "out.npz"]


def refused(*arguments):
    """The sentence of a command that is refused, after which all files are what they were."""
    top = next(Path(a).parent for a in arguments if isinstance(a, Path))
    before = inputs._traces(top)
    said = call(*arguments, code=2).output.strip().splitlines()[-1]
    assert inputs._left(before, inputs._traces(top), refused=True) is None
    return said


# --- where a command writes


def test_pipes_and_devices_are_neither_replaced_nor_waited_for(tmp_path, run):
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "device.csv").symlink_to(os.devnull)
    for name in ("pipe.csv", "device.csv"):
        assert f"{name}' is not a regular file." in refused(
            "predict", run, tmp_path / "f.npz", "--out", tmp_path / name
        )
    assert (tmp_path / "pipe.csv").is_fifo()
    assert "'--out': " in refused("train", tmp_path / "f.npz", "--out", tmp_path / "pipe.csv")
    for command in (["annotators"], ["noise", "inspect"], ["predict", run], ["train", "--config"]):
        assert "pipe.csv' is not a regular file." in refused(*command, tmp_path / "pipe.csv")


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "file").write_text("mine")
    for value, said in {
        "": "'' is not the name of a file.",
        "loop.csv": "cannot be written: Too many levels of symbolic links.",
        "file/x.csv": "cannot be written: Not a directory.",
        "x" * 300: "cannot be written: File name too long.",
    }.items():
        with pytest.raises(Exception, match=said):
            Written().convert(value and str(tmp_path / value), None, None)
    assert Written().convert(str(tmp_path / "a/b.csv"), None, None) == tmp_path / "a/b.csv"
    assert Readable(folders=True).convert(str(tmp_path), None, None) == tmp_path


def test_no_command_writes_over_what_it_reads(tmp_path, run, features):
    answers = tmp_path / "answers.csv"
    answers.write_text("path,ada,bob\n" + "".join(f"{i}.png,{i % 2},{i % 2}\n" for i in range(4)))
    np.save(tmp_path / "p.npy", np.full((24, 3), 1 / 3, np.float32))
    other = shutil.copy(features, tmp_path / "other.npz")
    noise = ["noise", "make", features, "--noise", "symmetric", "--rate", 0.2, "--out"]
    for command, lost in {
        ("annotators", answers, "--out", answers): "answers.csv",
        (*noise, features): "f.npz",
        (*noise, tmp_path / "f"): "f.npz",  # to which the suffix is added
        ("clean", run, "--out", features): "f.npz",
        ("clean", run, "--out", run / "label_issues.csv"): "label_issues.csv",
        ("predict", run, other, "--out", other): "other.npz",
        ("predict", run, features, "--out", run / "summary.json"): "summary.json",
        ("export-predictions", run, "--table", run / "label_issues.csv"): "label_issues.csv",
        ("export-predictions", run, "--take", tmp_path / "p.npy", "--out", tmp_path / "p.npy"): "p.npy",
        ("export", run, "--out", run / "config.yaml"): "config.yaml",
        ("align", run, "--out", run / "config.yaml"): "config.yaml",
        ("embed", features, "--model", "mlp", "--out", features): "f.npz",
        ("noise", "plot", features, "--out", features): "f.npz",
    }.items():
        assert f"{lost}' is an input of this command" in refused(*command)


def test_the_words_of_an_export_do_not_replace_the_network(tmp_path, run):
    assert "a file that does not end in .json" in refused("export", run, "--out", tmp_path / "model.json")


def test_a_refused_run_leaves_no_folder_above_it(tmp_path, features):
    assert "Did you mean 'mlp'?" in refused("train", features, "--model", "mlpp", "--out", tmp_path / "a" / "b" / "c")
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyError), locked(tmp_path / "mine" / "b" / "c"):
        raise KeyError
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("options", [["--model", "mlpp"], ["--model-options", "x=1"], ["--model", "no.such:thing"]])
def test_a_refused_race_leaves_no_folder(options, tmp_path, features):
    given = ["auto", features, "--folds", 2, "--quiet", *options, "--out"]
    assert "mlp" in (said := refused(*given, tmp_path / "out")) or "'no.such'" in said
    (tmp_path / "mine").mkdir()
    refused(*given, tmp_path / "mine")


def test_files_are_written_under_names_that_are_not_utf8(tmp_path, run):
    folder = tmp_path / os.fsdecode(b"\xff")
    call("export", run, "--out", folder / "model.pt")
    call("export-predictions", run, "--table", folder / "t.parquet")
    assert {path.name for path in folder.iterdir()} == {"model.pt", "model.json", "t.parquet"}


# --- options that are found wrong before anything is done


def test_comparing_says_what_is_wrong_with_the_data_and_the_options(tmp_path, features):
    out = ["--epochs", 1, "--optimizers", "sgd", "--seeds", 1, "--out", tmp_path / "out"]
    for given, said in {
        (tmp_path / "none.npz",): "none.npz",
        (features, "--label-column", "z"): "z",
        (features, "--optimizer-options", "root=1"): "unknown option of sgd 'root'. Known: none",
        (features, "--schedule-options", "root=1"): "unknown option of cosine 'root'. Known: none",
        (features, "--model-options", "hidden=abc"): "hidden='abc'",
        (features, "--freeze", "nowhere"): "nowhere",
    }.items():
        sentence = refused("compare", *given, *out)
        assert said in sentence
        assert "a run folder is what" not in sentence


def test_a_comparison_says_why_a_run_could_not_begin(tmp_path, features, monkeypatch):
    monkeypatch.setattr(batch, "run_all", commands.in_this_process)
    options = ["--epochs", 1, "--optimizers", "sgd", "--seeds", 1, "--pretrained", tmp_path / "none.pt"]
    said = call("compare", features, *options, "--out", tmp_path / "out", code=1).output
    assert "Error: 1 runs failed" in said
    assert "none.pt" in said.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--optimizer-options", "root=1"], "unknown option of sam 'root'"),
        (["--schedule-options", "root=1"], "unknown option of cosine 'root'"),
        (["--model-options", "root=1"], "unknown option of mlp 'root'"),
        (["--method-options", "root=1"], "unknown option of ce 'root'"),
    ],
)
def test_a_dry_run_finds_what_the_run_would(options, said, features):
    assert said in refused("train", features, "--dry-run", *options)


def test_checked_options_are_those_of_the_run():
    check_options(RunConfig(epochs=1, optimizer="ncsam", head_lr=0.1))
    with pytest.raises(ValueError, match="unknown option of sam 'x'"):
        check_options(RunConfig(epochs=1, optimizer="sam", optimizer_options={"x": 1}))


@pytest.mark.parametrize(
    "options",
    [
        {"data_options": {"download": True}},
        {"data_options": {"root": "."}},
        {"data_options": {"source": "x"}},
        {"model_options": {"name": "mlp"}},
        {"model_options": {"num_classes": 3}},
        {"model_options": {"in_channels": 3}},
        {"model_options": {"pretrained": True}},
        {"method_options": {"name": "ce"}},
    ],
    ids=str,
)
def test_what_the_run_gives_is_no_option_of_a_part(options):
    name, given = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"^invalid {name}=.*{next(iter(given))}"):
        RunConfig(**options)


def test_describing_data_refuses_them_too(features):
    said = "invalid --data-options={'download': 0.5}"
    assert said in refused("data", "describe", features, "--data-options", "download=0.5")


def test_names_of_the_machine_are_checked_in_the_configuration():
    with pytest.raises(ValueError, match=r"^unknown precision '-1'\. Known: 16, .*bf16-mixed"):
        RunConfig(precision="-1")
    with pytest.raises(ValueError, match=r"'cud'\..*'cuda'.*'cpu'\?"):
        RunConfig(accelerator="cud")


def test_more_folds_than_samples_are_refused_before_training(tmp_path, features):
    said = refused("train", features, "--epochs", 1, "--folds", 25, "--quiet", "--out", tmp_path / "out")
    assert "folds=25" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["issues", "--top", 10**30], "is not in the range 0<=x<="),
        (["report", "--images", 10**30], f"images={10**30}"),
        (["align", "--rho", 0.1, "--batches", 10**30], f"batches={10**30}"),
        (["report", "--images", -1], "images=-1"),
        (["export-predictions", "--out", "p.csv"], "a file that ends in .npy"),
        (["issues", "--folds", 25], "folds=25"),
        (["review", "--no-open", "--reviewer", "a\nb"], "reviewer='a\\nb'"),
        (["clean", "--dry-run", "--threshold", "nan", "--apply", "confident"], "threshold=nan"),
    ],
    ids=str,
)
def test_options_on_a_run(given, said, run):
    assert said in refused(given[0], run, *given[1:])


def test_predictions_are_not_taken_by_a_run_that_is_not_finished(tmp_path, run):
    np.save(tmp_path / "p.npy", np.full((24, 3), 1 / 3, np.float32))
    (run / "summary.json").unlink()
    said = refused("export-predictions", run, "--take", tmp_path / "p.npy")
    assert "a finished run" in said
    assert load_oof(run) is None or load_oof(run).about.get("source") != "another model"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "cpu:"], "device='cpu:'"),
        (["--device", "meta"], "device='meta'"),
        (
            ["--model-options", "size=8"],
            "invalid ",
        ),
        (["--size", 2], "cnn_small needs images of at least 4x4 pixels, got 2x2"),
    ],
    ids=str,
)
def test_options_of_embed(options, said, embedding):
    assert said in refused(*embedding, *options)


def test_a_device_that_is_not_there():
    assert usable_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match="device='cuda:99'"):
        usable_device("cuda:99")


def test_reproducing_looks_at_its_data_and_folder_before_the_clock(tmp_path, run, monkeypatch):
    from ncsam.reproduce import run as module

    monkeypatch.setattr(module, "estimate", lambda *_: pytest.fail("steps were measured first"))
    cell = ["reproduce", "curves", "--scale", "smoke", "--rows", "sgd", "--columns", "cifar10-40", "--out"]
    said = refused(*cell, tmp_path / "out", "--data", "cifar10=nowhere.npz")
    assert "data: cifar10=" in said
    assert "nowhere.npz" in said
    assert "holds an `ncsam train` run: choose another folder" in call(*cell, run, code=1).output
    assert not (run / "reproduce.json").exists()


@pytest.mark.parametrize(
    "options", [["describe", "--classes", -1], ["check", "--workers", 0], ["check", "--workers", 10**30]], ids=str
)
def test_counts_of_data(options, features):
    assert "is not in the range" in refused("data", options[0], features, *options[1:])


def test_no_class_is_counted_where_none_is_asked_for(features):
    assert "... 3 classes of 8 to 8 training samples" in call("data", "describe", features, "--classes", 0).output


def test_a_name_that_no_file_can_have_is_a_mistake(tmp_path, features):
    said = refused("data", "describe", tmp_path / f"{'x' * 300}.npz")
    assert said.endswith(": File name too long")
    assert "Errno" not in said


@pytest.mark.parametrize("command", [["train"], ["data", "describe"]])
def test_a_table_without_a_label_column_names_the_option_and_the_columns(command, tmp_path):
    (tmp_path / "wines.csv").write_text("alcohol,ash,cultivar\n14.23,2.43,a\n13.2,2.14,b\n")
    said = call(*command, tmp_path / "wines.csv", code=2).output
    assert said.endswith("): pass --label-column=NAME; columns: alcohol, ash, cultivar\n")
