"""Methods that keep state, on two processes; where samples of a batch do not meet, the result is one process's."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_methods_runs import OPTIONS

from ncsam.engine import RunConfig, train

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys, torch
torch.set_num_threads(1)
from ncsam.engine import RunConfig, train
for out, options in json.loads(sys.argv[1]):
    train(RunConfig.from_dict(options), out, console=False)
"""
#: These treat each sample for itself: dividing the batch between two processes changes nothing.
SAMPLE_BY_SAMPLE = ("elr", "forward", "gce_truncated", "plc", "regce")
#: These choose or mix among the samples of a process; two networks and an optimizer of its own are among them.
WITHIN_A_BATCH = ("cores2", "coteaching_plus", "decoupling", "dividemix", "jocor", "mcorrection", "selfie", "trevision")
METHODS = SAMPLE_BY_SAMPLE + WITHIN_A_BATCH


def options(data: Path, method: str) -> dict[str, object]:
    small = {"model": "mlp", "model_options": {"hidden": [8]}, "epochs": 2, "batch_size": 16, "accelerator": "cpu"}
    noise = {"data": str(data), "noise": "symmetric", "rate": 0.3, "val_share": 0.2, "precision": "64-true"}
    return {**small, **noise, "rho": 0.2, "warmup": 0.0, "method": method, "method_options": OPTIONS.get(method, {})}


@pytest.fixture(scope="module")
def data_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    y = np.arange(140) % 4
    x = (rng.normal(size=(140, 6)) + 1.5 * np.eye(6)[y]).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "small.npz"
    np.savez(path, x=x[:100], y=y[:100], x_test=x[100:], y_test=y[100:])
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data_file: Path) -> Path:
    """The methods one after another in the same two processes, started as torchrun starts them."""
    out = tmp_path_factory.mktemp("two")
    runs = [(str(out / name), options(data_file, name)) for name in METHODS]
    place = {"GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "methods"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 20000 + (os.getpid() + 777) % 20000}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, json.dumps(runs)],
            env={**os.environ, **{k: str(v) for k, v in {**place, **where, "RANK": r, "LOCAL_RANK": r}.items()}},
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    for process in running:
        _, words = process.communicate(timeout=300)
        assert process.returncode == 0, words
    return out


def checkpoint(folder: Path) -> dict[str, object]:
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)


@pytest.mark.parametrize("name", METHODS)
def test_two_processes(name: str, folder: Path, data_file: Path, tmp_path: Path) -> None:
    both = checkpoint(folder / name)
    assert len(both["ranks"]) == 2
    assert all(math.isfinite(record["train_loss"]) for record in both["history"])
    if name in WITHIN_A_BATCH:
        return
    train(RunConfig.from_dict(options(data_file, name)), tmp_path, console=False)
    alone = checkpoint(tmp_path)
    for key, value in alone["learners"][0]["network"].items():
        assert torch.allclose(value, both["learners"][0]["network"][key], rtol=0, atol=1e-6), key
    for column, values in alone["samples"].items():
        torch.testing.assert_close(both["samples"][column], values, rtol=1e-4, atol=1e-5)
