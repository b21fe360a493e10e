"""Long runs of very short epochs: memory and open files do not grow, and repeated kills do not change the result.

`python -m stress.soak --epochs 10000 --report` prints the measurements of one long run.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncsam.engine import train
from ncsam.engine.sinks import CheckpointSink
from ncsam.engine.trainer import Trainer
from ncsam.report.content import write_report
from stress.kills import Process, process
from stress.small import difference, small_config, small_data
from stress.tally import Tally

_EPOCHS = 300  # of a run that is killed repeatedly
_LONG = 2000  # epochs of the run whose memory is measured
_OWN, _RECORD = 4.0, 3 / 1024  # MiB that memory may grow by: the allocator's own, and the record of each epoch
_PATIENCE = 600.0  # seconds that a process may take to write its first checkpoint
#: (epoch, MiB resident, open files) at every tenth of a run.
Measured = list[tuple[int, float, int]]


def run(tally: Tally, trials: int | None = None) -> None:
    """Measure the memory of a long run; then, until time is up, kill runs repeatedly and compare their bits."""
    short = 1 if trials is None else 10
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        with multiprocessing.get_context("forkserver").Pool(1) as pool:
            found = pool.apply(measured, (top / "long", _LONG // short))
        memory, files = growth(found)
        tally.held(
            memory < allowed(found) and files == 0, f"soak: memory grew by {memory:.1f} MiB, open files by {files}"
        )
        tally.numbers["MiB grown"] = round(memory, 1)
        epochs = _EPOCHS // short
        whole = start(top / "whole", epochs)
        whole.join()
        chance = random.Random(tally.seed)
        kills = number = 0
        while tally.time_left if trials is None else number < trials:
            more, problem = killed(top / str(number), epochs, chance)
            kills += more
            if problem is None and whole.exitcode == 0:
                problem = difference(top / "whole", top / str(number))
            tally.held(problem is None and whole.exitcode == 0, f"soak, run {number}, after {more} kills: {problem}")
            number += 1
        tally.numbers["kills"] = kills


def start(out: Path, epochs: int) -> Process:
    return process(_train, out, epochs)


def _train(out: Path, epochs: int, checkpoint_every: int | None = 1) -> None:
    config = small_config(epochs=epochs, batch_size=8, checkpoint_every=checkpoint_every, optimizer="ncsam")
    train(config, out, dataset=small_data(16), console=False)


def killed(out: Path, epochs: int, chance: random.Random) -> tuple[int, str | None]:
    """Start a run until it is finished, killing each process some time after it has written a checkpoint."""
    kills = 0
    while True:
        child = start(out, epochs)
        if _has_progress(child, out):
            assert child.pid is not None
            until = cpu_seconds(child.pid) + chance.expovariate(1.0)  # CPU time: a busy machine changes little
            while child.exitcode is None and cpu_seconds(child.pid) < until:
                child.join(0.02)
            if child.exitcode is None:
                os.kill(child.pid, signal.SIGKILL)
                kills += 1
        child.join()
        if child.exitcode == 0:
            return kills, None
        if child.exitcode != -signal.SIGKILL:
            return kills, f"a process ended with {child.exitcode}"


def _has_progress(child: Process, out: Path) -> bool:
    """Wait for a new checkpoint: a run whose processes are all killed before one would never finish."""
    before, until = _saved(out), time.monotonic() + _PATIENCE
    while child.exitcode is None and time.monotonic() < until:
        if _saved(out) != before:
            return True
        time.sleep(0.02)
    return child.exitcode is None


def _saved(out: Path) -> int:
    path = out / "checkpoints" / "last.ckpt"
    return path.stat().st_mtime_ns if path.exists() else 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; infinite if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- memory


def measured(out: Path, epochs: int) -> Measured:
    """Train for so many epochs and measure at every tenth of them."""
    found: Measured = []
    epoch_end = CheckpointSink.on_epoch_end

    def watching(self: CheckpointSink, trainer: Trainer, record: Mapping[str, Any]) -> None:
        if trainer.epoch % max(1, epochs // 10) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            found.append((trainer.epoch, pages * resource.getpagesize() / 2**20, len(os.listdir("/proc/self/fd"))))
        epoch_end(self, trainer, record)

    CheckpointSink.on_epoch_end = watching  # type: ignore[method-assign]
    _train(out, epochs, None)
    return found


def growth(found: Measured) -> tuple[float, int]:
    """MiB and open files more at the end than after half of the run, when everything has been used once."""
    half = found[len(found) // 2 - 1]
    return found[-1][1] - half[1], found[-1][2] - half[2]


def allowed(found: Measured) -> float:
    """MiB that memory may grow by: every epoch adds a record, which checkpoints contain."""
    return _OWN + _RECORD * found[-1][0] / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=_LONG)
    parser.add_argument("--report", action="store_true", help="also write a report of the run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        out, began = Path(name) / "run", time.monotonic()
        found = measured(out, options.epochs)
        print(f"{options.epochs} epochs in {time.monotonic() - began:.0f} s")
        for epoch, memory, files in found:
            print(f"epoch {epoch:>6}: {memory:7.1f} MiB resident, {files} open files")
        began = time.monotonic()
        pages = write_report([out], out / "report.html", images=0)[:1] if options.report else []
        for path in (*(out / "metrics.jsonl", out / "checkpoints/last.ckpt"), *pages):
            print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
        print(f"report in {time.monotonic() - began:.1f} s" if options.report else "")
    more, files = growth(found)
    sys.exit(f"memory grew by {more:.1f} MiB, open files by {files}" if files or more >= allowed(found) else 0)


if __name__ == "__main__":
    main()
