"""Two gloo processes: DDP and FSDP2 equal one process on the joined batch, and no rank waits for another in vain."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("optim_processes.py")


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Pitfalls 8, 19, 21 and 28: all of `CHECKS` in `optim_processes.py`, on both ranks; a hang is a failure."""
    ranks = [subprocess.Popen([sys.executable, str(WORKER), str(r), str(tmp_path)]) for r in range(2)]
    try:
        codes = [rank.wait(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0]
    for r in range(2):
        results = json.loads((tmp_path / f"{r}.json").read_text())
        assert len(results) > 20
        assert not (failed := {name: trace for name, trace in results.items() if trace}), "\n".join(failed.values())
