"""Runs by two processes, and small data for them."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing

from ncsam.engine import RunConfig, train
from ncsam.engine.sinks import CheckpointSink
from ncsam.engine.trainer import Trainer
from processes import context


def by_two(
    work: Callable[..., None], *args: Any, modules: Sequence[str] = (), timeout: float = 300, **environment: object
) -> None:
    """Call `work(rank, *args)` in two processes with torchrun's variables; raise what either raises.

    `work` is a function of a module. It and `modules` are imported once, in a process that forks into the two.
    """
    shared = {"GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "test"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo", **environment}
    method = context().get_start_method()
    torch.multiprocessing.start_processes(_fork, (shared, work, args, modules, timeout), start_method=method)


def _fork(
    _: int,
    shared: dict[str, object],
    work: Callable[..., None],
    args: Sequence[Any],
    modules: Sequence[str],
    timeout: float,
) -> None:
    os.environ.update({name: str(value) for name, value in shared.items()})
    torch.set_num_threads(1)
    for module in modules:
        importlib.import_module(module)
    running = torch.multiprocessing.start_processes(_as_rank, (work, args), nprocs=2, join=False, start_method="fork")
    until = time.monotonic() + timeout
    try:
        while not running.join(timeout=1):
            assert time.monotonic() < until, f"the two processes did not end within {timeout} s"
    finally:
        for process in running.processes:
            process.kill()


def _as_rank(rank: int, work: Callable[..., None], args: Sequence[Any]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    work(rank, *args)


def train_by_two(runs: Sequence[tuple[Path, dict[str, Any], list[int] | None]], *modules: str) -> None:
    """Train one run after another in two processes.

    A run is its folder, its options, and, unless it goes to its end, the (epoch, batch) whose checkpoint is its last.
    `modules` are imported first.
    """
    by_two(_train_all, runs, modules)


def _train_all(_: int, runs: Sequence[tuple[Path, dict[str, Any], list[int] | None]], modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    save, stop = CheckpointSink.save, None

    def saving(self: CheckpointSink, trainer: Trainer) -> None:
        save(self, trainer)
        if stop is not None and [trainer.epoch, trainer.batch] == stop:
            raise ZeroDivisionError

    CheckpointSink.save = saving  # type: ignore[method-assign]
    for out, options, stop in runs:  # noqa: B007
        with contextlib.suppress(ZeroDivisionError):
            train(RunConfig.from_dict(options), out, console=False)


def free_port() -> int:
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
