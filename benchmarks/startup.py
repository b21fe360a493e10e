"""How long until the first training step: `ncsam train` against `import torch`, and against a bare loop in torch.

Each is a fresh process; the figures are processor seconds (user and system), which a busy machine disturbs least,
and their ratios to `import torch`. Each process ends at once where it is measured to: taking Python down is not
counted for any. `--quick` runs each once.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile

import numpy as np

_TORCH = "import os, torch; os._exit(0)"
_BARE = """
import os, torch
network = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
torch.nn.functional.cross_entropy(network(torch.zeros(8, 64)), torch.zeros(8, dtype=torch.long)).backward()
optimizer.step()
os._exit(0)
"""
_NCSAM = """
import os, sys
from ncsam.engine import sinks
sinks.FolderSink.on_step_end = lambda *_: os._exit(0)  # the first step is done
from ncsam.cli.main import main
main(["train", sys.argv[2], "--model", "network", "--out", sys.argv[1], "--quiet"])
"""


def seconds(code: str) -> float:
    """Processor time of a fresh Python that runs `code`."""
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        np.savez(f"{folder}/rows.npz", x=rng.normal(size=(200, 64)).astype("f4"), y=np.arange(200) % 10)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, f"{folder}/run", f"{folder}/rows.npz"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="once each")
    repeats = 1 if parser.parse_args().quick else 5
    rows = {"import torch": _TORCH, "one step of SGD in bare torch": _BARE, "ncsam train, first step": _NCSAM}
    seconds(_TORCH)  # files into the cache
    found = {name: [] for name in rows}
    for _ in range(repeats):  # in turns, so that a slow minute hits all of them
        for name, code in rows.items():
            found[name].append(seconds(code))
    least = statistics.median(found["import torch"])
    for name, values in found.items():
        print(f"{name:32} {statistics.median(values):5.2f} s  {statistics.median(values) / least:4.2f} x import torch")


if __name__ == "__main__":
    main()
