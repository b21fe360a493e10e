"""Tasks that are killed and disturbed (a run, its folds, `auto`, `embed`), and the comparison of two results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch

from ncsam import methods
from ncsam._files import atomic_path
from ncsam.automl import auto
from ncsam.automl import run as auto_run
from ncsam.automl.portfolio import portfolio
from ncsam.data import DataSet, from_arrays
from ncsam.embed import choose, embed, image_encoder
from ncsam.engine import RunConfig, train
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.metrics import TIME_FIELDS
from ncsam.engine.out_of_fold import find_label_issues_cv
from ncsam.models import lite0

_PARTS = ("learners", "samples", "method", "epoch", "batch", "flip_ratio", "warmup_epochs", "noise_estimate", "random")


def small_data(samples: int = 64, images: bool = False, side: int = 6) -> DataSet:
    """Four blobs in six dimensions, or images of four colors."""
    rng = np.random.default_rng(0)
    y = np.arange(samples + 24) % 4
    x = (rng.normal(size=(samples + 24, 6)) + 2.0 * np.eye(6)[y]).astype(np.float32)
    if images:
        colors = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200], [100, 100, 0]])[y, None, None]
        x = (colors + rng.integers(0, 50, (samples + 24, side, side, 3))).astype(np.uint8)
    return from_arrays(x[:samples], y[:samples], x_test=x[samples:], y_test=y[samples:], name="small")


def small_config(**changes: Any) -> RunConfig:
    """Four epochs of a small model."""
    options: dict[str, Any] = {
        "data": "small",
        "noise": "symmetric",
        "rate": 0.3,
        "model": "mlp",
        "model_options": {"hidden": [8], "dropout": 0.2},
        "epochs": 4,
        "batch_size": 16,
        "telemetry_every": 2,
        "checkpoint_every": 1,
    }
    return RunConfig.from_dict({**options, **changes})


@contextmanager
def few_candidates() -> Iterator[None]:
    """`auto` tries every eighth candidate only: closed-form ones and the trained one, in a second."""
    with mock.patch.object(auto_run, "portfolio", lambda problem: portfolio(problem)[::-8]):
        yield


@contextmanager
def tiny_backbones() -> Iterator[None]:
    """In place of the default backbones: one block of Lite0 on small images, and static embeddings of texts."""

    def load_packaged(network: lite0.Lite0) -> None:
        values = torch.Generator().manual_seed(0)
        for parameter in network.parameters():
            parameter.data.uniform_(-0.3, 0.3, generator=values)

    text = choose.Choice("wordllama", "static embeddings")
    with ExitStack() as patches:
        for owner, name, value in (
            (lite0, "_STAGES", ((1, 3, 4, 1, 8),)),
            (lite0.Lite0, "load_packaged", load_packaged),
            (choose, "THUMBNAIL_SIZE", 32),
            (choose, "PHOTO_SIZE", 32),
            (choose, "_for_text", lambda: text),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        yield


class Task(NamedTuple):
    """`do(out, **options)` writes a folder; `difference(one, other)` names what differs, or is `None`."""

    do: Callable[..., object]
    difference: Callable[[Path, Path], str | None]


def _train(out: Path, **options: Any) -> None:
    given = {"method": "mixup", **options}
    images = methods.create(given["method"]).images_only
    train(small_config(**given), out, dataset=small_data(images=images), console=False)


def many_epochs(out: Path, epochs: int = 300, checkpoint_every: int | None = 1) -> None:
    config = small_config(epochs=epochs, batch_size=8, checkpoint_every=checkpoint_every, optimizer="ncsam")
    train(config, out, dataset=small_data(16), console=False)


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


def run_difference(one: Path, other: Path) -> str | None:
    """Where two finished runs differ; `None` if they are equal in every bit that is not a time."""
    first, second = (_state(folder) for folder in (one, other))
    found = next((part for part in first if not _same(first[part], second[part])), None)
    return found or _different_files("label_issues.csv")(one, other)


def _state(folder: Path) -> dict[str, Any]:
    stored = load_checkpoint(folder / "checkpoints")
    assert stored is not None
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    metrics = [{name: value for name, value in record.items() if name not in TIME_FIELDS} for record in records]
    return {part: stored.get(part) for part in _PARTS} | {"random": stored["ranks"][0]["random"], "metrics": metrics}


def _same(a: Any, b: Any) -> bool:
    """Whether two nested values are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def _different_files(*names: str) -> Callable[[Path, Path], str | None]:
    def first(one: Path, other: Path) -> str | None:
        return next((name for name in names if (one / name).read_bytes() != (other / name).read_bytes()), None)

    return first


def _different_features(one: Path, other: Path) -> str | None:
    with np.load(one / "features.npz") as first, np.load(other / "features.npz") as second:
        return next((name for name in first.files if not np.array_equal(first[name], second[name])), None)


TASKS = {
    "train": Task(_train, run_difference),
    "many epochs": Task(many_epochs, run_difference),
    "folds": Task(_folds, _different_files("oof_probs.npz", "label_issues.csv", "label_posterior.json")),
    "auto": Task(_auto, _different_files("oof_probs.npz", "label_issues.csv")),
    "embed": Task(_embed, _different_features),
}
