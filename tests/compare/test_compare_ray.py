"""Runs on a Ray cluster of this machine end with the bits of local ones, though a worker is killed on the way."""

from __future__ import annotations

import re
import signal
import socket
import time
from pathlib import Path

import pytest
import torch

from ncsam.comparison import compare
from ncsam.engine import RunConfig
from ncsam.jobs import ray_cluster as on_ray
from ncsam.jobs.ray_cluster import check_cluster, cluster, parse_resources, remote
from ray_workers import needs_proc, one_killed


def test_resources():
    assert parse_resources("gpu=1, cpu=4,tpu=0.5") == {"gpu": 1.0, "cpu": 4.0, "tpu": 0.5}
    assert parse_resources("") == {}
    for wrong in ("gpu", "gpu=many", "=1", "cpu=-1", "cpu=inf", "cpu=nan"):
        with pytest.raises(ValueError, match="resources="):
            parse_resources(wrong)


def test_resources_are_for_ray_alone(tmp_path):
    with pytest.raises(ValueError, match="resources='gpu=1'"):
        compare(RunConfig(), tmp_path, resources="gpu=1", say=lambda line: None)
    with pytest.raises(ValueError, match="on='slurm'"):
        compare(RunConfig(), tmp_path, on="slurm", say=lambda line: None)  # type: ignore[arg-type]


class Ray:
    """Notes what it is asked for."""

    def __init__(self, initialized=False):
        self.initialized, self.asked = initialized, []

    def is_initialized(self):
        return self.initialized

    def init(self, **options):
        self.asked.append(options)

    def shutdown(self):
        self.asked.append("shutdown")

    def cluster_resources(self):
        return {"CPU": 12.0}

    def remote(self, **options):
        self.asked.append(options)
        return lambda function: function


def test_a_cluster_that_is_there_is_joined_and_else_one_is_started(monkeypatch):
    monkeypatch.setattr(on_ray, "available_cores", lambda: 2)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    there, here, joined = Ray(), Ray(), Ray(initialized=True)
    with cluster(there, 2, {}):
        pass
    assert there.asked == [{"address": "head:6379", "log_to_driver": False}, "shutdown"]
    monkeypatch.delenv("RAY_ADDRESS")
    with cluster(here, 3, {"cpu": 4.0}):
        folder = Path(here.asked[0]["_temp_dir"])
        (folder / "logs").mkdir()
    assert (here.asked[0]["address"], here.asked[0]["num_cpus"], here.asked[1]) == ("local", 12, "shutdown")
    assert not folder.exists()
    fits = r"resources='cpu=4,gpu=1'"
    with pytest.raises(ValueError, match=fits), cluster(here, 3, {"cpu": 4.0, "gpu": 1.0}):
        pass
    with cluster(joined, 2, {}):
        pass
    assert joined.asked == []


def test_signals_are_those_of_before(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    grabbing, before = Ray(), signal.getsignal(signal.SIGTERM)
    grabbing.init = lambda **_: signal.signal(signal.SIGTERM, lambda *_: None)  # as Ray's own does
    with cluster(grabbing, 1, {}):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_address_that_nobody_answers_is_named(monkeypatch):
    def refused(**_):
        raise ConnectionError("ray client\nconnection timeout")

    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    silent = Ray()
    silent.init = refused
    said = r"RAY_ADDRESS='nonsense'"
    with pytest.raises(ValueError, match=said), cluster(silent, 2, {}):
        pass
    assert silent.asked == []


@pytest.fixture
def ray_module(monkeypatch):
    monkeypatch.setattr(on_ray, "need", lambda *_: Ray())


@pytest.fixture
def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://localhost:{}", "[::1]:{}"])
@pytest.mark.usefixtures("ray_module")
def test_an_address_where_nobody_listens_is_said_at_once(monkeypatch, tmp_path, free_port, address):
    there = address.format(free_port)
    monkeypatch.setenv("RAY_ADDRESS", there)
    began = time.monotonic()
    said = rf"^invalid RAY_ADDRESS='{re.escape(there)}'"
    with pytest.raises(ValueError, match=said):
        compare(RunConfig(), tmp_path / "out", on="ray", seeds=1, say=lambda line: None)
    assert time.monotonic() - began < 10
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("ray_module")
def test_an_address_that_answers_or_is_rays_own_word_is_left_to_ray(monkeypatch, free_port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for there in ("", "auto", "local", "other://127.0.0.1:1", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            monkeypatch.setenv("RAY_ADDRESS", there)
            check_cluster()
    monkeypatch.setattr(on_ray, "need", lambda *_: Ray(initialized=True))
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port}")  # which a cluster that is joined does not need
    check_cluster()


def test_a_task_declares_what_it_needs_and_is_given_again():
    ray = Ray()
    assert remote(ray, len, {"gpu": 1.0, "cpu": 4.0, "big_disk": 2.0}) is len
    remote(ray, len, {})
    assert ray.asked == [
        {"num_cpus": 4.0, "num_gpus": 1.0, "resources": {"big_disk": 2.0}, "max_retries": 3},
        {"num_cpus": 1.0, "num_gpus": 0, "resources": None, "max_retries": 3},
    ]


@pytest.mark.stress
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
