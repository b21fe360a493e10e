"""Ray's workers as processes of this machine, one of which a test kills."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the test finds Ray's workers in /proc")


def workers(function: str) -> list[int]:
    """Processes that do this function for Ray."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cmdline").read_bytes().startswith(f"ray::{function}".encode()):
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def one_killed(function: str, when: Callable[[], bool] = lambda: True) -> Iterator[list[int]]:
    """Kill a worker of this function as soon as there is one and `when` says so; the one that was killed.

    Workers of a cluster that is started meanwhile have their share of a busy machine, and not Ray's niceness of 15.
    """
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not killed and time.monotonic() < deadline:
            if when() and (there := workers(function)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(there[0], signal.SIGKILL)
                    killed.append(there[0])
            time.sleep(0.02)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_worker_niceness", "0")
            yield killed
    finally:
        thread.join()
