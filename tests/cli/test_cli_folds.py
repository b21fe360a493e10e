"""`ncsam train --folds`: label issues from networks that never saw the label, of any run, also after a kill."""

import csv
import json
import os
import signal
import sys

import numpy as np
import pytest
from cli_cases import call

from ncsam.cli.main import main
from ncsam.engine.sinks import CheckpointSink
from ncsam.runs.reader import load_oof
from processes import start

OPTIONS = ["--optimizer", "sgd", "--epochs", "12", "--model-options", "hidden=[8]", "--lr", "0.1", "--quiet"]
FACTORY = """
from ncsam import models

def build(num_classes, **options):
    return models.create("mlp", num_classes, in_features=3, hidden=[8])
"""


def die_in(fold, epoch, command):
    """Call the command in a process that kills itself at the end of an epoch of a fold."""
    on_epoch_end = CheckpointSink.on_epoch_end

    def dying(self, trainer, record):
        if (trainer.config.fold, trainer.epoch) == (fold, epoch):
            os.kill(os.getpid(), signal.SIGKILL)
        on_epoch_end(self, trainer, record)

    CheckpointSink.on_epoch_end = dying
    main(command)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory):
    """Two clouds of points, 80 samples, the first ten labels wrong."""
    generator = np.random.default_rng(0)
    clean = np.arange(80) % 2
    observed = clean.copy()
    observed[:10] ^= 1
    path = tmp_path_factory.mktemp("clouds") / "data.npz"
    x = (generator.normal(size=(80, 3)) + 8 * clean[:, None]).astype(np.float32)
    np.savez(path, x=x, y=observed, y_clean=clean)
    return path


def test_a_run_with_folds_is_a_run_and_then_its_folds(clouds, tmp_path):
    planned = call("train", clouds, *OPTIONS, "--folds", "4", "--dry-run", "--out", tmp_path / "one").output
    assert "then 4 runs in" in planned
    assert not (tmp_path / "one").exists()
    call("train", clouds, *OPTIONS, "--folds", "4", "--out", tmp_path / "one")
    call("train", clouds, *OPTIONS, "--out", tmp_path / "two")
    before = json.loads((tmp_path / "two" / "summary.json").read_text())
    call("issues", tmp_path / "two", "--folds", "4")
    assert np.array_equal(load_oof(tmp_path / "one").probabilities, load_oof(tmp_path / "two").probabilities)
    assert (tmp_path / "one" / "label_issues.csv").read_text() == (tmp_path / "two" / "label_issues.csv").read_text()
    after = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert after["label_issues_auroc"] == 1.0
    assert {**before, "label_issues_auroc": 1.0, "noise_estimate": after["noise_estimate"]} == after
    assert after["noise_estimate"]["estimate"] == pytest.approx(10 / 78)  # of the confident predictions
    call("train", clouds, *OPTIONS, "--folds", "4", "--out", tmp_path / "one")  # nothing is left to do
    refused = call("train", clouds, *OPTIONS, "--folds", "4", "--fold", "1/4", "--out", tmp_path / "three", code=2)
    assert "--folds 4 needs a run on all samples" in refused.output


