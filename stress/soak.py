"""Long runs of very short epochs: memory, open files and sizes do not grow beyond what is written; kills at full speed.

`python -m stress.soak --epochs 10000 --report` prints the figures of one long run.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ncsam.data import DataSet, from_arrays
from ncsam.engine import train
from ncsam.engine.sinks import CheckpointSink
from ncsam.engine.trainer import Trainer
from ncsam.report.content import write_report
from stress.kills import IMPORTED
from stress.small import difference, small_config
from stress.tally import Tally

_EPOCHS = 300  # of a run that is killed again and again
_LONG = 2000  # epochs of the run whose memory is watched
_OWN, _RECORD = 4.0, 3 / 1024  # MiB that memory may grow by: the allocator's own, and the record of each epoch
_PATIENCE = 600.0  # seconds that a process may take to show a first sign of life


def run(tally: Tally, trials: int | None = None) -> None:
    """Watch the memory of a long run; then, until time is up, kill runs at full speed and compare their bits."""
    short = trials is not None
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        seen = _watched_elsewhere(top / "long", _LONG // 10 if short else _LONG)
        grown, files = growth(seen)
        fine = grown < allowed(seen) and files == 0
        tally.held(fine, f"soak: memory grew by {grown:.1f} MiB, open files by {files}")
        tally.figures["MiB grown"] = round(grown, 1)
        epochs = _EPOCHS // 10 if short else _EPOCHS
        whole = start(top / "whole", epochs)
        whole.join()
        chance = random.Random(tally.seed)
        kills, number = 0, 0
        while tally.time_left if trials is None else number < trials:
            out = top / str(number)
            more, found = killed(out, epochs, chance)
            kills += more
            tally.held(found is None and whole.exitcode == 0, f"soak, run {number}, after {more} kills: {found}")
            if found is None:
                found = difference(top / "whole", out)
                tally.held(found is None, f"soak, run {number}, after {more} kills: {found} differs")
            number += 1
        tally.figures["kills"] = kills


def killed(out: Path, epochs: int, chance: random.Random) -> tuple[int, str | None]:
    """Start a run again and again until it is finished, killing each process some time after it began to work."""
    kills = 0
    while True:
        before = _state_of(out)
        process = start(out, epochs)
        if _wait(process, lambda before=before: _state_of(out) != before):  # type: ignore[misc]
            assert process.pid is not None
            until = cpu_seconds(process.pid) + chance.expovariate(1.0)  # CPU time: a busy machine changes little
            while process.exitcode is None and cpu_seconds(process.pid) < until:
                process.join(0.02)
            if process.exitcode is None:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
        process.join()
        if process.exitcode == 0:
            return kills, None
        if process.exitcode != -signal.SIGKILL:
            return kills, f"a process ended with {process.exitcode}"


def _wait(process: BaseProcess, alive: Callable[[], bool]) -> bool:
    """Wait for a first sign of life: a process that is killed before it did anything would never get anywhere."""
    until = time.monotonic() + _PATIENCE
    while process.exitcode is None and time.monotonic() < until:
        if alive():
            return True
        time.sleep(0.02)
    return process.exitcode is None


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has taken so far; without end if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _state_of(out: Path) -> int:
    """When the last checkpoint was written."""
    try:
        return (out / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    except OSError:
        return 0


def start(out: Path, epochs: int) -> BaseProcess:
    return _process(_train_here, out, epochs)


def _process(target: Callable[..., None], *args: Any) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=target, args=args)
    process.start()
    return process


def _train_here(out: Path, epochs: int, checkpoint_every: int | None = 1) -> None:
    torch.set_num_threads(1)
    changes = {"epochs": epochs, "batch_size": 8, "checkpoint_every": checkpoint_every, "optimizer": "ncsam"}
    train(small_config(**changes), out, dataset=tiny_data(), console=False)


def tiny_data() -> DataSet:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 3)).astype(np.float32)
    return from_arrays(x, np.arange(16) % 2, name="tiny")


# --- memory

Seen = list[tuple[int, float, int]]


def watched(out: Path, epochs: int) -> Seen:
    """Train for so many epochs; (epoch, MiB resident, open files) at every tenth of them."""
    seen: Seen = []
    epoch_end = CheckpointSink.on_epoch_end

    def watching(self: CheckpointSink, trainer: Trainer, record: Mapping[str, Any]) -> None:
        if trainer.epoch % max(1, epochs // 10) == 0:
            seen.append((trainer.epoch, resident(), len(os.listdir("/proc/self/fd"))))
        epoch_end(self, trainer, record)

    CheckpointSink.on_epoch_end = watching  # type: ignore[method-assign]
    _train_here(out, epochs, None)
    return seen


def resident() -> float:
    """MiB of memory in use."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def growth(seen: Seen) -> tuple[float, int]:
    """MiB and open files more in the end than after half of the run, when all has been used that is used."""
    half = seen[len(seen) // 2 - 1]
    return seen[-1][1] - half[1], seen[-1][2] - half[2]


def allowed(seen: Seen) -> float:
    """MiB that memory may grow by: every epoch leaves a record, which checkpoints carry."""
    return _OWN + _RECORD * seen[-1][0] / 2


def _watched_elsewhere(out: Path, epochs: int) -> Seen:
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        return pool.apply(watched, (out, epochs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=_LONG)
    parser.add_argument("--report", action="store_true", help="also write a report of the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        began = time.monotonic()
        seen = watched(out, options.epochs)
        print(f"{options.epochs} epochs in {time.monotonic() - began:.0f} s")
        for epoch, memory, files in seen:
            print(f"epoch {epoch:>6}: {memory:7.1f} MiB resident, {files} open files")
        for path in ("metrics.jsonl", "metrics.csv", "checkpoints/last.ckpt", "label_issues.csv"):
            print(f"{path}: {(out / path).stat().st_size / 1024:.0f} KiB")
        if options.report:
            began = time.monotonic()
            page = write_report([out], out / "report.html", images=0)[0]
            print(f"report.html: {page.stat().st_size / 1024:.0f} KiB in {time.monotonic() - began:.1f} s")
        grown, more = growth(seen)
        print(f"memory grew by {grown:.1f} MiB in the second half, open files by {more}")
    sys.exit(1 if more > 0 or grown >= allowed(seen) else 0)


if __name__ == "__main__":
    main()
