"""A worker process: `python -m ncsam.jobs.worker THREADS`.

It reads a job per line from standard input and answers each with a line on standard output. It lives for many jobs,
because importing torch takes longer than a small run. When its input ends, because the parent is done or gone, it
stops as after Ctrl-C: with a checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

from ncsam._errors import unexpected
from ncsam.engine import RunConfig, RunError, train
from ncsam.engine.task import load_task, resolve_auto
from ncsam.jobs.mirror import mirrored

_SMALL = ("mlp", "text_mean")


def _serve(jobs: IO[str], answers: IO[str], threads: int) -> None:
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    busy = threading.Event()

    def listen() -> None:
        for line in jobs:
            lines.put(line)
        lines.put("")
        if busy.is_set():  # the parent is gone in the middle of a run
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=listen, daemon=True).start()
    while line := lines.get():
        busy.set()
        said = answer(json.loads(line), threads)
        busy.clear()
        answers.write(json.dumps(said) + "\n")
        answers.flush()


def answer(job: dict[str, Any], threads: int) -> dict[str, Any]:
    """Do the run of `job["config"]` in the folder `job["out"]`: its summary, or what went wrong in a sentence."""
    import torch

    try:
        config = RunConfig.from_dict(job["config"])
        torch.set_num_threads(1 if is_small(config) else threads)
        with mirrored(job.get("mirror", ""), job.get("name", ""), Path(job["out"])):
            return {"summary": train(config, job["out"], console=False)}
    except (RunError, ValueError, TypeError, OSError, ImportError) as error:
        return {"summary": None, "error": str(error)}
    except Exception as error:
        return {"summary": None, "error": unexpected(error)}


def is_small(config: RunConfig) -> bool:
    """Whether the network is so small that threads would wait for each other longer than they compute."""
    if config.model != "auto":
        return config.model in _SMALL
    if Path(config.data).is_dir():  # of images: too large for a small network, and slow to look through
        return False
    return resolve_auto(config, load_task(config)).model in _SMALL


def _main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not come between the answers
    try:
        _serve(sys.stdin, answers, int(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _main()
