"""Run many jobs. Finished ones are read; the others run in local worker processes or on a Ray cluster."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ncsam._arguments import choice, positive
from ncsam._errors import bad_value
from ncsam.engine import RunError
from ncsam.jobs import local, ray_cluster
from ncsam.jobs.job import Job, Result
from ncsam.jobs.mirror import Mirror

#: Runs of one command. More would be years of training, and are a mistyped number of seeds.
MOST_RUNS = 10_000


def check_size(seeds: int | Sequence[int], combinations: int) -> None:
    """Refuse more runs than anyone can intend, before they are listed one by one.

    Args:
        seeds: number of seeds, or a list of seeds.
        combinations: number of combinations that are run with every seed.

    Raises:
        UsageError: for more than 10,000 runs.
    """
    runs = combinations * (seeds if isinstance(seeds, int) else len(seeds))
    if runs > MOST_RUNS:
        allowed = f"at most {MOST_RUNS:,} runs in all; {combinations:,} combinations would make {runs:,}"
        raise bad_value("seeds", seeds, allowed)


@dataclass(frozen=True)
class ExecutorConfig:
    """Where jobs run, and how many in parallel.

    Args:
        workers: number of jobs in parallel. Each is a process with OMP_NUM_THREADS threads, or else an equal share of
            the cores. `None`: two, or one on a single core.
        on: "local" processes, or tasks on a "ray" cluster (see `ncsam.jobs.ray_cluster`).
        resources: resources that each job needs on Ray, such as "gpu=1,cpu=4".
        mirror: URL to copy the run folders to, such as "s3://bucket/runs" (see `ncsam.jobs.mirror`). Empty: no copies.

    Raises:
        UsageError: if an argument is invalid.
    """

    workers: int | None = None
    on: Literal["local", "ray"] = "local"
    resources: str = ""
    mirror: str = ""

    def __post_init__(self) -> None:
        if self.workers is not None:
            positive("workers", self.workers)
        choice("on", self.on, ("local", "ray"))
        if self.resources and self.on != "ray":
            raise bad_value("resources", self.resources, 'no resources unless on="ray"')
        ray_cluster.parse_resources(self.resources)
        if self.mirror:
            Mirror(self.mirror)

    def check(self) -> None:
        """Check that the cluster answers and the mirror is writable, before anything is trained."""
        if self.on == "ray":
            ray_cluster.check_cluster()
        if self.mirror:
            Mirror(self.mirror).check()

    @property
    def at_a_time(self) -> int:
        return min(2, local.available_cores()) if self.workers is None else self.workers


@dataclass
class Done:
    """The results of jobs.

    Attributes:
        summaries: summaries of the finished jobs, by name.
        errors: error messages of the failed jobs, by name.
    """

    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def split_finished(jobs: Sequence[Job]) -> tuple[Done, list[Job]]:
    """Separate finished jobs from those still to be run.

    Args:
        jobs: any jobs.

    Returns:
        The summaries of finished jobs and the errors of jobs whose folder holds something else; and the remaining jobs.
    """
    done, waiting = Done(), []
    for job in jobs:
        try:
            finished = job.summary()
        except RunError as error:
            done.errors[job.name] = str(error)
            continue
        if finished is None:
            waiting.append(job)
        else:
            done.summaries[job.name] = finished
    return done, waiting


def run_jobs(
    jobs: Sequence[Job],
    executor: ExecutorConfig,
    say: Callable[[str], None] = print,
    after_each: Callable[[Done], object] = lambda done: None,
    *,
    here: Callable[[Job], dict[str, Any]] | None = None,
    unit: str = "runs",
) -> Done:
    """Run the jobs that are not finished yet. If one fails, the others continue.

    Args:
        jobs: the jobs, with unique names.
        executor: where to run them, and how many in parallel.
        say: called with a line for each job that ends.
        after_each: called with everything done so far after each job.
        here: runs a job in this process and returns its summary. It replaces worker processes unless the executor asks
            for several workers or for Ray, and can use what cannot be sent to a process, such as data in memory.
        unit: what jobs are called in messages.

    Returns:
        Summaries and errors of all jobs.

    Raises:
        Interrupted: after Ctrl-C, once the workers have written their checkpoints.
    """
    mirror = Mirror(executor.mirror) if executor.mirror else None
    if mirror is not None:
        jobs = [dataclasses.replace(job, mirror=executor.mirror) for job in jobs]
        for job in jobs:
            if not job.out.exists() and mirror.is_finished(job.name):
                mirror.fetch(job.name, job.out)
    done, waiting = split_finished(jobs)
    if mirror is not None:
        for job in jobs:  # a copy that failed, or a mirror that was named later
            if job.name in done.summaries and not mirror.is_finished(job.name):
                mirror.store(job.name, job.out)
    folders = {job.name: job.out for job in waiting}
    inline = here is not None and executor.on == "local" and (executor.workers or 1) == 1
    workers = 1 if inline else executor.at_a_time
    say(f"{len(jobs)} {unit}, {len(done.summaries)} of them finished; {min(workers, max(1, len(waiting)))} at a time")
    began = time.monotonic()

    def ended(result: Result) -> None:
        if result.summary is None:
            done.errors[result.name] = result.error or "unknown"
        else:
            done.summaries[result.name] = result.summary
            if mirror is not None:  # it may have been done on another machine
                mirror.fetch(result.name, folders[result.name])
        count = len(done.summaries) + len(done.errors)
        say(f"[{count}/{len(jobs)}] {result.name}: {_outcome(result)}  ({time.monotonic() - began:.0f} s)")
        after_each(done)

    if inline:
        assert here is not None
        for job in waiting:
            ended(_inline(job, here))
    elif executor.on == "ray":
        ray_cluster.run_all(waiting, workers, ray_cluster.parse_resources(executor.resources), ended)
    else:
        local.run_all(waiting, workers, local.threads_each(workers), ended)
    return done


def _inline(job: Job, here: Callable[[Job], dict[str, Any]]) -> Result:
    from ncsam.jobs.mirror import mirrored

    try:
        with mirrored(job.mirror, job.name, job.out):
            return Result(job.name, here(job))
    except RunError as error:
        return Result(job.name, None, str(error))


def _outcome(result: Result) -> str:
    if result.summary is None:
        return f"failed: {result.error}"
    for name in ("last5", "last"):
        if result.summary.get(name) is not None:
            return f"{name} {result.summary[name]:.2f} %"
    return str(result.summary.get("said", "finished"))
