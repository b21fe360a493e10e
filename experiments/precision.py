"""Whether bf16 autocast changes accuracy: the same runs in 32-true and in bf16-mixed, over seeds.

    python experiments/precision.py precision.json --cifar cifar10_subset.npz --seeds 8

Five small problems with label noise and convolutional networks, with and without BatchNorm. The two precisions share
seeds, labels, initialization and batches. Images of CIFAR-10 are averaged to 16 x 16. A processor without bf16
arithmetic emulates it, with the same rounding and several times slower. Finished runs are in the file and not repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam.data import from_arrays
from ncsam.data.types import DataSet
from ncsam.engine import RunConfig, train

PRECISIONS = ("32-true", "bf16-mixed")
SYMMETRIC = {"noise": "symmetric", "rate": 0.4}
SMALL = {"model": "cnn_small", "model_options": {"width": 8}, "epochs": 8}
DIGITS = {"data": "digits", **SMALL}
RESNET = {"model": "resnet8", "epochs": 6}
PROBLEMS: dict[str, dict[str, Any]] = {
    "digits, symmetric, cnn_small, SAM": {**DIGITS, **SYMMETRIC, "optimizer": "sam", "rho": 0.1},
    "digits, pair flip, cnn_small, NCSAM": {
        **DIGITS,
        "noise": "pairflip",
        "rate": 0.4,
        "optimizer": "ncsam",
        "rho": 0.1,
    },
    "digits, symmetric, resnet8, SGD": {**RESNET, **SYMMETRIC, "data": "digits", "optimizer": "sgd"},
    "CIFAR-10, symmetric, resnet8, SGD": {**RESNET, **SYMMETRIC, "data": "cifar", "optimizer": "sgd"},
    "CIFAR-10, human labels, resnet8, SAM": {**RESNET, "data": "y_worst", "optimizer": "sam", "rho": 0.1},
}


def cifar(path: Path, labels: str, samples: int) -> DataSet:
    """The first images with one of the archive's labels, averaged to 16 x 16; 1,000 test images."""
    with np.load(path) as file:
        x, y, x_test, y_test = (file[name] for name in ("x_train", labels, "x_test", "y_test"))
    small = [a.reshape(-1, 16, 2, 16, 2, 3).mean(axis=(2, 4)).astype(np.uint8) for a in (x[:samples], x_test[:1000])]
    return from_arrays(small[0], y[:samples], x_test=small[1], y_test=y_test[:1000], name="cifar10")


def accuracy(problem: str, precision: str, seed: int, path: Path, samples: int) -> float:
    """Mean test accuracy of the last three epochs."""
    options = dict(PROBLEMS[problem])
    label = {"cifar": "y_train", "y_worst": "y_worst"}.get(options.pop("data"))
    dataset = None if label is None else cifar(path, label, samples)
    config = RunConfig.from_dict(
        {"batch_size": 64, "lr": 0.05, "augment": "none", "evaluate_train_every": None, "telemetry_every": 0}
        | {"accelerator": "cpu", **options, "precision": precision, "seed": seed}
    )
    trainer = train(config, dataset=dataset, console=False).trainer
    assert trainer is not None
    return statistics.mean(record["test_accuracy"] for record in trainer.history[-3:])


def summary(runs: dict[str, float]) -> dict[str, dict[str, float]]:
    """Means, the mean difference within seeds, and the standard errors of difference and float32's mean."""
    found = {}
    for problem in PROBLEMS:
        keys = ([f"{problem} | {p} | {seed}" for p in PRECISIONS] for seed in itertools.count(1))
        pairs = [(runs[a], runs[b]) for a, b in itertools.takewhile(lambda names: names[1] in runs, keys)]
        if len(pairs) < 2:
            continue
        one, other = zip(*pairs, strict=True)
        differences = [b - a for a, b in pairs]
        error = [statistics.stdev(values) / len(pairs) ** 0.5 for values in (differences, one)]
        row = [len(pairs), statistics.mean(one), statistics.mean(other), statistics.mean(differences), *error]
        names = ("seeds", "32-true", "bf16-mixed", "difference", "its error", "error of 32-true")
        found[problem] = dict(zip(names, row, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="problems whose name begins so")
    parser.add_argument("--samples", type=int, default=1000, help="training images of CIFAR-10")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs: dict[str, float] = json.loads(options.out.read_text())["runs"] if options.out.is_file() else {}
    for seed in range(1, options.seeds + 1):
        for problem in (name for name in PROBLEMS if name.startswith(options.only)):
            for precision in PRECISIONS:
                name = f"{problem} | {precision} | {seed}"
                if name not in runs:
                    runs[name] = accuracy(problem, precision, seed, options.cifar, options.samples)
                    content = {"runs": runs, "summary": summary(runs)}
                    options.out.write_text(json.dumps(content, indent=2) + "\n")
                    print(f"{runs[name]:6.2f}  {name}", flush=True)
    for problem, row in summary(runs).items():
        print(problem, {name: round(value, 2) for name, value in row.items()})


if __name__ == "__main__":
    main()
