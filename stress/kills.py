"""Kills at random moments of a run, over all methods and optimizers: the same command finishes with the same bits."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle, product
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from typing import Any

import torch

from ncsam import methods
from ncsam._files import atomic_path
from ncsam.engine.config import BASES
from ncsam.errors import UsageError
from ncsam.optim import names as optimizer_names
from stress.tally import Tally
from stress.tasks import TASKS

_KILLS = 2  # of one run
_REJECTED = 3  # exit code of a pair of method and optimizer that is rejected with a clear error
_OTHERS, _OTHER_EVERY = ("auto", "embed", "folds"), 8  # one in so many is not a training run
#: Imported once, before processes fork: else most of a short run, and most of the kills, would be imports.
_IMPORTED = ["stress.kills", "ncsam.engine.run", "ncsam.report.content", "torch._dynamo", "sklearn.mixture", "yaml"]
#: Which pairs of method and optimizer were killed before, so that the next stress test starts with others.
PAIRS = Path("runs/stress-pairs.json")


def pairs() -> list[tuple[str, str]]:
    """Every method with every optimizer."""
    return list(product(methods.names(), [*BASES, *optimizer_names()]))


def run(tally: Tally, trials: int | None = None, memory: Path | None = PAIRS) -> None:
    """Kill runs of random pairs, untested pairs first, until time is up."""
    chance = random.Random(tally.seed)
    known = _remembered(memory)
    killed = 0
    for number, (task, options) in enumerate(targets(chance, known)):
        if not tally.time_left if trials is None else number >= trials:
            break
        moments = [chance.uniform(0.02, 1.0) for _ in range(_KILLS)]
        with tempfile.TemporaryDirectory() as folder:
            kills, problem = trial(Path(folder), task, options, moments)
        killed += kills
        fine = tally.held(problem is None, f"kills, {task} {options}, at {moments}: {problem}")
        if fine and kills and task == "train":
            known.add((options["method"], options["optimizer"]))
            if memory is not None:
                with atomic_path(memory) as temporary:
                    temporary.write_text(json.dumps(sorted(known)))
    tally.numbers["kills"] = killed
    tally.numbers["pairs killed so far"] = f"{len(known)} of {len(pairs())}"


def targets(chance: random.Random, known: set[tuple[str, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs of all pairs, unknown ones first; and sometimes another task."""
    everything = pairs()
    chance.shuffle(everything)
    everything.sort(key=lambda pair: pair in known)  # stable: unknown ones first, both parts in random order
    for number, (method, optimizer) in enumerate(cycle(everything), 1):
        every, seed = chance.choice([None, 1, 3]), chance.randrange(1000)
        yield "train", {"method": method, "optimizer": optimizer, "checkpoint_every": every, "seed": seed}
        if number % _OTHER_EVERY == 0:
            yield _OTHERS[number // _OTHER_EVERY % len(_OTHERS)], {}


def _remembered(memory: Path | None) -> set[tuple[str, str]]:
    if memory is None or not memory.is_file():
        return set()
    return {(method, optimizer) for method, optimizer in json.loads(memory.read_text())} & set(pairs())


def trial(folder: Path, task: str, options: dict[str, Any], moments: list[float]) -> tuple[int, str | None]:
    """Kill a task at these shares of its CPU time, resume it, and compare it with one that was not killed."""
    whole = process(_do, folder / "whole", task, options, folder / "cpu", None)
    whole.join()
    if whole.exitcode == _REJECTED:
        return 0, None
    if whole.exitcode != 0:
        return 0, f"the undisturbed task ended with {whole.exitcode}"
    seconds = float((folder / "cpu").read_text())
    kills = 0
    for kill_after in (*(max(1e-3, moment * seconds) for moment in moments), None):
        child = process(_do, folder / "killed", task, options, None, kill_after)
        child.join()
        if child.exitcode == 0:
            break
        if child.exitcode != -signal.SIGPROF:
            return kills, f"the resumed task ended with {child.exitcode}"
        kills += 1
    left = [path.name for path in (folder / "killed").rglob(".*") if path.name != ".lock"]
    if left:
        return kills, f"{left} is left behind"
    found = TASKS[task].difference(folder / "whole", folder / "killed")
    return kills, found and f"{found} differs"


def process(target: Callable[..., None], *args: Any) -> Process:
    """Start a function in a process that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    child = context.Process(target=_on_one_thread, args=(target, *args))
    child.start()
    return child


def _on_one_thread(target: Callable[..., None], *args: Any) -> None:
    torch.set_num_threads(1)
    try:
        target(*args)
    except UsageError:
        os._exit(_REJECTED)
    os._exit(0)  # without torch's own cleanup


def _do(out: Path, task: str, options: dict[str, Any], cpu: Path | None, kill_after: float | None) -> None:
    """Write the task's CPU time to a file, or be killed after so much of it: no handler runs."""
    began = resource.getrusage(resource.RUSAGE_SELF)
    if kill_after is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, kill_after)  # CPU time, so that a busy machine changes little
    TASKS[task].do(out, **options)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if cpu is not None:
        ended = resource.getrusage(resource.RUSAGE_SELF)
        cpu.write_text(str(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime))
