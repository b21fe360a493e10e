"""Cells of a table on a Ray cluster of this machine: those of local workers, though a worker is killed on the way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncsam.jobs import ray_cluster as on_ray
from ncsam.jobs.executor import ExecutorConfig
from ncsam.reproduce import TABLES, reproduce, scales
from ncsam.reproduce.run import Plan
from ncsam.reproduce.scales import Setting
from ray_workers import needs_proc, one_killed

pytestmark = [pytest.mark.stress, needs_proc]  # Ray itself is in tests/compare


def epochs(run: Path) -> list[dict[str, object]]:
    """All that was measured but for times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if "second" not in k} for line in lines]


def test_a_lost_worker_changes_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    monkeypatch.setitem(scales._REDUCTIONS["smoke"], "epochs", 60)  # long enough for a worker to be killed in it
    folders: list[Path] = []
    make = on_ray._folder

    @contextlib.contextmanager
    def noted() -> Iterator[str]:
        with make() as folder:
            folders.append(Path(folder))
            yield folder

    monkeypatch.setattr(on_ray, "_folder", noted)
    table = TABLES["curves"].part(["sam", "ncsam"], ["cifar10-40"])
    plans = {name: Plan([table], Setting("smoke"), [1], tmp_path / name) for name in ("ray", "local")}

    def is_under_way() -> bool:
        begun, ended = (set(tmp_path.glob(f"ray/*/*/{file}")) for file in ("checkpoints/last.ckpt", "summary.json"))
        return bool(begun) and not ended

    with one_killed("_run", when=is_under_way) as killed:
        there, done = reproduce(plans["ray"], ExecutorConfig(2, "ray", "cpu=1"), say=lambda line: None)
    assert killed
    assert done.errors == {}
    here, _ = reproduce(plans["local"], ExecutorConfig(2), say=lambda line: None)
    assert there == here
    for job in plans["ray"].jobs:
        assert epochs(job.out) == epochs(tmp_path / "local" / job.name)
    assert [folder.exists() for folder in folders] == [False]
