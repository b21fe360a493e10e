"""SIGKILL at random moments of a run, over all methods and optimizers: the same command ends with the same bits."""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
import tempfile
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ncsam import methods
from ncsam.engine.config import BASES
from ncsam.optim import names as optimizer_names
from torture.small import difference, small_config, small_data
from torture.tally import Tally

_KILLS = 3  # of one run


def run(tally: Tally, trials: int | None = None) -> None:
    """Kill runs of each method in turn, each with an optimizer drawn at random, until time is up."""
    chance = random.Random(tally.seed)
    order = methods.names()
    chance.shuffle(order)
    kinds = [*BASES, *optimizer_names()]
    killed, number = 0, 0
    while tally.time_left if trials is None else number < trials:
        options = {
            "method": order[number % len(order)],
            "optimizer": kinds[(number + number // len(order)) % len(kinds)],
            "checkpoint_every": chance.choice([None, 1, 3]),
            "seed": chance.randrange(1000),
        }
        moments = [chance.uniform(0.02, 1.0) for _ in range(_KILLS)]
        with tempfile.TemporaryDirectory() as folder:
            kills, found = trial(Path(folder), options, moments)
        killed += kills
        tally.held(found is None, f"kills, {options}, at {moments}: {found} differs")
        number += 1
    tally.figures["kills"] = killed


def trial(folder: Path, options: dict[str, Any], moments: list[float]) -> tuple[int, str | None]:
    """How often it was killed, at these shares of its CPU time, and what differs in the end."""
    whole = start(folder / "whole", options, folder / "cpu", None)
    whole.join()
    if whole.exitcode != 0:
        return 0, f"the run itself, which ended with {whole.exitcode}, and everything else"
    seconds = float((folder / "cpu").read_text())
    kills = 0
    for moment in moments:
        process = start(folder / "killed", options, None, max(1e-3, moment * seconds))
        process.join()
        if process.exitcode == 0:
            break
        if process.exitcode != -signal.SIGPROF:
            return kills, f"the end of a continued run ({process.exitcode})"
        kills += 1
    final = start(folder / "killed", options, None, None)
    final.join()
    if final.exitcode != 0:
        return kills, f"the end of the last run ({final.exitcode})"
    left = [path.name for path in (folder / "killed").rglob(".*") if path.name != ".lock"]
    return kills, f"what is left behind ({left})" if left else difference(folder / "whole", folder / "killed")


def start(out: Path, options: dict[str, Any], cpu: Path | None, kill_after: float | None) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torture.kills", "ncsam.engine.run"])
    process = context.Process(target=train_here, args=(out, options, cpu, kill_after))
    process.start()
    return process


def train_here(out: Path, options: dict[str, Any], cpu: Path | None, kill_after: float | None) -> None:
    """Train in this process; note its CPU time, or die after so much of it as if killed: nothing is handled."""
    import torch

    from ncsam.engine import train

    torch.set_num_threads(1)
    began = resource.getrusage(resource.RUSAGE_SELF)
    if kill_after is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, kill_after)  # CPU time, so that a busy machine changes little
    train(small_config(**options), out, dataset=small_data(), console=False)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if cpu is not None:
        ended = resource.getrusage(resource.RUSAGE_SELF)
        cpu.write_text(str(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime))
