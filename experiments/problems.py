"""The problems that experiments share: datasets cut to what two cores can do, and the noises put on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ncsam._files import atomic_path
from ncsam.data import load
from reduce_cifar import halved

#: Noises by the name of their column: options of a run.
NOISES: dict[str, dict[str, Any]] = {
    **{f"symmetric {r}": {"noise": "symmetric", "rate": r / 100} for r in (20, 40, 60, 80)},
    "pair flip 40": {"noise": "pairflip", "rate": 0.4},
    "instance 40": {"noise": "instance", "rate": 0.4},
}
#: CIFAR-10N's worst labels, about 41 % of them wrong, in archives that have them.
HUMAN: dict[str, dict[str, Any]] = {"human": {"label_column": "y_worst", "rate": 0.4}}
#: For `main(..., **FILES)`: what the command line may give.
FASHION = {"fashion": "folder with Fashion-MNIST's four files"}
CIFAR = {"cifar": "archive of CIFAR-10 images with human labels in y_worst"}


def small_cifar(archive: Path, out: Path, train: int = 2500) -> str:
    """The first images of the archive averaged to 16x16, with their human labels; made once."""
    file = out / f"cifar-{train}.npz"
    if not file.is_file():
        with np.load(archive) as whole:
            arrays = {name: whole[name][:train] for name in ("x_train", "y_train", "x_test", "y_test", "y_worst")}
        save(file, {name: halved(array) if name.startswith("x") else array for name, array in arrays.items()})
    return str(file)


def first(archive: Path, samples: int, out: Path) -> str:
    """The first training samples of an archive of features and half of its test samples; made once."""
    file = out / f"{archive.stem}-{samples}.npz"
    if not file.is_file():
        with np.load(archive) as whole:
            arrays = {name: whole[name] for name in whole.files if name.startswith(("x_", "y_"))}
        cut = {k: v[: len(v) // 2] if k.endswith("_test") else v[:samples] for k, v in arrays.items()}
        save(file, {k: v.astype(np.float32) if k.startswith("x") else v for k, v in cut.items()})
    return str(file)


def small_fashion(folder: Path, out: Path) -> str:
    """The first 2,000 training and 5,000 test images of Fashion-MNIST; made once."""
    file = out / "fashion.npz"
    if not file.is_file():
        whole = load("fashion_mnist", root=folder)
        assert whole.test is not None
        parts = {"train": whole.train.take(np.arange(2000)), "test": whole.test.take(np.arange(5000))}
        save(file, {f"{k}_{p}": np.asarray(getattr(s, a)) for p, s in parts.items() for k, a in _ARRAYS.items()})
    return str(file)


_ARRAYS = {"x": "inputs", "y": "labels"}


def save(file: Path, arrays: dict[str, Any]) -> None:
    with atomic_path(file) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
