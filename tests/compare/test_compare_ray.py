"""Runs on a Ray cluster of this machine end with the bits of local ones, though a worker is killed on the way."""

from __future__ import annotations

import pytest
import torch

from ncsam.compare import compare
from ncsam.compare.on_ray import parse_resources
from ncsam.engine import RunConfig
from ray_workers import needs_proc, one_killed


def test_resources():
    assert parse_resources("gpu=1, cpu=4,tpu=0.5") == {"gpu": 1.0, "cpu": 4.0, "tpu": 0.5}
    assert parse_resources("") == {}
    for wrong in ("gpu", "gpu=many", "=1", "cpu=-1", "cpu=inf", "cpu=nan"):
        with pytest.raises(ValueError, match="resources="):
            parse_resources(wrong)


def test_resources_are_for_ray_alone(tmp_path):
    with pytest.raises(ValueError, match="resources='gpu=1' is not allowed: only on ray"):
        compare(RunConfig(), tmp_path, resources="gpu=1", say=lambda line: None)
    with pytest.raises(ValueError, match="on='slurm'"):
        compare(RunConfig(), tmp_path, on="slurm", say=lambda line: None)  # type: ignore[arg-type]


@pytest.mark.slow
@needs_proc
def test_a_lost_worker_changes_no_bit(tmp_path):
    pytest.importorskip("ray", reason="needs the extra ray")
    config = RunConfig(data="digits", noise="symmetric", rate=0.4, epochs=25, model="mlp", checkpoint_every=20)
    options = {"optimizers": ("sgd", "sam"), "seeds": 1, "workers": 2, "say": lambda line: None}
    with one_killed("_run", when=lambda: any(tmp_path.glob("ray/*/checkpoints/last.ckpt"))) as killed:
        rows = compare(config, tmp_path / "ray", on="ray", resources="cpu=1", **options)
    assert killed
    assert [row["failed"] for row in rows] == [[], []]
    compare(config, tmp_path / "local", **options)
    for row in rows:
        one, other = (
            torch.load(tmp_path / place / row["runs"][0] / "checkpoints/last.ckpt", weights_only=True)
            for place in ("ray", "local")
        )
        for here, there in zip(one["learners"], other["learners"], strict=True):
            assert all(torch.equal(value, there["network"][name]) for name, value in here["network"].items())
        assert one["history"][-1]["test_accuracy"] == other["history"][-1]["test_accuracy"]
