"""A run of one second, and the comparison of two of them bit for bit."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from ncsam.automl import run as auto_run
from ncsam.automl.portfolio import portfolio
from ncsam.data import DataSet, from_arrays
from ncsam.engine import RunConfig
from ncsam.engine.checkpoint import load_checkpoint
from ncsam.engine.metrics import TIME_FIELDS


def small_data(samples: int = 64, images: bool = False) -> DataSet:
    """Four blobs in six dimensions, or images of four colors."""
    rng = np.random.default_rng(0)
    y = np.arange(samples + 24) % 4
    x = (rng.normal(size=(samples + 24, 6)) + 2.0 * np.eye(6)[y]).astype(np.float32)
    if images:
        colors = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200], [100, 100, 0]])[y, None, None]
        x = (colors + rng.integers(0, 50, (samples + 24, 6, 6, 3))).astype(np.uint8)
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
        **changes,
    }
    return RunConfig.from_dict(options)


@contextmanager
def few_candidates() -> Iterator[None]:
    """`auto` tries every eighth candidate only: closed-form ones and the trained one, in a second."""
    with mock.patch.object(auto_run, "portfolio", lambda problem: portfolio(problem)[::-8]):
        yield


def difference(one: Path, other: Path) -> str | None:
    """Where two finished runs differ; `None` if they are equal in every bit that is not a time."""
    first, second = (load_checkpoint(folder / "checkpoints") for folder in (one, other))
    assert first is not None
    assert second is not None
    for part in ("learners", "samples", "method", "epoch", "batch", "flip_ratio", "warmup_epochs", "noise_estimate"):
        if not same(first.get(part), second.get(part)):
            return part
    if not same(first["ranks"][0]["random"], second["ranks"][0]["random"]):
        return "random"
    if _metrics(one) != _metrics(other):
        return "metrics.jsonl"
    if (one / "label_issues.csv").read_bytes() != (other / "label_issues.csv").read_bytes():
        return "label_issues.csv"
    return None


def same(a: Any, b: Any) -> bool:
    """Whether two nested values are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


def _metrics(folder: Path) -> list[str]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [repr({k: v for k, v in record.items() if k not in TIME_FIELDS}) for record in records]
