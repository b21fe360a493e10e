"""Two gloo processes: DDP and FSDP2 equal one process on the joined batch, and no rank waits for another in vain."""

import json

import pytest
from optim_processes import main

from two_processes import by_two


@pytest.mark.slow
def test_two_processes(tmp_path):
    """Pitfalls 8, 19, 21 and 28: all of `CHECKS` in `optim_processes.py`, on both ranks; a hang is a failure."""
    by_two(main, tmp_path)
    for r in range(2):
        results = json.loads((tmp_path / f"{r}.json").read_text())
        assert len(results) > 20
        assert not (failed := {name: trace for name, trace in results.items() if trace}), "\n".join(failed.values())
