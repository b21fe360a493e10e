"""Pitfalls 8, 21 and 28 on two gloo processes: DDP and FSDP2 equal one process on the joined batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from optim_processes import CHECKS

WORKER = Path(__file__).with_name("optim_processes.py")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Both ranks run all checks once; a hang is a failure."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [subprocess.Popen([sys.executable, str(WORKER), str(r), str(folder)]) for r in range(2)]
    try:
        codes = [rank.wait(timeout=180) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0]
    return [json.loads((folder / f"{r}.json").read_text()) for r in range(2)]


@pytest.mark.slow
@pytest.mark.xdist_group("distributed")
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes(results, check, rank):
    assert results[rank][check] == "", results[rank][check]
