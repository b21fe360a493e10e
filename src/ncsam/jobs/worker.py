"""A worker process: `python -m ncsam.jobs.worker THREADS`.

It reads one job per line from standard input and answers each with a line on standard output. It runs many jobs,
because importing torch takes longer than a small run. When its input ends, because the parent is done or gone, it stops
as after Ctrl-C, with a checkpoint.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import IO

from ncsam.jobs.job import do


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
        answer = do(json.loads(line), threads)
        busy.clear()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print must not come between the answers
    try:
        _serve(sys.stdin, answers, int(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    _main()
