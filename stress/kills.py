"""SIGKILL at random moments of a run, over all methods and optimizers: the same command ends with the same bits."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import tempfile
from collections.abc import Iterator
from itertools import cycle, product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ncsam import methods
from ncsam._files import atomic_path
from ncsam.engine.config import BASES
from ncsam.optim import names as optimizer_names
from stress.tally import Tally
from stress.works import WORKS

_KILLS = 2  # of one run
_OTHERS, _OTHER_EVERY = ("race", "embed", "folds"), 8  # now and then something else than a run is killed
#: Imported once, before processes fork: else most of a short run, and most of the kills, would be imports.
IMPORTED = ["stress.kills", "ncsam.engine.run", "ncsam.report.content", "torch._dynamo", "sklearn.mixture", "yaml"]
#: Which pairs of method and optimizer were killed before, so that the next campaign takes others first.
PAIRS = Path("runs/stress-pairs.json")


def pairs() -> list[tuple[str, str]]:
    """Every method with every optimizer."""
    return list(product(methods.names(), [*BASES, *optimizer_names()]))


def run(tally: Tally, trials: int | None = None, memory: Path | None = PAIRS) -> None:
    """Kill runs of pairs drawn at random, those that were never killed first, until time is up."""
    chance = random.Random(tally.seed)
    known = _remembered(memory)
    killed = 0
    for number, (work, options) in enumerate(targets(chance, known)):
        if not tally.time_left if trials is None else number >= trials:
            break
        moments = [chance.uniform(0.02, 1.0) for _ in range(_KILLS)]
        with tempfile.TemporaryDirectory() as folder:
            kills, found = trial(Path(folder), work, options, moments)
        killed += kills
        fine = tally.held(found is None, f"kills, {work} {options}, at {moments}: {found} differs")
        if fine and kills and work == "train":
            known.add((options["method"], options["optimizer"]))
            _remember(memory, known)
    tally.figures["kills"] = killed
    tally.figures["pairs killed so far"] = f"{len(known)} of {len(pairs())}"


def targets(chance: random.Random, known: set[tuple[str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs of all pairs, those that are not known first; and now and then something else than a run."""
    everything = pairs()
    chance.shuffle(everything)
    everything.sort(key=lambda pair: pair in known)  # stable: new ones first, each part at random
    for number, (method, optimizer) in enumerate(cycle(everything), 1):
        every = chance.choice([None, 1, 3])
        seed = chance.randrange(1000)
        yield "train", {"method": method, "optimizer": optimizer, "checkpoint_every": every, "seed": seed}
        if number % _OTHER_EVERY == 0:
            yield _OTHERS[number // _OTHER_EVERY % len(_OTHERS)], {}


def _remembered(memory: Path | None) -> set[tuple[str, str]]:
    if memory is None or not memory.is_file():
        return set()
    return {(method, optimizer) for method, optimizer in json.loads(memory.read_text())} & set(pairs())


def _remember(memory: Path | None, known: set[tuple[str, str]]) -> None:
    if memory is not None:
        with atomic_path(memory) as temporary:
            temporary.write_text(json.dumps(sorted(known)))


def trial(folder: Path, work: str, options: dict[str, Any], moments: list[float]) -> tuple[int, str | None]:
    """How often it was killed, at these shares of its CPU time, and what differs in the end."""
    whole = start(folder / "whole", work, options, folder / "cpu", None)
    whole.join()
    if whole.exitcode != 0:
        return 0, f"the run itself, which ended with {whole.exitcode}, and everything else"
    seconds = float((folder / "cpu").read_text())
    kills = 0
    for moment in moments:
        process = start(folder / "killed", work, options, None, max(1e-3, moment * seconds))
        process.join()
        if process.exitcode == 0:
            break
        if process.exitcode != -signal.SIGPROF:
            return kills, f"the end of a continued run ({process.exitcode})"
        kills += 1
    final = start(folder / "killed", work, options, None, None)
    final.join()
    if final.exitcode != 0:
        return kills, f"the end of the last run ({final.exitcode})"
    left = [path.name for path in (folder / "killed").rglob(".*") if path.name != ".lock"]
    return kills, f"what is left behind ({left})" if left else WORKS[work].differ(folder / "whole", folder / "killed")


def start(out: Path, work: str, options: dict[str, Any], cpu: Path | None, kill_after: float | None) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=do_here, args=(out, work, options, cpu, kill_after))
    process.start()
    return process


def do_here(out: Path, work: str, options: dict[str, Any], cpu: Path | None, kill_after: float | None) -> None:
    """Work in this process; note its CPU time, or die after so much of it as if killed: nothing is handled."""
    torch.set_num_threads(1)
    began = resource.getrusage(resource.RUSAGE_SELF)
    if kill_after is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, kill_after)  # CPU time, so that a busy machine changes little
    WORKS[work].do(out, **options)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if cpu is not None:
        ended = resource.getrusage(resource.RUSAGE_SELF)
        cpu.write_text(str(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime))
    os._exit(0)  # nothing of torch's own ending takes part
