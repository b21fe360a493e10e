"""Kills at random moments of a run, over all methods and optimizers: the same call finishes with the same bits."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import tempfile
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch

from ncsam import methods
from ncsam.engine.config import BASES
from ncsam.errors import UsageError
from ncsam.optim import names as optimizer_names
from stress.harness import Tally
from stress.tasks import TASKS

_REJECTED = 3  # exit code of a pair of method and optimizer that is rejected with a clear error
_OTHERS, _OTHER_EVERY = ("auto", "embed", "folds"), 8  # one in so many is not a training run
#: Imported once, before processes fork: else most of a short run, and most of the kills, would be imports.
_IMPORTED = ["stress.kills", "ncsam.engine.run", "ncsam.report.content", "torch._dynamo", "sklearn.mixture", "yaml"]


def pairs() -> list[tuple[str, str]]:
    """Every method with every optimizer."""
    return list(product(methods.names(), [*BASES, *optimizer_names()]))


def run(tally: Tally, trials: int | None = None) -> None:
    """Kill runs of all pairs in random order, until time is up."""
    chance = random.Random(tally.seed)
    kills, killed = 0, set()
    for number, (task, options) in enumerate(targets(chance)):
        if not tally.goes_on(number, trials):
            break
        moments = [chance.uniform(0.02, 1.0) for _ in range(2)]
        more, problem = trial(task, options, moments)
        tally.held(problem, f"kills, trial({task!r}, {options}, {moments})")
        kills += more
        killed |= {(options["method"], options["optimizer"])} if more and task == "train" else set()
    tally.numbers |= {"kills": kills, "pairs": f"{len(killed)} of {len(pairs())}"}


def targets(chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Runs of all pairs, and sometimes another task."""
    everything = pairs()
    chance.shuffle(everything)
    for number, (method, optimizer) in enumerate(cycle(everything), 1):
        every, seed = chance.choice([None, 1, 3]), chance.randrange(1000)
        yield "train", {"method": method, "optimizer": optimizer, "checkpoint_every": every, "seed": seed}
        if number % _OTHER_EVERY == 0:
            yield _OTHERS[number // _OTHER_EVERY % len(_OTHERS)], {}


def trial(task: str, options: dict[str, Any], moments: Sequence[float]) -> tuple[int, str | None]:
    """Kill a task again and again after these shares of its CPU time, let it finish, and compare it with a whole one.

    Returns:
        The number of kills, and what is wrong.
    """
    with tempfile.TemporaryDirectory() as name:
        folder, kills = Path(name), 0
        code = in_process(folder / "whole", task, options, folder / "cpu", None)
        if code:
            return 0, None if code == _REJECTED else f"the undisturbed task ended with {code}"
        seconds = float((folder / "cpu").read_text())
        for kill_after in (*(max(1e-3, moment * seconds) for moment in moments), None):
            code = in_process(folder / "killed", task, options, None, kill_after)
            if code == 0:
                break
            if code != -signal.SIGPROF:
                return kills, f"the resumed task ended with {code}"
            kills += 1
        if left := [path.name for path in (folder / "killed").rglob(".*") if path.name != ".lock"]:
            return kills, f"{left} is left behind"
        found = TASKS[task].difference(folder / "whole", folder / "killed")
        return kills, found and f"{found} differs"


def in_process(*args: Any) -> int | None:
    """The exit code of a task in a process that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    child = context.Process(target=_do, args=args)
    child.start()
    child.join()
    return child.exitcode


def _do(out: Path, task: str, options: dict[str, Any], cpu: Path | None, kill_after: float | None) -> None:
    """Write the task's CPU time to a file, or be killed after so much of it: no handler runs."""
    torch.set_num_threads(1)
    began = resource.getrusage(resource.RUSAGE_SELF)
    if kill_after is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, kill_after)  # CPU time, so that a busy machine changes little
    try:
        TASKS[task].do(out, **options)
    except UsageError:
        os._exit(_REJECTED)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if cpu is not None:
        ended = resource.getrusage(resource.RUSAGE_SELF)
        cpu.write_text(str(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime))
    os._exit(0)  # without torch's own cleanup
