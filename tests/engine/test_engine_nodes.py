"""Two nodes on one run, each its own command as a cluster starts them: the result of one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ncsam.cli.main import main
from ncsam.engine import RunConfig, train
from two_processes import by_two, checkpoint, on_features, write_features

pytestmark = pytest.mark.slow


def node(rank: int, *words: str) -> None:
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        del os.environ[name]  # torchrun's; a cluster sets the three that are left
    os.environ["NODE_RANK"] = str(rank)
    main(list(words), standalone_mode=False)


def test_two_nodes_equal_one_process(tmp_path: Path) -> None:
    """`ncsam train --num-nodes 2` with NODE_RANK 0 and 1 and one MASTER_ADDR, as docs/scale.md has it."""
    data = write_features(tmp_path / "small.npz")
    options = on_features(data, optimizer="ncsam", kappa=0.4)
    train(RunConfig.from_dict(options), tmp_path / "alone", console=False)
    RunConfig.from_dict({**options, "num_nodes": 2, "strategy": "ddp"}).save(tmp_path / "config.yaml")
    by_two(node, "train", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "nodes"))
    one, other = (checkpoint(tmp_path / name)["learners"][0]["network"] for name in ("alone", "nodes"))
    assert all(torch.allclose(value, other[name], rtol=0, atol=1e-7) for name, value in one.items())
    assert len(checkpoint(tmp_path / "nodes")["ranks"]) == 2
