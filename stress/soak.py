"""Long runs of very short epochs: memory and open files do not grow, and repeated kills do not change the result."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncsam.engine.sinks import CheckpointSink
from ncsam.engine.trainer import Trainer
from stress.harness import Tally
from stress.kills import trial
from stress.tasks import many_epochs

_EPOCHS, _KILLS = 300, 8  # of a run that is killed repeatedly
_LONG = 2000  # epochs of the run whose memory is measured
_OWN, _RECORD = 4.0, 3 / 1024  # MiB that memory may grow by: the allocator's own, and the record of each epoch
#: (epoch, MiB resident, open files) at every tenth of a run.
Measured = list[tuple[int, float, int]]


def run(tally: Tally, trials: int | None = None) -> None:
    """Measure the memory of a long run; then, until time is up, kill runs repeatedly and compare their bits."""
    short = 1 if trials is None else 20
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("forkserver").Pool(1) as pool:
        found = pool.apply(measured, (Path(folder) / "long", _LONG // short))
    tally.held(grown(found), "soak")
    chance, kills, number = random.Random(tally.seed), 0, 0
    while tally.goes_on(number, trials):
        moments = [chance.expovariate(_KILLS) for _ in range(_KILLS)]
        more, problem = trial("many epochs", {"epochs": _EPOCHS // short}, moments)
        tally.held(problem, f"soak, killed at {moments}")
        kills, number = kills + more, number + 1
    tally.numbers |= {"MiB at the end": round(found[-1][1]), "kills": kills}


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
    many_epochs(out, epochs, None)
    return found


def grown(found: Measured) -> str | None:
    """Whether memory or open files grew after half of the run, when everything has been used once.

    Every epoch adds a record, which checkpoints contain.
    """
    half, last = found[len(found) // 2 - 1], found[-1]
    memory, files = last[1] - half[1], last[2] - half[2]
    fine = memory < _OWN + _RECORD * last[0] / 2 and files <= 0
    return None if fine else f"memory grew by {memory:.1f} MiB, open files by {files}"