def test_a_network_of_one_s_own_is_named_again_where_it_is_built(clouds, tmp_path, monkeypatch):
    (tmp_path / "fold_networks.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    options = ["--optimizer", "sgd", "--epochs", "4", "--lr", "0.1", "--quiet", "--model", "fold_networks:build"]
    call("train", clouds, *options, "--folds", "2", "--out", "run")
    assert "is not one of ours" in call("issues", "run", "--folds", "3", code=2).output
    call("issues", "run", "--folds", "3", "--model", "fold_networks:build")
    assert load_oof(tmp_path / "run").about["folds"] == 3
    assert "of 80 labels would change" in call("clean", "run", "--dry-run").output  # which builds no network
    (tmp_path / "run" / "oof_probs.npz").unlink()
    assert "is not one of ours" in call("export-predictions", "run", "--out", "p.npy", code=2).output
    call("export-predictions", "run", "--out", "p.npy", "--model", "fold_networks:build")


@pytest.mark.slow
def test_folds_that_were_killed_go_on_and_end_with_the_same_bits(clouds, tmp_path):
    """It is the process itself that ends at a moment of its run: seen from outside, that moment may have passed."""
    options = [*OPTIONS, "--epochs", "8", "--folds", "3"]
    command = ["train", str(clouds), *options, "--out", str(tmp_path / "killed")]
    for fold, epoch in (("2/3", 1), ("3/3", 4)):
        process = start(die_in, fold, epoch, command)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        begun = tmp_path / "killed" / "folds" / fold.replace("/", "-of-")
        assert len((begun / "metrics.jsonl").read_text().splitlines()) == epoch
        assert not (begun / "summary.json").exists()
    oof = load_oof(tmp_path / "killed")
    assert oof is None or oof.about.get("folds") != 3
    call(*command)
    call("train", clouds, *options, "--out", tmp_path / "whole")
    for name in ("oof_probs.npz", "label_issues.csv", "label_posterior.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_texts_stand_in_the_list_and_in_the_cleaned_table(tmp_path):
    words = {"good": "lovely warm bright", "bad": "=dull awful gray"}
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["review", "label"])
        for i in range(60):
            true = ("good", "bad")[i % 2]
            said = ("bad", "good")[i % 2] if i < 4 else true
            table.writerow([f"{words[true]} {i}", said])
    options = ["--optimizer", "sgd", "--epochs", "8", "--lr", "0.5", "--quiet"]
    call("train", tmp_path / "texts.csv", *options, "--folds", "3", "--out", tmp_path / "run")
    with (tmp_path / "run" / "label_issues.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(int(row["index"]) for row in rows[:4]) == [0, 1, 2, 3]
    assert next(row["text"] for row in rows if row["index"] == "1") == "'=dull awful gray 1"  # no formula
    assert "lovely warm bright 0" in call("issues", tmp_path / "run", "--top", "4").output
    call("clean", tmp_path / "run", "--apply", "all", "--out", tmp_path / "cleaned.csv")
    with (tmp_path / "cleaned.csv").open(newline="") as file:
        cleaned = list(csv.DictReader(file))
    assert cleaned[1]["review"] == "=dull awful gray 1"  # as it was
    assert [row["label"] for row in cleaned] == ["good", "bad"] * 30
    call("train", tmp_path / "cleaned.csv", *options, "--epochs", "1", "--out", tmp_path / "again")


def test_numbers_and_named_data_are_trained_on_again(tmp_path):
    with (tmp_path / "numbers.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["age", "hours", "label"])
        table.writerows([20 + 30 * (i % 2) + i / 90, 1 / 3 + i % 2, (i % 2) ^ (i < 4)] for i in range(60))
    options = ["--optimizer", "sgd", "--epochs", "6", "--quiet"]
    call("train", tmp_path / "numbers.csv", *options, "--folds", "3", "--out", tmp_path / "run")
    call("clean", tmp_path / "run", "--apply", "all", "--out", tmp_path / "cleaned.csv")
    from ncsam.data import load

    first, second = load(tmp_path / "numbers.csv"), load(tmp_path / "cleaned.csv")
    assert second.columns == ("age", "hours")  # not probability
    assert np.array_equal(first.train.inputs, second.train.inputs)
    assert second.train.labels.tolist() == [0, 1] * 30
    quick = ["--noise", "symmetric", "--rate", "0.3", "--epochs", "2", "--model-options", "hidden=[16]", "--quiet"]
    call("train", "digits", *quick, "--out", tmp_path / "digits")
    said = call("clean", tmp_path / "digits", "--apply", "all", "--out", tmp_path / "labels.csv").output
    assert f"next: ncsam train digits --label-file {tmp_path / 'labels.csv'}" in said
    labels = ["--label-file", tmp_path / "labels.csv", "--epochs", "1", "--quiet"]
    call("train", "digits", *labels, "--out", tmp_path / "again")
    with (tmp_path / "labels.csv").open(newline="") as file:
        wanted = [int(row["label"]) for row in csv.DictReader(file)]
    with np.load(tmp_path / "again" / "noise.npz") as noise:
        assert any(np.array_equal(noise[name], wanted) for name in noise.files)
    (tmp_path / "labels.csv").write_text("index,label,given_label,source,probability\n0,11,1,given,\n")
    refused = call("train", "digits", *labels, "--out", tmp_path / "third", code=2).output
    assert "labels of the 1,438 training samples of digits, in their order; unknown classes: ['11']" in refused
