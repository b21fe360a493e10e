"""A long run of very short epochs: memory, open files and sizes do not grow beyond what is written.

`python -m torture.soak --epochs 2000` prints figures, and fails if more files are open in the end.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from ncsam.data import DataSet, from_arrays
from ncsam.engine import train
from ncsam.engine.loop import Trainer
from ncsam.report.content import write_report
from torture.small import small_config


def tiny_data() -> DataSet:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 3)).astype(np.float32)
    return from_arrays(x, np.arange(16) % 2, name="tiny")


def resident() -> float:
    """MiB of memory in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--report", action="store_true", help="also write a report of the run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seen: list[tuple[int, float, int]] = []
    save = Trainer._save_is_due

    def watching(self: Trainer) -> bool:
        if self.epoch % max(1, options.epochs // 10) == 0:
            seen.append((self.epoch, resident(), len(os.listdir("/proc/self/fd"))))
        return save(self)

    Trainer._save_is_due = watching  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        began = time.monotonic()
        changes = {"epochs": options.epochs, "batch_size": 8, "checkpoint_every": None, "optimizer": "ncsam"}
        train(small_config(**changes), out, dataset=tiny_data(), console=False)
        print(f"{options.epochs} epochs in {time.monotonic() - began:.0f} s")
        for epoch, memory, files in seen:
            print(f"epoch {epoch:>6}: {memory:7.1f} MiB resident, {files} open files")
        for path in ("metrics.jsonl", "metrics.csv", "checkpoints/last.ckpt", "suspects.csv"):
            print(f"{path}: {(out / path).stat().st_size / 1024:.0f} KiB")
        if options.report:
            began = time.monotonic()
            page = write_report([out], out / "report.html", images=0)[0]
            print(f"report.html: {page.stat().st_size / 1024:.0f} KiB in {time.monotonic() - began:.1f} s")
        grown = seen[-1][1] - seen[1][1]
        files = seen[-1][2] - seen[1][2]
        print(f"memory grew by {grown:.1f} MiB from epoch {seen[1][0]} to {seen[-1][0]}, open files by {files}")
    sys.exit(1 if seen[-1][2] > seen[1][2] else 0)


if __name__ == "__main__":
    main()
