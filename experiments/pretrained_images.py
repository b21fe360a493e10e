"""Photographs with labels that people got wrong, and a pretrained network: frozen, or fine-tuned.

    PYTHONPATH=experiments python experiments/pretrained_images.py runs/images --cifar cifar10.npz

The first 3,000 images of CIFAR-10 with the labels `y_worst` of CIFAR-10N, about 41 % of them wrong, and 1,000 test
images, at 96 pixels through EfficientNet-Lite0. All runs have the options of the preset `recommended`, but for the
optimizer. Fine-tuning stops after three epochs, of a minute or more each for SGD on one core: far from memorizing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from common import Table, main
from ncsam.engine.config_files import read_preset
from problems import CIFAR, save

RECOMMENDED = {**read_preset("recommended"), "evaluate_train_every": 1000}
OPTIMIZERS = {"SGD": "sgd", "recommended": "sam:rho=validation"}
NETWORK = {"model": "lite0:network", "pretrained": True, "label_column": "y_worst"}


def first(archive: Path, out: Path) -> str:
    """3,000 images to train on and 1,000 to test with; made once."""
    file = out / "images-3000.npz"
    if not file.is_file():
        with np.load(archive) as whole:
            counts = {"x_train": 3000, "y_train": 3000, "y_worst": 3000, "x_test": 1000, "y_test": 1000}
            save(file, {name: whole[name][:count] for name, count in counts.items()})
    return str(file)


def tables(files: argparse.Namespace) -> list[Table]:
    if files.cifar is None:
        raise SystemExit("--cifar: an archive of CIFAR-10 images is needed")
    images = {"data": first(files.cifar, files.out), **NETWORK}
    problems = {
        "frozen": {**images, "freeze": ["backbone"]},
        "fine-tuned": {**images, "epochs": 3},
    }
    return [
        Table(name, {name: options}, OPTIMIZERS, shared=RECOMMENDED, controls={"recommended": "SGD"}, metrics=("last",))
        for name, options in problems.items()
    ]


if __name__ == "__main__":
    main(__doc__, tables, **CIFAR)
