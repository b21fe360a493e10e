"""Run jobs in worker processes (`ncsam.jobs.worker`): two in parallel on two cores, each with its share of threads."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from ncsam.errors import Interrupted
from ncsam.jobs.job import Job, Result

_GRACE = 60.0  # seconds that interrupted workers get to write their checkpoints


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_each(workers: int) -> int:
    """Return the number of threads of a worker: OMP_NUM_THREADS, else an equal share of the cores.

    Args:
        workers: number of workers.
    """
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list is for nested regions
    return int(asked) if asked.isdecimal() and int(asked) else max(1, available_cores() // workers)


def run_all(jobs: Sequence[Job], workers: int, threads: int, ended: Callable[[Result], None]) -> None:
    """Run all jobs in worker processes.

    Args:
        jobs: the jobs.
        workers: maximum number of processes.
        threads: number of threads of each process.
        ended: called with each result, in this thread.

    Raises:
        Interrupted: after Ctrl-C, once the workers have written their checkpoints.
    """
    if not jobs:
        return
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    pool = [_Worker(waiting, results, threads) for _ in range(min(workers, len(jobs)))]
    try:
        for _ in jobs:
            ended(results.get())
    except KeyboardInterrupt:
        for worker in pool:
            worker.interrupt()
        raise Interrupted("interrupted; rerun the command to resume") from None
    finally:
        for worker in pool:
            worker.close()


class _Worker:
    """A process that runs jobs, and the thread that feeds it. A process that dies is replaced."""

    def __init__(self, waiting: queue.SimpleQueue[Job], results: queue.SimpleQueue[Result], threads: int) -> None:
        self._waiting = waiting
        self._results = results
        self._threads = threads
        self._process: subprocess.Popen[str] | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        while not self._stopping:
            try:
                job = self._waiting.get_nowait()
            except queue.Empty:
                return
            self._results.put(self._do(job))

    def _do(self, job: Job) -> Result:
        if self._process is None or self._process.poll() is not None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job.to_dict()) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except (OSError, ValueError):
            answer = ""
        if not answer:
            return Result(job.name, None, f"its process ended unexpectedly (exit code {process.wait()})")
        return Result(job.name, **json.loads(answer))

    def _start(self) -> subprocess.Popen[str]:
        count = str(self._threads)
        environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # modules beside a script that calls us
        return subprocess.Popen(
            [sys.executable, "-m", "ncsam.jobs.worker", count],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then asks the workers to stop
        )

    def interrupt(self) -> None:
        self._stopping = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        self._stopping = True
        if self._process is None:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
