"""Run jobs as Ray tasks: on the cluster at RAY_ADDRESS, or on a cluster that is started on this machine.

If the worker of a task is lost, another one resumes from the last checkpoint. Every node must therefore see the folder
of the runs or a mirror of it. The result of a job does not depend on where it runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ncsam._errors import bad_value, need
from ncsam.errors import Interrupted
from ncsam.jobs.job import Job, Result, do
from ncsam.jobs.local import available_cores

_RETRIES = 3  # of a run whose worker was lost
_ANSWER = 5.0  # seconds in which a cluster must take a connection
_LEAVE = 5.0  # seconds that a cluster may take to leave its folder


def parse_resources(text: str) -> dict[str, float]:
    """Parse the resources that each run needs.

    Args:
        text: NAME=AMOUNT pairs separated by commas, such as "gpu=1,cpu=4". Empty: none.

    Returns:
        Amounts by name.

    Raises:
        UsageError: if a name is missing or an amount is not a finite number of at least 0.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, amount = (word.strip() for word in part.partition("="))
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = -1.0
        if not name or not 0 <= found[name] < float("inf"):
            raise bad_value("resources", text, "NAME=AMOUNT pairs separated by commas, such as gpu=1,cpu=4")
    return found


def run_all(jobs: Sequence[Job], workers: int, resources: Mapping[str, float], ended: Callable[[Result], None]) -> None:
    """Run all jobs as Ray tasks.

    Args:
        jobs: the jobs.
        workers: number of tasks in parallel on a cluster that is started here. An existing cluster decides on its own.
        resources: resources of each task, from `parse_resources`.
        ended: called with each result, in this thread.

    Raises:
        Interrupted: after Ctrl-C.
    """
    if not jobs:
        return
    ray: Any = need("ray", "ray", "running on a Ray cluster")
    with cluster(ray, workers, resources):
        task = remote(ray, _run, resources)
        threads = max(1, int(resources.get("cpu", 1)))
        waiting = {task.remote(job.to_dict(), threads): job.name for job in jobs}
        try:
            while waiting:
                done, _ = ray.wait(list(waiting))
                for reference in done:
                    ended(_result(ray, reference, waiting.pop(reference)))
        except KeyboardInterrupt:
            for reference in waiting:
                ray.cancel(reference)  # a KeyboardInterrupt in the task, which then writes its checkpoint
            raise Interrupted("interrupted; rerun the command to resume") from None


def check_cluster() -> None:
    """Check that something listens at RAY_ADDRESS. Ray itself would wait for minutes."""
    ray: Any = need("ray", "ray", "running on a Ray cluster")
    address = os.environ.get("RAY_ADDRESS", "")
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if ray.is_initialized() or not colon or "://" in host or not port.isdecimal():
        return  # joined already; or auto, local and other schemes, which are Ray's to judge
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        allowed = f"the address of a running Ray cluster ({why})"
        raise bad_value("RAY_ADDRESS", address, allowed) from error


def remote(ray: Any, function: Callable[..., Any], resources: Mapping[str, float]) -> Any:
    """Make a Ray task of a function. It is retried three times if its worker is lost.

    Args:
        ray: the module `ray`.
        function: the function to run remotely.
        resources: resources of each task; one core if "cpu" is not among them.
    """
    own = {name: amount for name, amount in resources.items() if name not in ("cpu", "gpu")}
    options = {"num_cpus": resources.get("cpu", 1.0), "num_gpus": resources.get("gpu", 0), "resources": own or None}
    return ray.remote(**options, max_retries=_RETRIES)(function)


def _run(job: dict[str, Any], threads: int) -> dict[str, Any]:
    return do(job, threads)


def _result(ray: Any, reference: Any, name: str) -> Result:
    try:
        return Result(name, **ray.get(reference))
    except ray.exceptions.RayError as error:
        return Result(name, None, f"its worker was lost {_RETRIES + 1} times ({' '.join(str(error).split())[:200]})")


@contextlib.contextmanager
def cluster(ray: Any, workers: int, resources: Mapping[str, float]) -> Iterator[None]:
    """Connect to the existing cluster, or start one and stop it at the end.

    Args:
        ray: the module `ray`.
        workers: number of tasks in parallel on a cluster that is started here.
        resources: resources of each task.

    Raises:
        UsageError: if the cluster does not answer, or this machine lacks the resources.
    """
    if ray.is_initialized():
        yield
        return
    there = os.environ.get("RAY_ADDRESS")
    cores = max(workers * resources.get("cpu", 1.0), available_cores())
    own = {"num_cpus": int(cores), "include_dashboard": False, "logging_level": "error"}
    with _signals_kept(), contextlib.nullcontext() if there else _folder() as folder:
        if there:
            try:
                ray.init(address=there, log_to_driver=False)
            except Exception as error:  # whatever Ray raises for an address of which it gets no answer
                said = " ".join(str(error).split())[:200]
                raise bad_value("RAY_ADDRESS", there, f"the address of a running Ray cluster ({said})") from error
        else:
            ray.init(address="local", _temp_dir=folder, log_to_driver=False, **own)
        try:
            if not there:
                _check_fits(resources, ray.cluster_resources())
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the SIGTERM handler, which Ray replaces: forked children that inherit it cannot be ended."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _check_fits(resources: Mapping[str, float], there: Mapping[str, float]) -> None:
    """Refuse tasks that would wait forever on this machine."""
    has = {name: there.get(name.upper() if name in ("cpu", "gpu") else name, 0.0) for name in resources}
    if any(amount > has[name] for name, amount in resources.items()):
        asked, found = (",".join(f"{name}={amount:g}" for name, amount in each.items()) for each in (resources, has))
        raise bad_value(
            "resources", asked, f"at most what this machine has ({found}), or a cluster named by RAY_ADDRESS"
        )


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder for sockets and logs of a cluster that is started here, which Ray would not remove."""
    short = "/tmp" if os.path.isdir("/tmp") else None  # the path of a socket may have 107 characters at most
    folder = tempfile.mkdtemp(prefix="ncsam-ray-", dir=short)
    try:
        yield folder
    finally:
        deadline = time.monotonic() + _LEAVE
        while os.path.exists(folder) and time.monotonic() < deadline:  # processes that are ending may still write
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)
