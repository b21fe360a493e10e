"""A worker process: `python -m ncsam.compare.worker THREADS`.

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
from typing import IO, Any

from ncsam.engine import RunConfig, RunError, train


def _serve(jobs: IO[str], answers: IO[str]) -> None:
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
        answer = _answer(json.loads(line))
        busy.clear()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"summary": train(RunConfig.from_dict(job["config"]), job["out"], console=False)}
    except (RunError, ValueError, TypeError, OSError, ImportError) as error:
        return {"summary": None, "error": str(error)}
    except Exception as error:
        return {"summary": None, "error": f"{type(error).__name__}: {error}"}


def _main() -> None:
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not come between the answers
    try:
        _serve(sys.stdin, answers)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _main()
