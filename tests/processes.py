"""Processes that start quickly: copies of a server without threads that has imported torch and its frameworks once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

#: A copy of this very process would inherit locks of threads that it does not have.
CONTEXT: ForkServerContext = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "torch.distributed.fsdp",
        "lightning_fabric",
        "pytest",
        "hypothesis",
        "ncsam.engine.run",
        "ncsam.cli.train",
    ]
)


def start(work: Callable[..., object], *args: Any) -> ForkServerProcess:
    """A started process that calls `work(*args)`, a function of a module."""
    process = CONTEXT.Process(target=work, args=args)
    process.start()
    return process
