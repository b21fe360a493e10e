"""Run folders made by hand, with numbers that are easy to check."""

from __future__ import annotations

import csv
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ncsam import data, noise
from ncsam.engine.task import task_of

EPOCHS = 4
NAMES = {"last": "test accuracy after the last epoch, percent", "memorized": "mislabeled samples, percent"}


def make_run(folder: Path, *, finished: bool = True, known: bool = True, **config: Any) -> Path:
    """A run of four epochs: test accuracy 10 e + seed, memorized 5 e + seed, telemetry grad_norm 1 / e."""
    settings = {"data": "digits", "noise": "symmetric", "rate": 0.4, "method": "ce", "optimizer": "sgd"}
    settings |= {"model": "mlp", "epochs": EPOCHS, "seed": 1, **config}
    folder.mkdir(parents=True)
    command = f"ncsam train digits --seed {settings['seed']} --out {folder.name}"
    (folder / "config.yaml").write_text(yaml.safe_dump({"version": "0.1.0", "command": command, **settings}))
    rows = [
        {
            "epoch": e,
            "train_loss": 2.0 / e,
            "test_accuracy": 10.0 * e + settings["seed"],
            "memorized": 5.0 * e + settings["seed"] if known else None,
            "val_accuracy": None,
            "telemetry": {} if settings["optimizer"] == "sgd" else {"grad_norm": 1.0 / e},
        }
        for e in range(1, EPOCHS + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        last = rows[-1]
        summary = {
            "best": last["test_accuracy"],
            "last": last["test_accuracy"],
            "memorized": last["memorized"],
            "noise_rate": 0.4 if known else None,
            "label_issues_auroc": 0.875 if known else None,
            "seconds": 1.5,
            "warmup_epochs": 1 if settings["optimizer"] == "ncsam" else None,
            "metric_names": NAMES,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
        write_label_issues(folder, known)
        with suppress(ValueError, OSError):  # data that is not there
            _add_notes(folder, {"labels_sha256": task_of(folder).labels_sha256})
    return folder


def write_label_issues(folder: Path, known: bool) -> None:
    """Three digits; the labels of the first two are wrong, and the third is right."""
    labels = data.load("digits").train.labels
    rows = []
    for place, (index, wrong) in enumerate([(7, True), (3, True), (11, False)]):
        clean = int(labels[index])
        row = {"index": index, "given_label": (clean + 1) % 10 if wrong else clean, "predicted_label": clean}
        row |= {"label_quality": 0.1 + 0.1 * place, "p_wrong": "", "is_label_issue": int(wrong)}
        row |= {"suggested_label": clean, "p_suggested": ""}
        row |= {"loss": 2.5, "margin": -0.5, "times_flipped": 3, "first_learned": ""}
        rows.append({**row, "clean_label": clean} if known else row)
    with (folder / "label_issues.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def add_noise(folder: Path) -> noise.NoisyLabels:
    """The record of the noise that a run made."""
    dataset = data.load("digits")
    record = noise.symmetric(dataset.train.labels, 0.4, num_classes=10, seed=0)
    record.save(folder / "noise.npz")
    return record


def add_classes(folder: Path, classes: list[str]) -> None:
    """The notes beside a checkpoint, which know the class names."""
    _add_notes(folder, {"data": {"classes": classes}})


def _add_notes(folder: Path, notes: dict[str, Any]) -> None:
    path = folder / "checkpoints" / "last.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**known, **notes}))
