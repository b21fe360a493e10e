"""Runs by two processes, and small data for them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

_SCRIPT = """
import importlib, json, os, sys, torch
torch.set_num_threads(1)
for module in sys.argv[2:]:
    importlib.import_module(module)
from ncsam.engine import RunConfig, train
from ncsam.engine.sinks import CheckpointSink

save, stop = CheckpointSink.save, None
def saving(self, trainer):
    save(self, trainer)
    if stop is not None and [trainer.epoch, trainer.batch] == stop:
        raise ZeroDivisionError
CheckpointSink.save = saving
for out, options, stop in json.loads(sys.argv[1]):
    try:
        train(RunConfig.from_dict(options), out, console=False)
    except ZeroDivisionError:
        pass
os._exit(0)  # the runs are what is tried, not how torch's threads end with the interpreter
"""


def train_by_two(
    runs: Sequence[tuple[Path, dict[str, Any], list[int] | None]], *modules: str, timeout: float = 300
) -> None:
    """Train one run after another in two processes, started once, as torchrun starts them: importing takes longest.

    A run is its folder, its options, and, unless it goes to its end, the (epoch, batch) whose checkpoint is its last.
    `modules` are imported first, from wherever this process would find them.
    """
    place = {"GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "test"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    listed = json.dumps([(str(out), options, stop) for out, options, stop in runs])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, listed, *modules],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **{k: str(v) for k, v in {**place, **where, "RANK": r, "LOCAL_RANK": r}.items()},
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    try:
        for process in running:
            _, words = process.communicate(timeout=timeout)
            assert process.returncode == 0, words
    finally:
        for process in running:
            process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_features(path: Path) -> Path:
    """100 samples to train on and 40 to test on, of 6 features and 4 classes, as an .npz."""
    rng = np.random.default_rng(0)
    y = np.arange(140) % 4
    x = (rng.normal(size=(140, 6)) + 1.5 * np.eye(6)[y]).astype(np.float32)
    np.savez(path, x=x[:100], y=y[:100], x_test=x[100:], y_test=y[100:])
    return path


def on_features(data: Path, **changes: object) -> dict[str, object]:
    """Options of a small run on them."""
    small = {"model": "mlp", "model_options": {"hidden": [8]}, "epochs": 4, "batch_size": 16, "accelerator": "cpu"}
    noise = {"data": str(data), "noise": "symmetric", "rate": 0.3, "val_share": 0.2, "precision": "64-true"}
    return {**small, **noise, "optimizer": "ncsam", "rho": 0.2, "lr": 0.05, "weight_decay": 1e-3, **changes}


def checkpoint(folder: Path) -> dict[str, Any]:
    """A run's last checkpoint."""
    found: dict[str, Any] = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    return found
