"""Processes that are copies of this one: importing torch in a new one takes longer than most tests."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from typing import Any


def fork(work: Callable[..., object], *args: Any) -> ForkProcess:
    """A started process that calls `work(*args)`."""
    process = multiprocessing.get_context("fork").Process(target=work, args=args)
    with ready_to_fork():
        process.start()
    return process


@contextmanager
def ready_to_fork() -> Iterator[None]:
    """Without garbage: to delete a process group, a process waits for its threads, which a copy does not have."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
