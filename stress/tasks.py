"""Tasks that are killed and disturbed: a run, its folds, `auto`, `embed`; each with a comparison of two results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ncsam import methods
from ncsam._files import atomic_path
from ncsam.automl import auto
from ncsam.embed import embed, image_encoder
from ncsam.engine import RunConfig, train
from ncsam.engine.out_of_fold import find_label_issues_cv
from stress.small import difference, few_candidates, small_config, small_data


class Task(NamedTuple):
    """`do(out, **options)` writes a folder; `difference(one, other)` names what differs, or is `None`."""

    do: Callable[..., object]
    difference: Callable[[Path, Path], str | None]


def _train(out: Path, **options: Any) -> None:
    given = {"method": "mixup", **options}
    images = methods.create(given["method"]).images_only
    train(small_config(**given), out, dataset=small_data(images=images), console=False)


def _folds(out: Path) -> None:
    """What `ncsam train --folds` does."""
    features = out.parent / "features.npz"
    if not features.exists():
        data = small_data().train
        with atomic_path(features) as temporary:
            np.savez(temporary, x=data.inputs, y=data.labels)
    train(small_config(data=str(features), checkpoint_every=None), out, console=False)
    find_label_issues_cv(out, 2, console=False)


def _auto(out: Path) -> None:
    config = RunConfig(data="small", val_share=0.0)
    with few_candidates():
        auto(config, out, folds=2, budget=1e-9, dataset=small_data(), say=lambda text: None)


def _embed(out: Path) -> None:
    torch.manual_seed(0)
    encoder = image_encoder("cnn_small", pretrained=False, size=(6, 6))
    embed(small_data(images=True), encoder, out / "features.npz", batch_size=4, say=lambda text: None)


def _different_files(*names: str) -> Callable[[Path, Path], str | None]:
    def first(one: Path, other: Path) -> str | None:
        return next((name for name in names if (one / name).read_bytes() != (other / name).read_bytes()), None)

    return first


def _different_features(one: Path, other: Path) -> str | None:
    with np.load(one / "features.npz") as first, np.load(other / "features.npz") as second:
        return next((name for name in first.files if not np.array_equal(first[name], second[name])), None)


TASKS = {
    "train": Task(_train, difference),
    "folds": Task(_folds, _different_files("oof_probs.npz", "label_issues.csv", "label_posterior.json")),
    "auto": Task(_auto, _different_files("oof_probs.npz", "label_issues.csv")),
    "embed": Task(_embed, _different_features),
}
