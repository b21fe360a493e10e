"""Processes that start quickly: copies of a server without threads that has imported torch and its frameworks once."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

_MODULES = ["torch", "torch.distributed.fsdp", "fabric_alone", "pytest", "hypothesis"]
_MODULES += ["ncsam.engine.run", "ncsam.cli.train"]


def context() -> ForkServerContext:
    """Processes that are copies of the server, which is started if it does not run.

    A copy of this very process would inherit locks of threads that it does not have.
    """
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_MODULES)
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        patch.setenv("PYTHONPATH", path)  # the server's modules are found here
        forkserver.ensure_running()
    return found


def start(work: Callable[..., object], *args: Any) -> ForkServerProcess:
    """A started process that calls `work(*args)`, a function of a module."""
    process = context().Process(target=work, args=args)
    process.start()
    return process
