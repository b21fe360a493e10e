"""Two nodes on one run, each its own command as a cluster starts them: the result of one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ncsam.engine import RunConfig, train
from two_processes import checkpoint, on_features, write_features

pytestmark = pytest.mark.slow


def test_two_nodes_equal_one_process(tmp_path: Path) -> None:
    """`ncsam train --num-nodes 2` with NODE_RANK 0 and 1 and one MASTER_ADDR, as docs/scale.md has it."""
    data = write_features(tmp_path / "small.npz")
    options = on_features(data, optimizer="ncsam", kappa=0.4)
    train(RunConfig.from_dict(options), tmp_path / "alone", console=False)
    RunConfig.from_dict({**options, "num_nodes": 2, "strategy": "ddp"}).save(tmp_path / "config.yaml")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "ncsam", "train", "--config", str(tmp_path / "config.yaml")]
    nodes = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "nodes")],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "NODE_RANK": str(rank),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for node in nodes:
            words, _ = node.communicate(timeout=300)
            assert node.returncode == 0, words
    finally:
        for node in nodes:
            node.kill()
    one, other = (checkpoint(tmp_path / name)["learners"][0]["network"] for name in ("alone", "nodes"))
    assert all(torch.allclose(value, other[name], rtol=0, atol=1e-7) for name, value in one.items())
    assert len(checkpoint(tmp_path / "nodes")["ranks"]) == 2
