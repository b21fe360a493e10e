"""Fine-tuning a pretrained EfficientNet-Lite0 on photos whose labels people got wrong.

    PYTHONPATH=experiments python experiments/pretrained_images.py runs/images --cifar cifar10.npz
    ncsam train runs/images/images-1500.npz --label-column y_worst --out runs/images/frozen

The first 1,500 images of CIFAR-10 with the labels `y_worst` of CIFAR-10N, about 41 % of them wrong, and 1,000 test
images, enlarged to 64 pixels. SGD with momentum .9, learning rate .01 and cosine decay, batches of 32, ten epochs; a
tenth of the training images is held out with its noisy labels. The second command is the default: a smooth classifier
on the frozen features.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from cells import Setting
from common import Table, main
from problems import CIFAR, save

COUNTS = {"x_train": 1500, "y_train": 1500, "y_worst": 1500, "x_test": 1000, "y_test": 1000}
FINE_TUNED = {
    "model": "lite0",
    "pretrained": True,
    "label_column": "y_worst",
    "val_share": 0.1,
    "warmup": 0.0,
    "base": "sgd",
    "lr": 0.01,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "batch_size": 32,
    "epochs": 10,
    "augment": "none",
    "evaluate_train_every": 1000,
}
HEADS = {
    "random head": {"head_init": "random", "interpolation": 1.0},
    "fitted head": {"head_init": "lda", "interpolation": 1.0},
    "fitted head, interpolated .5": {"head_init": "lda", "interpolation": 0.5},
}
SETTINGS = {
    "SGD": Setting("sgd"),
    "GCE": Setting("sgd", "gce"),
    "ELR": Setting("sgd", "elr"),
    "SAM, rho .05": Setting("sam:rho=0.05"),
    "SAM, validation-guided": Setting("sam:rho=validation"),
    "Co-teaching": Setting("sgd", "coteaching"),
}


def enlarged(archive: Path, out: Path) -> str:
    """The images, each pixel four; made once."""
    file = out / f"images-{COUNTS['x_train']}.npz"
    if not file.is_file():
        with np.load(archive) as whole:
            arrays = {name: whole[name][:count] for name, count in COUNTS.items()}
        larger = {n: a.repeat(2, axis=1).repeat(2, axis=2) if n.startswith("x") else a for n, a in arrays.items()}
        save(file, larger)
    return str(file)


def tables(files: argparse.Namespace) -> list[Table]:
    if files.cifar is None:
        raise SystemExit("--cifar: an archive of CIFAR-10 images is needed")
    shared = {"data": enlarged(files.cifar, files.out), **FINE_TUNED}
    return [
        Table(
            "fine-tuned", HEADS, SETTINGS, seeds=1, shared=shared, metrics=("last", "val_chosen", "best", "memorized")
        )
    ]


if __name__ == "__main__":
    main(__doc__, tables, **CIFAR)
